"""What observers are told of the end of an ownership: of a committed one by the committer, which alone knows what was
written; of a crash by whoever met it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from agentrt.core.events import SessionCrashed, SessionEnded, SessionReleased, SessionSuspended
from agentrt.core.session import Completed, Crashed, Failed, Outcome, Released, ReleaseReason, Suspended
from agentrt.ports import EventSink
from agentrt.worker.holding import Holding, event_keys
from agentrt.worker.wording import error_text, trace_text

EXHAUSTED: Final = "attempts_exhausted"
"""The code with which the database fails a run that has crashed too often."""


def tell_end(emit: EventSink, holding: Holding, outcome: Outcome, *, exhausted: bool) -> None:
    """``outcome`` is committed. ``exhausted``: the crash was one too many, and has failed the run."""
    keys = event_keys(holding)
    match outcome:
        case Completed():
            emit(SessionEnded(**keys, status="completed"))
        case Failed():
            emit(SessionEnded(**keys, status="failed", code=outcome.code))
        case Suspended():
            emit(SessionSuspended(**keys, reason=str(outcome.reason)))
        case Released():
            emit(SessionReleased(**keys, reason=outcome.reason, error=outcome.message))
        case Crashed():
            emit(SessionReleased(**keys, reason=ReleaseReason.CRASH, error=outcome.message))
            if exhausted:
                emit(SessionEnded(**keys, status="failed", code=EXHAUSTED))
        case _:
            assert_never(outcome)


def crash_of(error: Exception, holding: Holding, *, emit: EventSink, secrets: Iterable[str]) -> Crashed:
    """The ending for an exception that nobody expected, which is told. The traceback is for the log only."""
    secrets = tuple(secrets)
    words = error_text(error, secrets)
    emit(SessionCrashed(**event_keys(holding), error=words, traceback=trace_text(error, secrets)))
    return Crashed(words)
