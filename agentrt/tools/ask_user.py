"""The built-in tool by which an agent asks its user: the session waits, without a slot, for the next message."""

from __future__ import annotations

from agentrt.agents import ToolError, tool


@tool(effect="read", pauses=True)
async def ask_user(question: str, options: list[str] | None = None) -> str:
    """Ask the user a question and wait for the answer, which comes as the next user message.

    Give options when the answer is a choice; the user may still answer in their own words.
    """
    if not question.strip():
        raise ToolError("the question is blank; say what you want to know")
    choices = "".join(f"\n- {option}" for option in options or ())
    return f"The user was asked: {question}{choices}\nTheir answer is the next user message."
