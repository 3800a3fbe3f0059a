"""The last guard before a request: every call has its result directly behind it, whatever the journal holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agentrt.core.content import ToolCall
from agentrt.core.journal import ToolOutcome
from agentrt.core.messages import Message, ModelOutput, Result, ToolResults
from agentrt.core.session import CallId
from agentrt.core.turns import BROKEN

NO_RESULT: Final = (
    "No result of this call was recorded. It may or may not have had its effect: check before you rely on either."
)


def repair_orphaned_tool_calls(messages: Sequence[Message]) -> tuple[Sequence[Message], tuple[CallId, ...]]:
    """``messages`` with the results of each answer directly behind it, and the ids of the calls that had none.

    One message of results per answer, in call order; the first result of a call is kept; a call without one anywhere
    gets a synthetic one; results without a call are left out. Broken answers are left out, but for calls that were
    answered. User messages are never lost or reordered. Idempotent; the same object when nothing is wrong.
    """
    results = _by_call(messages)
    repaired: list[CallId] = []
    valid: list[Message] = []
    for at, message in enumerate(messages):
        if isinstance(message, ToolResults):
            continue
        if not isinstance(message, ModelOutput):
            valid.append(message)
            continue
        output = _unbroken(message, results)
        if output is None:
            continue
        valid.append(output)
        calls = [block for block in output.content if isinstance(block, ToolCall)]
        if calls:
            following = messages[at + 1] if at + 1 < len(messages) else None
            valid.append(_batch(calls, results, repaired, following))
    if len(valid) == len(messages) and all(new is old for new, old in zip(valid, messages, strict=True)):
        return messages, ()
    return tuple(valid), tuple(repaired)


def _by_call(messages: Sequence[Message]) -> dict[CallId, list[Result]]:
    """The results of each call id, in order."""
    found: dict[CallId, list[Result]] = {}
    for message in messages:
        if isinstance(message, ToolResults):
            for result in message.results:
                found.setdefault(result.call_id, []).append(result)
    return found


def _unbroken(output: ModelOutput, results: dict[CallId, list[Result]]) -> ModelOutput | None:
    """The answer; a broken one without its unanswered calls, or None when nothing of it was answered."""
    if output.stop_reason not in BROKEN:
        return output
    kept = [not isinstance(block, ToolCall) or bool(results.get(block.call_id)) for block in output.content]
    if not any(keep and isinstance(block, ToolCall) for keep, block in zip(kept, output.content, strict=True)):
        return None
    if all(kept):
        return output
    content = tuple(block for keep, block in zip(kept, output.content, strict=True) if keep)
    positions = tuple(at for keep, at in zip(kept, output.positions, strict=False) if keep)
    return replace(output, content=content, positions=positions)


def _batch(
    calls: Sequence[ToolCall], results: dict[CallId, list[Result]], repaired: list[CallId], following: Message | None
) -> ToolResults:
    """The results of an answer's calls: the message that follows, if it is just that."""
    batch: list[Result] = []
    for call in calls:
        found = results.get(call.call_id)
        if not found:
            repaired.append(call.call_id)
        batch.append(found.pop(0) if found else Result(call.call_id, call.tool, NO_RESULT, ToolOutcome.UNKNOWN))
    same = isinstance(following, ToolResults) and following.results == tuple(batch)
    return following if same and isinstance(following, ToolResults) else ToolResults(tuple(batch))
