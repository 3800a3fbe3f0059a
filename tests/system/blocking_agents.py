"""Agents whose tools block a thread or the whole main loop; GATES is a folder, as in ``agents.py``."""

import time

from agentrt import Agent, ToolContext, tool
from agentrt.models.scripted import Call, Conversation, Scripted, ScriptedModel
from tests.system.agents import GATES


def _block(attempt: int) -> str:
    if attempt == 1:
        (GATES / "blocked.reached").touch()
        time.sleep(600)
    return f"done in attempt {attempt}"


@tool(effect="read")
async def block_loop(ctx: ToolContext) -> str:
    """Blocks the main loop, in the first attempt."""
    return _block(ctx.attempt)


@tool(effect="read")
def block_thread(ctx: ToolContext) -> str:
    """Blocks a thread, in the first attempt."""
    return _block(ctx.attempt)


async def one_tool(conversation: Conversation) -> Scripted:
    """Calls the tool that the message names, and ends."""
    if not conversation.results:
        return Call(conversation.last_user_text, {})
    return conversation.results[0].content


blocking = Agent("blocking", model=ScriptedModel(one_tool), tools=[block_loop, block_thread])
