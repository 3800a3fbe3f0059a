"""A sample agent that needs no key: it says hello, and asks the clock when asked about the time."""

from __future__ import annotations

from datetime import UTC, datetime

from agentrt import Agent, tool
from agentrt.models.scripted import Call, Conversation, Reply, ScriptedModel


@tool(effect="read")
def clock() -> str:
    """The present time in UTC."""
    return f"{datetime.now(UTC):%H:%M:%S}"


def _script(conversation: Conversation) -> Reply:
    said = conversation.last_user_text
    if conversation.last_results:
        return Reply(text=f"It is {conversation.last_results[0].content} UTC.")
    if "time" in said.lower():
        return Reply(calls=[Call("clock", {})])
    number = len(conversation.user_texts)
    return Reply(text=f"Hello! That was message {number}: {said!r}. Ask me for the time to see a tool call.")


hello = Agent("hello", model=ScriptedModel(_script), instructions="Be brief.", tools=[clock])
