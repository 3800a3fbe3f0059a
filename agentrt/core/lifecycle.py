"""The transition table: what may happen to a session in which status, and where it stands afterwards.

The database's functions and statements hold the rules; a test runs every pair of status and trigger against them, and
compares with this table. What is not in the table is refused and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentrt.core.session import Status


class Trigger(StrEnum):
    """What can happen to a session."""

    CREATE = "create"
    CLAIM = "claim"
    RELEASE = "release"
    CRASH_RELEASE = "crash release"
    REAP = "reap"
    FORCED_RELEASE = "forced release"
    SUSPEND = "suspend"
    COMPLETE = "complete"
    FAIL = "fail"
    MESSAGE = "message"
    INTERRUPT = "message, interrupt"
    QUEUE = "message, queue"
    REJECT = "message, reject"
    DECISION = "decision"
    RESULT = "deferred result"
    EXPIRY = "expiry"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"
    ARCHIVE = "archive"


class Actor(StrEnum):
    """Who makes it happen. Only an owner's writes are fenced; the others' decide on the locked row."""

    CLIENT = "client"
    OPERATOR = "operator"
    OWNER = "owner"
    WORKER = "any worker"


@dataclass(frozen=True, slots=True)
class Transition:
    """``when`` tells those of one status and trigger apart; empty: always. ``before`` is None at create."""

    before: Status | None
    trigger: Trigger
    after: Status
    by: Actor
    when: str = ""
    new_run: bool = False


_Q, _R, _S = Status.QUEUED, Status.RUNNING, Status.SUSPENDED
_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
_QUEUED_LEFT = "a queued message is left"
_EXHAUSTED = "no attempt is left"
_NOTHING = "nothing"  # what a session that does not exist yet comes from
_WAITS_INPUT = "waits for input"
_WAITS_ELSE = "waits for something else"
_LAST = "nothing that it waits for is left"
_NOT_LAST = "something is left"


def _stay(trigger: Trigger, by: Actor, *statuses: Status, when: str = "") -> tuple[Transition, ...]:
    return tuple(Transition(status, trigger, status, by, when) for status in statuses)


def _ending(trigger: Trigger, after: Status) -> tuple[Transition, ...]:
    return (
        Transition(_R, trigger, after, Actor.OWNER, "none is left"),
        Transition(_R, trigger, _Q, Actor.OWNER, _QUEUED_LEFT, new_run=True),
    )


def _crash(trigger: Trigger, by: Actor) -> tuple[Transition, ...]:
    return (
        Transition(_R, trigger, _Q, by, "an attempt is left"),
        Transition(_R, trigger, Status.FAILED, by, _EXHAUSTED),
        Transition(_R, trigger, _Q, by, f"{_EXHAUSTED}, {_QUEUED_LEFT}", new_run=True),
    )


def _message(trigger: Trigger, *, woken_when: str, kept_when: str) -> tuple[Transition, ...]:
    return (
        *_stay(trigger, Actor.CLIENT, _Q, _R),
        Transition(_S, trigger, _Q, Actor.CLIENT, woken_when),
        *_stay(trigger, Actor.CLIENT, _S, when=kept_when),
        *_revival(trigger),
    )


def _revival(trigger: Trigger) -> tuple[Transition, ...]:
    return tuple(Transition(status, trigger, _Q, Actor.CLIENT, new_run=True) for status in _ENDED)


def _settling(trigger: Trigger, by: Actor) -> tuple[Transition, ...]:
    return (
        *_stay(trigger, by, _Q, _R),
        Transition(_S, trigger, _Q, by, _LAST),
        *_stay(trigger, by, _S, when=_NOT_LAST),
    )


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Trigger.CREATE, _Q, Actor.CLIENT),
    Transition(_Q, Trigger.CLAIM, _R, Actor.WORKER, "due"),
    Transition(_R, Trigger.RELEASE, _Q, Actor.OWNER),
    *_crash(Trigger.CRASH_RELEASE, Actor.OWNER),
    *_crash(Trigger.REAP, Actor.WORKER),
    Transition(_R, Trigger.FORCED_RELEASE, _Q, Actor.OPERATOR),
    Transition(_R, Trigger.SUSPEND, _S, Actor.OWNER, "not stale"),
    *_ending(Trigger.COMPLETE, Status.COMPLETED),
    *_ending(Trigger.FAIL, Status.FAILED),
    *_message(Trigger.MESSAGE, woken_when=_WAITS_INPUT, kept_when=_WAITS_ELSE),
    *_message(Trigger.QUEUE, woken_when=_WAITS_INPUT, kept_when=_WAITS_ELSE),
    *_message(Trigger.INTERRUPT, woken_when=f"{_WAITS_INPUT} or approval", kept_when=_WAITS_ELSE),
    Transition(_S, Trigger.REJECT, _Q, Actor.CLIENT, _WAITS_INPUT),
    *_revival(Trigger.REJECT),
    *_settling(Trigger.DECISION, Actor.CLIENT),
    *_settling(Trigger.RESULT, Actor.CLIENT),
    *_settling(Trigger.EXPIRY, Actor.WORKER),
    Transition(_S, Trigger.RESUME, _Q, Actor.OPERATOR, "no open approvals, or forced"),
    *(Transition(status, Trigger.CANCEL, Status.CANCELLED, Actor.CLIENT) for status in (_Q, _R, _S)),
    Transition(Status.CANCELLED, Trigger.CANCEL, Status.CANCELLED, Actor.CLIENT, "nothing happens"),
    Transition(Status.FAILED, Trigger.RETRY, _Q, Actor.OPERATOR, new_run=True),
    Transition(Status.CANCELLED, Trigger.RETRY, _Q, Actor.OPERATOR, new_run=True),
    *_stay(Trigger.ARCHIVE, Actor.OPERATOR, *_ENDED),
)


def transitions(before: Status | None, trigger: Trigger) -> tuple[Transition, ...]:
    """What ``trigger`` may do to a session with status ``before``; empty: it is refused."""
    return tuple(t for t in TRANSITIONS if t.before == before and t.trigger == trigger)


def render_table() -> str:
    """The table as Markdown: one row for each trigger and its condition, sources with the same end together."""
    rows: dict[tuple[Trigger, Actor, str, str], list[str]] = {}
    for t in TRANSITIONS:
        after = "unchanged" if t.before == t.after else str(t.after) + (", a new run" if t.new_run else "")
        rows.setdefault((t.trigger, t.by, t.when, after), []).append(_NOTHING if t.before is None else str(t.before))
    lines = ["| trigger | from | when | to | by |", "|---|---|---|---|---|"]
    lines += [
        f"| {trigger} | {', '.join(before)} | {when} | {after} | {by} |"
        for (trigger, by, when, after), before in rows.items()
    ]
    return "\n".join(lines) + "\n"


def render_diagram() -> str:
    """The statuses and what leads from one to another, as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[Trigger]] = {}
    for t in TRANSITIONS:
        if t.before != t.after:
            triggers = arrows.setdefault(("[*]" if t.before is None else str(t.before), str(t.after)), [])
            if t.trigger not in triggers:
                triggers.append(t.trigger)
    lines = ["stateDiagram-v2"]
    for (before, after), triggers in arrows.items():
        names = [trigger for trigger in triggers if not trigger.startswith(f"{Trigger.MESSAGE},")]
        lines.append(f"  {before} --> {after}: {', '.join(names)}")
    return "\n".join(lines) + "\n"
