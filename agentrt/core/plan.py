"""What comes next. The only planner: a fresh session, a takeover and the next turn ask the same function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from agentrt.core.budget import Limits, Spent, over
from agentrt.core.calls import (
    AwaitApproval,
    AwaitResult,
    CallKey,
    Close,
    NeedsApproval,
    Reconcile,
    Run,
    ToolTraits,
    judge,
    same_call_key,
    unresolved_unknowns,
)
from agentrt.core.journal import StopReason, ToolOutcome, ToolResult
from agentrt.core.session import Completed, Failed, SuspendReason
from agentrt.core.transcript import OpenCall, Transcript, Turn

__all__ = [
    "AskApproval",
    "AskModel",
    "CloseCalls",
    "Finish",
    "RunTools",
    "Step",
    "ToolTraits",
    "Wait",
    "next_step",
]

MAX_EMPTY_ANSWERS: Final = 3
MAX_IDENTICAL_FAILURES: Final = 3


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send the view to the model."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls; those in ``reconcile`` were started by an earlier owner: ask their tools what became of them,
    and run only what was not done."""

    calls: tuple[OpenCall, ...] = ()
    reconcile: tuple[OpenCall, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseCalls:
    """Journal these results; their calls are not run."""

    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Journal an approval request, ``may_repeat``, for each of these calls."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Suspend. ``waits_for`` holds call ids."""

    reason: SuspendReason
    message: str
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: Completed | Failed


Step = AskModel | RunTools | CloseCalls | AskApproval | Wait | Finish


def next_step(
    transcript: Transcript, limits: Limits, tools: Mapping[str, ToolTraits], *, spent: Spent | None = None
) -> Step:
    """What to do now. ``spent`` is what the present run has used; by default what the journal shows of it."""
    if transcript.open_calls:
        return _open_calls(transcript, tools)
    step = _answered(transcript, tools)
    if isinstance(step, AskModel):
        exceeded = over(limits, spent or transcript.spent)
        if exceeded is not None:
            return Wait(SuspendReason.BUDGET, f"{exceeded}: resume with higher limits")
    return step


def _open_calls(transcript: Transcript, tools: Mapping[str, ToolTraits]) -> Step:
    """Close what is not run, ask where a person must decide, run what can run; wait only when all that is done."""
    unresolved = unresolved_unknowns(transcript)
    close: list[ToolResult] = []
    ask: list[OpenCall] = []
    run: list[OpenCall] = []
    reconcile: list[OpenCall] = []
    decisions: list[OpenCall] = []
    results: list[OpenCall] = []
    for call in transcript.open_calls:
        match judge(call, tools, unresolved):
            case Close(result=result):
                close.append(result)
            case NeedsApproval():
                ask.append(call)
            case Run():
                run.append(call)
            case Reconcile():
                reconcile.append(call)
            case AwaitApproval():
                decisions.append(call)
            case AwaitResult():
                results.append(call)
            case unexpected:
                assert_never(unexpected)
    if close:
        return CloseCalls(tuple(close))
    if ask:
        return AskApproval(tuple(ask))
    if run or reconcile:
        return RunTools(_one_of_each(run, reconcile, tools), tuple(reconcile))
    return _wait(decisions, results)


def _one_of_each(
    run: Sequence[OpenCall], reconcile: Sequence[OpenCall], tools: Mapping[str, ToolTraits]
) -> tuple[OpenCall, ...]:
    """``run`` without second calls of the same effect: they follow when it is known how the first one ended."""
    under_way = {same_call_key(call.call) for call in reconcile}
    kept: list[OpenCall] = []
    for call in run:
        if tools[call.call.tool].guards_repetition:
            key = same_call_key(call.call)
            if key in under_way:
                continue
            under_way.add(key)
        kept.append(call)
    return tuple(kept)


def _wait(decisions: Sequence[OpenCall], results: Sequence[OpenCall]) -> Wait:
    """In the words that the database has for what is left of them."""
    waits_for = tuple(call.call.call_id for call in (*decisions, *results))
    words = [
        f"waits for {what}: {', '.join(call.call.tool for call in calls)}"
        for what, calls in (("a decision", decisions), ("a result", results))
        if calls
    ]
    return Wait(SuspendReason.APPROVAL if decisions else SuspendReason.EXTERNAL, "; ".join(words), waits_for)


def _answered(transcript: Transcript, tools: Mapping[str, ToolTraits]) -> Step:
    """The step where no call of the last answer is open."""
    retries = [retry for retry in transcript.retries if retry.error_class == "empty"]
    if len(retries) >= MAX_EMPTY_ANSWERS:
        message = f"the model gave {len(retries)} answers without content in a row: {retries[-1].message}".rstrip(": ")
        return Finish(Failed("empty_answer", message))
    if not transcript.turns:
        return AskModel() if transcript.opening else Wait(SuspendReason.INPUT, "waits for a message")
    turn = transcript.turns[-1]
    return _after_tools(transcript, turn, tools) if turn.calls else _after_text(transcript, turn)


def _after_text(transcript: Transcript, turn: Turn) -> Step:
    """The last answer has no calls."""
    if transcript.undelivered:
        return AskModel()
    match turn.answer.stop_reason:
        case StopReason.PAUSED:
            return AskModel()
        case StopReason.INTERRUPTED:
            return Wait(SuspendReason.INPUT, "was interrupted, waits for a message")
        case _:
            return AskModel() if turn.go_on else Finish(Completed(outcome(transcript)))


def _after_tools(transcript: Transcript, turn: Turn, tools: Mapping[str, ToolTraits]) -> Step:
    """All calls of the last answer have results."""
    unclear = _to_be_cleared(transcript, turn, tools)
    if unclear:
        names = ", ".join(sorted(unclear.values()))
        return Wait(SuspendReason.BLOCKED, f"the outcome is unknown of: {names}", tuple(unclear))
    if transcript.undelivered:
        return AskModel()
    if turn.answer.stop_reason is StopReason.REFUSED:
        return Finish(Completed(outcome(transcript)))
    if any(
        result is not None and result.outcome is ToolOutcome.OK and tools.get(call.tool, ToolTraits()).pauses
        for call, result in zip(turn.calls, turn.results, strict=True)
    ):
        return Wait(SuspendReason.INPUT, "waits for an answer")
    repeated = _repeated_failure(transcript)
    return AskModel() if repeated is None else Finish(Failed("repeated_tool_failure", repeated))


def _to_be_cleared(transcript: Transcript, turn: Turn, tools: Mapping[str, ToolTraits]) -> dict[str, str]:
    """Calls of unknown outcome whose tools want a person to look first, unless one has since resumed the session."""
    if transcript.resumed_seq > turn.seq:
        return {}
    return {
        call.call_id: call.tool
        for call, result in zip(turn.calls, turn.results, strict=True)
        if result is not None
        and result.outcome is ToolOutcome.UNKNOWN
        and tools.get(call.tool, ToolTraits()).on_unknown == "suspend"
    }


def _repeated_failure(transcript: Transcript) -> str | None:
    """The failure that each of the last three answers of this run has met, and that nobody has commented on."""
    turns = transcript.turns[transcript.run_began :][-MAX_IDENTICAL_FAILURES:]
    if len(turns) < MAX_IDENTICAL_FAILURES or any(turn.users for turn in turns):
        return None
    common = set.intersection(*(_failures(turn) for turn in turns))
    if not common:
        return None
    call, content = min(common)
    return f"the call of {call.tool} failed {MAX_IDENTICAL_FAILURES} times in a row in the same way: {content[:500]}"


def _failures(turn: Turn) -> set[tuple[CallKey, str]]:
    return {
        (same_call_key(call), result.content)
        for call, result in zip(turn.calls, turn.results, strict=True)
        if result is not None and result.outcome in (ToolOutcome.ERROR, ToolOutcome.NOT_RUN)
    }


def outcome(transcript: Transcript) -> dict[str, Any]:
    """``{"text", "refused"?, "truncated"?}`` of the last answer; the text of answers that were continued is whole."""
    if not transcript.turns:
        return {"text": ""}
    last = transcript.turns[-1]
    texts = [last.text]
    for turn in reversed(transcript.turns[:-1]):
        continued = turn.go_on or (turn.answer.stop_reason is StopReason.PAUSED and not turn.calls)
        if not continued or turn.users:
            break
        texts.append(turn.text)
    found: dict[str, Any] = {"text": "".join(reversed(texts))}
    if last.answer.stop_reason is StopReason.REFUSED:
        found["refused"] = last.answer.message or last.text or "the provider gave no words"
    if last.cut:
        found["truncated"] = True
    return found
