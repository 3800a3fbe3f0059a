"""The agent of the recovery benchmark: calls a tool that waits until the file that the message names exists."""

import asyncio
import os
from pathlib import Path

from agentrt import Agent, tool
from agentrt.models.scripted import Call, Conversation, Scripted, ScriptedModel

GATES = Path(os.environ.get("GATES", "/nonexistent"))


@tool(effect="read")
async def wait(name: str) -> str:
    """Waits for a file."""
    (GATES / f"{name}.reached").touch()
    while not (GATES / f"{name}.open").exists():  # noqa: ASYNC110 - a folder tells nobody
        await asyncio.sleep(0.02)
    return name


def script(conversation: Conversation) -> Scripted:
    """One call, and the end."""
    return "done" if conversation.results else Call("wait", {"name": conversation.last_user_text})


waiting = Agent("waiting", model=ScriptedModel(script), tools=[wait])
