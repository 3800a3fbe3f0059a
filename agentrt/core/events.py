"""What observers are told. Events are not kept: the journal is. ``telemetry`` turns each into a log line and metrics.

No event carries message contents, tool arguments or keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.core.session import ReleaseReason, SessionId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    worker_id: WorkerId
    name: str
    slots: int
    agents: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    worker_id: WorkerId
    reason: str
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    worker_id: WorkerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStalled(Event):
    """The main loop made no progress; ``stack`` is where it stands."""

    worker_id: WorkerId
    seconds: float
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAborted(Event):
    """The process ends at once: something could not be stopped before others may own its sessions."""

    worker_id: WorkerId
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReaped(Event):
    """This worker declared another dead, whose id and name these are."""

    worker_id: WorkerId
    reaped: WorkerId
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapFailed(Event):
    """This worker could not look for dead ones, or not free their sessions; it tries again."""

    worker_id: WorkerId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfFenced(Event):
    """This worker stops everything since it can no longer prove its lease."""

    worker_id: WorkerId
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSucceeded(Event):
    worker_id: WorkerId
    seconds: float
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(Event):
    worker_id: WorkerId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsChanged(Event):
    free: int
    busy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFinished(Event):
    seconds: float
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFailed(Event):
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerReconnected(Event):
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLagged(Event):
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFinished(Event):
    seconds: float
    sessions: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed(Event):
    error: str
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUnavailable(Event):
    """This worker does not offer the agent: at start, or for a while after a configuration error."""

    agent: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningRaised(Event):
    """Something that an operator should know once: a fallback, an unknown variable, an undeclared tool."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent(Event):
    """Something happened to one session in this worker."""

    session_id: SessionId
    agent: str
    queue: str
    run: int
    attempt: int
    fencing_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClaimed(SessionEvent):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResumed(SessionEvent):
    """A takeover closed open calls."""

    repaired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReleased(SessionEvent):
    """``error`` says more than ``reason``, for people."""

    reason: ReleaseReason
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSuspended(SessionEvent):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(SessionEvent):
    """``status`` is the run's end (completed, failed); ``code`` is empty unless it failed."""

    status: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost(SessionEvent):
    """The lease of this session is gone (cancelled, reaped, forced release): the log's ``lease.lost``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCrashed(SessionEvent):
    """The runner met an exception that it did not expect; ``traceback`` is for the log only."""

    error: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(SessionEvent):
    model: str
    seconds: float
    stop_reason: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetried(SessionEvent):
    model: str
    error_class: str
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCodeFailed(SessionEvent):
    """A function that belongs to a tool raised, or returned what it must not; ``what`` is its name in ``tool``, such
    as ``reconcile``. ``traceback`` is for the log only."""

    tool: str
    what: str
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(SessionEvent):
    """``tool`` is ``unknown`` when the agent has no such tool: the journal has the name that the model gave."""

    tool: str
    tool_call_id: str
    outcome: str
    seconds: float
    error: str = ""
    traceback: str = ""
