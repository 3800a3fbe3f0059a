"""The agents that system tests run in real worker processes. GATES is a folder: what waits, waits for a file in it."""

import asyncio
import os
from pathlib import Path

from agentrt import Agent, ToolContext, tool
from agentrt.models.scripted import Call, Conversation, Reply, Scripted, ScriptedModel

GATES = Path(os.environ.get("GATES", "/nonexistent"))


async def pass_gate(name: str) -> None:
    """Say that somebody waits at the gate, and wait until a test opens it."""
    (GATES / f"{name}.reached").touch()
    while not (GATES / f"{name}.open").exists():  # noqa: ASYNC110 - a folder tells nobody
        await asyncio.sleep(0.02)


@tool(effect="read")
async def square(number: int) -> int:
    """The square of a number."""
    return number * number


@tool(effect="read")
async def gated_read(ctx: ToolContext) -> str:
    """Waits at the gate "tool"."""
    await pass_gate("tool")
    return f"read in attempt {ctx.attempt}"


@tool(effect="once")
async def gated_once(ctx: ToolContext) -> str:
    """Has its effect, then waits at the gate "tool"."""
    with (GATES / "effects").open("a") as file:
        file.write(f"{ctx.call_id}\n")
    await pass_gate("tool")
    return "done"


@tool(effect="transactional")
async def gated_row(ctx: ToolContext) -> str:
    """Writes a row, then waits at the gate "tool" with the transaction open."""
    await ctx.connection.execute("insert into effects (call_id) values ($1)", ctx.call_id)
    await pass_gate("tool")
    return "written"


async def three_turns(conversation: Conversation) -> Scripted:
    """The number in the message, its square, the square of that, and the end."""
    number = int(conversation.last_user_text.split()[-1])
    match len(conversation.results):
        case 0:
            return Reply(text=f"first {number}", calls=[Call("square", {"number": number})])
        case 1:
            return Reply(text=f"second {number**2}", calls=[Call("square", {"number": number**2})])
        case _:
            return f"third {number**4}"


async def one_tool(conversation: Conversation) -> Scripted:
    """Calls the tool that the message names, then waits at the gate "model" if asked to, and ends."""
    wanted, _, gate = conversation.user_texts[0].partition(" ")
    if not conversation.results:
        return Call(wanted, {"number": 3} if wanted == "square" else {})
    if gate == "then wait":
        await pass_gate("model")
    return f"{conversation.results[0].outcome}: {conversation.results[0].content}"


async def slow_talker(conversation: Conversation) -> Scripted:
    """Answers each message by its text; waits at the gate "model" before the first answer."""
    if conversation.turn == 0:
        await pass_gate("model")
    return " | ".join(conversation.user_texts)


TOOLS = [square, gated_read, gated_once, gated_row]
three = Agent("three", model=ScriptedModel(three_turns), tools=TOOLS)
one = Agent("one", model=ScriptedModel(one_tool), tools=TOOLS)
talker = Agent("talker", model=ScriptedModel(slow_talker))
