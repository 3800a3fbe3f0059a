"""The head of a session, and how a run can end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NewType
from uuid import UUID

SessionId = NewType("SessionId", UUID)
WorkerId = NewType("WorkerId", UUID)
FencingToken = NewType("FencingToken", int)
Seq = NewType("Seq", int)
CallId = NewType("CallId", str)


FRAGILE_ATTEMPT: Final = 3


class Status(StrEnum):
    """Where a session stands; the last three are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Nothing runs, and only a new message or a retry starts a new run."""
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class SuspendReason(StrEnum):
    """What a suspended session waits for."""

    INPUT = "input"
    APPROVAL = "approval"
    EXTERNAL = "external"
    BLOCKED = "blocked"
    BUDGET = "budget"


class ReleaseReason(StrEnum):
    """Why a session went back to the queue; a metric's label, so there are no others."""

    DRAIN = "drain"
    BACK_OFF = "back-off"
    MODEL_UNAVAILABLE = "model unavailable"
    NO_SUCH_AGENT = "no such agent"
    FENCED = "fenced"
    NOT_RUN = "not run"
    FORCED = "forced"
    CRASH = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session's row as it was read or claimed. Tokens and cost are those of the present run."""

    id: SessionId
    agent: str
    queue: str
    priority: int
    status: Status
    run: int
    attempt: int
    takeovers: int
    max_attempts: int
    fencing_token: FencingToken
    owner_writes: int
    lease_owner: WorkerId | None
    ready_at: datetime
    last_seq: Seq
    suspension: Mapping[str, Any] | None
    outcome: Mapping[str, Any] | None
    config: Mapping[str, Any]
    labels: Mapping[str, str]
    tenant: str | None
    parent_id: SessionId | None
    turns: int
    input_tokens: int
    output_tokens: int
    cost: Decimal
    running_seconds: float
    created_at: datetime
    finished_at: datetime | None = None
    archived_at: datetime | None = None

    @property
    def fragile(self) -> bool:
        """Whether it may be one that kills its workers; a worker holds at most one. The claim indexes say the same."""
        return self.attempt >= FRAGILE_ATTEMPT


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one session: every owner write names it and is refused when it is no longer so."""

    session_id: SessionId
    fencing_token: FencingToken


@dataclass(frozen=True, slots=True)
class Completed:
    """``outcome`` is ``{"text", "data"?, "refused"?, "truncated"?}``."""

    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """``code`` is one of ``empty_answer``, ``repeated_tool_failure``, ``agent_error`` (``attempts_exhausted`` is the
    database's own)."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """Waits without a slot. ``waits_for`` holds call ids, approval ids, or words for people."""

    reason: SuspendReason
    message: str
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """Given back unharmed; ready again after ``delay_seconds``. Costs no attempt. ``message`` is for people."""

    reason: ReleaseReason
    delay_seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """An unexpected exception in the runner: charged like a dead worker."""

    message: str


Outcome = Completed | Failed | Suspended | Released | Crashed
"""How an ownership ends, as a value."""
