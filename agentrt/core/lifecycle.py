"""The transition table: what may happen to a session in which status, and where it stands afterwards.

The database's functions and statements hold the rules; a test runs every pair of status and event against them, and
compares with this table. What is not in the table is refused and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentrt.core.session import Status


class Event(StrEnum):
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
    """``when`` tells several transitions of one status and event apart; empty: always. ``before`` is None at create."""

    before: Status | None
    event: Event
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


def _stay(event: Event, by: Actor, *statuses: Status, when: str = "") -> tuple[Transition, ...]:
    return tuple(Transition(status, event, status, by, when) for status in statuses)


def _ending(event: Event, after: Status) -> tuple[Transition, ...]:
    return (
        Transition(_R, event, after, Actor.OWNER, "none is left"),
        Transition(_R, event, _Q, Actor.OWNER, _QUEUED_LEFT, new_run=True),
    )


def _crash(event: Event, by: Actor) -> tuple[Transition, ...]:
    return (
        Transition(_R, event, _Q, by, "an attempt is left"),
        Transition(_R, event, Status.FAILED, by, _EXHAUSTED),
        Transition(_R, event, _Q, by, f"{_EXHAUSTED}, {_QUEUED_LEFT}", new_run=True),
    )


def _message(event: Event, *, woken_when: str, kept_when: str) -> tuple[Transition, ...]:
    return (
        *_stay(event, Actor.CLIENT, _Q, _R),
        Transition(_S, event, _Q, Actor.CLIENT, woken_when),
        *_stay(event, Actor.CLIENT, _S, when=kept_when),
        *_revival(event),
    )


def _revival(event: Event) -> tuple[Transition, ...]:
    return tuple(Transition(status, event, _Q, Actor.CLIENT, new_run=True) for status in _ENDED)


def _settling(event: Event, by: Actor) -> tuple[Transition, ...]:
    return (
        *_stay(event, by, _Q, _R),
        Transition(_S, event, _Q, by, _LAST),
        *_stay(event, by, _S, when=_NOT_LAST),
    )


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.CREATE, _Q, Actor.CLIENT),
    Transition(_Q, Event.CLAIM, _R, Actor.WORKER, "due"),
    Transition(_R, Event.RELEASE, _Q, Actor.OWNER),
    *_crash(Event.CRASH_RELEASE, Actor.OWNER),
    *_crash(Event.REAP, Actor.WORKER),
    Transition(_R, Event.FORCED_RELEASE, _Q, Actor.OPERATOR),
    Transition(_R, Event.SUSPEND, _S, Actor.OWNER, "not stale"),
    *_ending(Event.COMPLETE, Status.COMPLETED),
    *_ending(Event.FAIL, Status.FAILED),
    *_message(Event.MESSAGE, woken_when=_WAITS_INPUT, kept_when=_WAITS_ELSE),
    *_message(Event.QUEUE, woken_when=_WAITS_INPUT, kept_when=_WAITS_ELSE),
    *_message(Event.INTERRUPT, woken_when=f"{_WAITS_INPUT} or approval", kept_when=_WAITS_ELSE),
    Transition(_S, Event.REJECT, _Q, Actor.CLIENT, _WAITS_INPUT),
    *_revival(Event.REJECT),
    *_settling(Event.DECISION, Actor.CLIENT),
    *_settling(Event.RESULT, Actor.CLIENT),
    *_settling(Event.EXPIRY, Actor.WORKER),
    Transition(_S, Event.RESUME, _Q, Actor.OPERATOR, "no open approvals, or forced"),
    *(Transition(status, Event.CANCEL, Status.CANCELLED, Actor.CLIENT) for status in (_Q, _R, _S)),
    Transition(Status.CANCELLED, Event.CANCEL, Status.CANCELLED, Actor.CLIENT, "nothing happens"),
    Transition(Status.FAILED, Event.RETRY, _Q, Actor.OPERATOR, new_run=True),
    Transition(Status.CANCELLED, Event.RETRY, _Q, Actor.OPERATOR, new_run=True),
    *_stay(Event.ARCHIVE, Actor.OPERATOR, *_ENDED),
)


def transitions(before: Status | None, event: Event) -> tuple[Transition, ...]:
    """What ``event`` may do to a session with status ``before``; empty: it is refused."""
    return tuple(t for t in TRANSITIONS if t.before == before and t.event == event)


def render_table() -> str:
    """The table as Markdown: one row for each event and its condition, sources with the same end together."""
    rows: dict[tuple[Event, Actor, str, str], list[str]] = {}
    for t in TRANSITIONS:
        after = "unchanged" if t.before == t.after else str(t.after) + (", a new run" if t.new_run else "")
        rows.setdefault((t.event, t.by, t.when, after), []).append(_NOTHING if t.before is None else str(t.before))
    lines = ["| event | from | when | to | by |", "|---|---|---|---|---|"]
    lines += [
        f"| {event} | {', '.join(before)} | {when} | {after} | {by} |"
        for (event, by, when, after), before in rows.items()
    ]
    return "\n".join(lines) + "\n"


def render_diagram() -> str:
    """The statuses and what leads from one to another, as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[Event]] = {}
    for t in TRANSITIONS:
        if t.before != t.after:
            events = arrows.setdefault(("[*]" if t.before is None else str(t.before), str(t.after)), [])
            if t.event not in events:
                events.append(t.event)
    lines = ["stateDiagram-v2"]
    for (before, after), events in arrows.items():
        names = [event for event in events if not event.startswith(f"{Event.MESSAGE},")]
        lines.append(f"  {before} --> {after}: {', '.join(names)}")
    return "\n".join(lines) + "\n"
