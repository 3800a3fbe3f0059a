"""What is to be done with an open call: the one judgement that a fresh plan and a takeover share."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, assert_never

from agentrt.core.content import Content, ToolCall
from agentrt.core.journal import Effect, ToolOutcome, ToolResult
from agentrt.core.transcript import ApprovalState, OpenCall, Transcript

DEADLY: Final = 2
"""After how many dead owners a call is no longer tried."""


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """What the planner needs to know of a tool. ``effect`` None was not declared and counts as ``once``;
    ``on_unknown`` is ``report``, ``retry_allowed`` or ``suspend``."""

    effect: Effect | None = None
    pauses: bool = False
    reconciles: bool = False
    on_unknown: str = "report"

    @property
    def once(self) -> bool:
        return self.effect is None or self.effect is Effect.ONCE

    def leaves_nothing(self, *, deferred: bool = False) -> bool:
        """Whether a call that is cut off has had no lasting effect for certain. ``deferred``: what it did by then was
        committed."""
        return self.effect is Effect.READ or (self.effect is Effect.TRANSACTIONAL and not deferred)

    @property
    def guards_repetition(self) -> bool:
        """Whether a call like one of unknown outcome needs a person's word. That of a transactional tool is unknown
        when it was deferred: what it wrote is committed."""
        return (self.once or self.effect is Effect.TRANSACTIONAL) and self.on_unknown != "retry_allowed"


@dataclass(frozen=True, slots=True)
class Run:
    """Run it, for the first time or, where that is safe, again."""


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Ask the tool's ``reconcile`` what became of it."""


@dataclass(frozen=True, slots=True)
class AwaitApproval:
    """A decision is open."""


@dataclass(frozen=True, slots=True)
class AwaitResult:
    """The result comes from outside."""


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """It may repeat what an earlier call of unknown outcome has done: a person decides."""


@dataclass(frozen=True, slots=True)
class Close:
    """It is not run; this is its result. ``left_open``: an earlier owner, or an earlier run, left it open."""

    result: ToolResult
    left_open: bool


Judgement = Run | Reconcile | AwaitApproval | AwaitResult | NeedsApproval | Close


class CallKey(NamedTuple):
    """Equal for calls that a tool cannot tell apart."""

    tool: str
    arguments: str


def same_call_key(call: ToolCall) -> CallKey:
    """What ``call`` asks for, however its arguments are written: white space, the order of keys, escapes and 1.0 for 1
    make no other call. Text that is no JSON, which no tool runs, is itself. Arguments are checked strictly, so that
    ``"5"`` and 5 are two calls; approvals are of the text as it was received."""
    text = call.arguments if call.arguments.strip() else "{}"
    try:
        read = json.loads(text, parse_float=_number)
        return CallKey(call.tool, json.dumps(read, sort_keys=True, separators=(",", ":")))
    except (ValueError, RecursionError):
        return CallKey(call.tool, text)


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def judge(call: OpenCall, tools: Mapping[str, ToolTraits], unresolved: Collection[CallKey]) -> Judgement:
    """What is to be done with ``call``. ``unresolved`` are the calls whose outcome is unknown."""
    traits = tools.get(call.call.tool)
    if call.started and not call.deferred:
        return _judge_started(call, traits)
    if call.closed_off:
        return _judge_closed_off(call, traits)
    if call.deferred:
        return AwaitResult()
    if traits is None:
        return _close(call, ToolOutcome.ERROR, no_such_tool(call.call.tool, tools), left_open=False)
    if call.approval is not None and call.approval.state is not ApprovalState.APPROVED:
        return _judge_unapproved(call, call.approval.state, comment=call.approval.comment)
    return _judge_runnable(call, traits, unresolved)


def _judge_closed_off(call: OpenCall, traits: ToolTraits | None) -> Judgement:
    """Not run any more. Whether it had begun is known of ``once``, of what was deferred, and of what nobody approved;
    other effects leave no trace before their result. ``started`` is also a transactional call that was deferred."""
    if call.started:
        return _close(call, ToolOutcome.UNKNOWN, UNKNOWN)
    unapproved = call.approval is not None and call.approval.state is not ApprovalState.APPROVED
    if not call.deferred and (unapproved or (traits is not None and traits.once)):
        return _close(call, ToolOutcome.INTERRUPTED, NOT_BEGUN)
    harmless = traits is not None and traits.leaves_nothing(deferred=call.deferred)
    return _close(call, ToolOutcome.INTERRUPTED, interrupted(begun=call.deferred, harmless=harmless))


def _judge_runnable(call: OpenCall, traits: ToolTraits, unresolved: Collection[CallKey]) -> Judgement:
    if call.orphaned >= DEADLY:
        return _close(call, ToolOutcome.ERROR, CRASHED)
    may_repeat = bool(unresolved) and traits.guards_repetition and call.approval is None
    return NeedsApproval() if may_repeat and same_call_key(call.call) in unresolved else Run()


def _judge_started(call: OpenCall, traits: ToolTraits | None) -> Judgement:
    """A ``once`` call that has begun: only its tool can tell what became of it."""
    if traits is None:
        return _close(call, ToolOutcome.UNKNOWN, GONE)
    if traits.reconciles:
        return Reconcile()
    return _close(call, ToolOutcome.UNKNOWN, UNKNOWN)


def _judge_unapproved(call: OpenCall, state: ApprovalState, *, comment: str | None) -> Judgement:
    match state:
        case ApprovalState.PENDING:
            return AwaitApproval()
        case ApprovalState.REJECTED:
            return _close(call, ToolOutcome.DENIED, f"{REJECTED} {comment or ''}".rstrip(), left_open=False)
        case ApprovalState.EXPIRED:
            return _close(call, ToolOutcome.DENIED, EXPIRED, left_open=False)
        case ApprovalState.OBSOLETE | ApprovalState.APPROVED:
            return _close(call, ToolOutcome.DENIED, OBSOLETE, left_open=False)
        case _:
            assert_never(state)


def _close(call: OpenCall, outcome: ToolOutcome, content: str, *, left_open: bool = True) -> Close:
    return Close(ToolResult(call.call.call_id, call.call.tool, content, outcome), left_open)


def unresolved_unknowns(transcript: Transcript) -> frozenset[CallKey]:
    """The calls whose outcome is unknown, and which no later call like them has settled by ending well."""
    unresolved: set[CallKey] = set()
    for turn in transcript.turns:
        for call, result in zip(turn.calls, turn.results, strict=True):
            if result is None:
                continue
            if result.outcome is ToolOutcome.UNKNOWN:
                unresolved.add(same_call_key(call))
            elif unresolved and result.outcome is ToolOutcome.OK:
                unresolved.discard(same_call_key(call))
    return frozenset(unresolved)


# --- the words that a model reads; the same every time --------------------------------------------------------------

MOST_OF_A_NAME: Final = 64
"""Characters that the name of a tool has at most; of a longer one, which a model has invented, the rest is cut."""

CUT_OFF: Final = "this call was started, and was cut off before it could report."


def unknown(why: str = CUT_OFF) -> str:
    """What a model reads of a call of which nobody knows whether it had its effect."""
    why = why if why.endswith((".", "!", "?")) else f"{why}."
    return (
        f"The outcome is unknown: {why} The call may or may not have had its effect. Assume neither; find out before "
        f"you rely on it or repeat it."
    )


UNKNOWN: Final = unknown()
GONE: Final = unknown("this call was started, was cut off before it could report, and its tool is no longer available.")
NOT_BEGUN: Final = "Not run: the run was interrupted before this call began."
CRASHED: Final = "Crashed the worker: the process died twice while this call was running. It is not tried again."
REJECTED: Final = "Not run: a person rejected this call."
EXPIRED: Final = "Not run: nobody decided about this call in time."
OBSOLETE: Final = "Not run: the request for approval became obsolete before anybody decided."


def interrupted(*, begun: bool, harmless: bool) -> str:
    """What a model reads of a call that has no result, since the run was interrupted. ``begun``: for certain;
    ``harmless``: it had no lasting effect, for certain."""
    effect = (
        "It had no lasting effect."
        if harmless
        else "It may have had its effect: find out before you rely on it or repeat it."
    )
    return f"Interrupted: this call {'had' if begun else 'may have'} begun, and has no result. {effect}"


def no_such_tool(name: str, tools: Collection[str]) -> str:
    """What a model reads that called a tool which does not exist."""
    return f"There is no tool {short_name(name)!r}. The tools are: {', '.join(sorted(tools)) or 'none'}."


def short_name(name: str) -> str:
    """``name`` as it is kept: one that is too long for a tool ends in a sign that no tool's name has."""
    return name if len(name) <= MOST_OF_A_NAME else f"{name[:MOST_OF_A_NAME]}…"


def with_short_names(content: Content) -> Content:
    """``content`` with the names of its calls as they are kept."""
    return tuple(
        replace(block, tool=short_name(block.tool))
        if isinstance(block, ToolCall) and len(block.tool) > MOST_OF_A_NAME
        else block
        for block in content
    )
