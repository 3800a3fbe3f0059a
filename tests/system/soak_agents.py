"""The agent of the soak: three batches of tools of every effect, then an answer that repeats each message it has seen.

What it does is a function of the results so far, so that a lost or doubled entry shows as a wrong number of calls.
GATES is a folder; each ``once`` effect is a line in its file ``effects``.
"""

import asyncio
import os
import random
from pathlib import Path

from agentrt import Agent, ToolContext, tool
from agentrt.models.scripted import Call, Conversation, Scripted, ScriptedModel

GATES = Path(os.environ.get("GATES", "/nonexistent"))
MOST_SECONDS = float(os.environ.get("SOAK_MODEL_SECONDS", "6"))

BATCHES = (("look", "note"), ("pay",), ("book", "look"))
CALLS = sum(len(batch) for batch in BATCHES)


@tool(effect="read")
async def look() -> str:
    """Changes nothing."""
    await asyncio.sleep(random.uniform(0, 0.2))
    return "seen"


@tool(effect="idempotent")
async def note(ctx: ToolContext) -> str:
    """May be repeated under its key."""
    return ctx.idempotency_key


@tool(effect="once")
async def pay(ctx: ToolContext) -> str:
    """Has its effect once, or its outcome is unknown."""
    with (GATES / "effects").open("a") as file:
        file.write(f"{ctx.session_id}:{ctx.call_id}\n")
    await asyncio.sleep(random.uniform(0, 0.2))
    return "paid"


@tool(effect="transactional")
async def book(ctx: ToolContext) -> str:
    """Writes a row, exactly once."""
    await ctx.connection.execute("insert into bookings (call) values ($1)", f"{ctx.session_id}:{ctx.call_id}")
    return "booked"


async def script(conversation: Conversation) -> Scripted:
    """The next batch of calls, by the results so far; then all messages, in their order."""
    await asyncio.sleep(random.uniform(MOST_SECONDS / 2, MOST_SECONDS))
    done = len(conversation.results)
    for batch in BATCHES:
        if done == 0:
            return [Call(name, {}) for name in batch]
        done -= len(batch)
    return " | ".join(conversation.user_texts)


soaked = Agent("soaked", model=ScriptedModel(script), tools=[look, note, pay, book])
