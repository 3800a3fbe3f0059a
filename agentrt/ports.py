"""What the worker and the client need from the outside, as protocols; ``app`` plugs the adapters in.

Adapters map foreign errors to ``agentrt.core.errors`` at their edge. Every call has a time limit of its own and raises
``DatabaseUnavailable`` when it runs out: the outcome of a write is then unknown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from agentrt.core.budget import counted_cost, counted_usage
from agentrt.core.content import Content
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import Event
from agentrt.core.journal import Entry, StopReason, Usage
from agentrt.core.session import Seq, Session, SessionId, Status, WorkerId
from agentrt.core.stored import (
    Answer,
    Claimed,
    Exhausted,
    Grant,
    NewEntry,
    Offer,
    QueueDepth,
    Renewal,
    Swept,
    WorkerInfo,
    WorkerRow,
    WorkerState,
    Write,
    Written,
)
from agentrt.core.transcript import Message, ModelIdentity

__all__ = [
    "Answer",
    "Claimed",
    "ClientStore",
    "EventSink",
    "Exhausted",
    "Grant",
    "KeeperStore",
    "Model",
    "ModelAnswer",
    "ModelError",
    "ModelErrorClass",
    "ModelFactory",
    "ModelLimits",
    "ModelRequest",
    "NewEntry",
    "Offer",
    "QueueDepth",
    "ReaperStore",
    "Renewal",
    "SessionStore",
    "StatementTimeout",
    "StoreFactory",
    "Swept",
    "ToolSpec",
    "ToolTransaction",
    "ToolTransactionBroken",
    "ToolTransactionConflict",
    "UnstorableBatch",
    "WakeupHandlers",
    "Wakeups",
    "WorkerInfo",
    "WorkerRow",
    "WorkerState",
    "Write",
    "Written",
]


# --- the worker's side of the store -----------------------------------------------------------------------------


class KeeperStore(Protocol):
    """One connection of the keeper's own, used in the keeper's thread and loop. Broken: close it, connect anew."""

    async def lock_liveness(self) -> int | None:
        """Draw a fresh random key and take the session-level advisory lock on it; None where such locks do not work
        through this URL (proved by a round trip from a second connection)."""

    async def register(self, worker: WorkerInfo, liveness_key: int | None) -> None:
        """Insert the worker's row; the lease starts to count in the database."""

    async def renew(self, worker: WorkerInfo, liveness_key: int | None, *, draining: bool) -> Renewal:
        """Extend the lease by ``lease_seconds`` from now (database clock, after the row lock); list what is owned.
        ``worker.agents`` are those that it offers just now."""

    async def stop(self, worker_id: WorkerId) -> None:
        """Mark the worker stopped: it holds nothing any more."""

    async def close(self) -> None: ...


class ReaperStore(Protocol):
    """One connection of the reaper's own, in the keeper's thread and loop."""

    async def mark(self, worker_id: WorkerId) -> Mapping[WorkerId, str]:
        """Declare dead who is dead, and name them; only when ``worker_id`` itself has renewed without a gap for two
        heartbeats."""

    async def sweep(self, worker_id: WorkerId) -> Swept:
        """Free the sessions of owners that are not alive, set ``due``, expire approvals, prune; idempotent."""

    async def close(self) -> None: ...


class ToolTransaction(Protocol):
    """A transactional tool's transaction: opened at first use of ``connection``."""

    async def connection(self) -> Any:
        """The driver's connection (asyncpg), with the transaction begun."""

    async def commit(self, write: Write) -> Written:
        """Lock the session row, check fence and ``owner_writes``, append, commit; rolled back unless ``WRITTEN``.
        Raises ``ToolTransactionBroken`` when the tool ended the transaction itself."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether what a tool raised is a serialization failure or a deadlock: roll back and run the tool again."""

    async def rollback(self) -> None: ...


class ToolTransactionBroken(Exception):
    """The tool committed, rolled back or began a transaction on ``ctx.connection`` itself."""


class ToolTransactionConflict(Exception):
    """Serialization failure or deadlock (40001, 40P01): nothing was written, run the tool again."""


class Wakeups(Protocol):
    """One LISTEN connection, kept alive by itself; a notification is a hint, polling is the truth."""

    async def run(self) -> None:
        """Listen until cancelled; reconnects with jittered back-off and calls ``reconnected`` after each."""

    @property
    def listening(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeupHandlers:
    """Called in the main loop. None instead of names or ids means "look at everything"."""

    ready: Callable[[Sequence[str] | None], None]
    control: Callable[[Sequence[SessionId] | None], None]
    reconnected: Callable[[str], None]
    unavailable: Callable[[str], None] = field(default=lambda _: None)
    """Told once, and why, when LISTEN does not work through this URL: polling goes on alone."""


class SessionStore(Protocol):
    """The main loop's store. Connections: 1–2 for commits, one side connection, one to claim and read, one listener,
    plus those of transactional tools."""

    async def claim(self, worker_id: WorkerId, offer: Offer, *, limit: int, fragile_limit: int) -> Claimed:
        """Claim up to ``limit`` sessions, at most ``fragile_limit`` of them with attempt >= 3."""

    async def read(self, session_id: SessionId, after_seq: Seq) -> Sequence[Entry]:
        """All entries behind ``after_seq``, in order; 0: from the last compaction's cover on."""

    async def head(self, session_id: SessionId) -> Session | None: ...

    async def append(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        """One group commit of writes without an ending, answers in order. ``side``: wait for the row locks up to
        ``lock_timeout`` on the side connection instead of answering ``BUSY``. Raises ``DatabaseUnavailable``
        (unknown outcome), ``StatementTimeout`` or ``UnstorableBatch``."""

    async def end(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        """Like ``append``, for writes with an ending."""

    async def wrote(self, session_id: SessionId, dedup_key: str) -> bool:
        """Whether an entry with this key exists: asked once when ``LOST`` follows an unknown outcome."""

    async def withdraw_agent(self, worker_id: WorkerId, agent: str, *, queue: str) -> bool:
        """Take ``agent`` out of this worker's row, until a renewal names it again; returns whether another living
        worker offers it in ``queue``. Of workers that withdraw at the same time the last one is told that none does."""

    def tool_transaction(self, worker_id: WorkerId) -> AbstractAsyncContextManager[ToolTransaction]: ...

    def wakeups(self, handlers: WakeupHandlers) -> Wakeups: ...

    async def close(self) -> None: ...


class StatementTimeout(DatabaseUnavailable):
    """SQLSTATE 57014: the server gave the statement up after its time limit; nothing was written."""


class UnstorableBatch(Exception):
    """SQLSTATE class 22, 23 or 54: one write of the batch cannot be stored; write them one by one."""


class StoreFactory(Protocol):
    """Opens the stores; each in the loop (and thread) that calls it."""

    async def sessions(self) -> SessionStore: ...

    async def keeper(self) -> KeeperStore: ...

    async def reaper(self) -> ReaperStore: ...


# --- the client's side ------------------------------------------------------------------------------------------


class ClientStore(Protocol):
    """The SQL functions, one method each; options are the functions' own (unknown keys are refused by name)."""

    async def create_session(self, agent: str, message: str | None, options: Mapping[str, Any]) -> SessionId: ...

    async def send_message(self, session_id: SessionId, message: str | None, options: Mapping[str, Any]) -> Seq: ...

    async def cancel_session(self, session_id: SessionId, options: Mapping[str, Any]) -> Status: ...

    async def command(self, name: str, session_id: SessionId, options: Mapping[str, Any]) -> Status:
        """``resume_session``, ``retry_session``, ``archive_session`` or ``release_session``."""

    async def decide_approval(
        self, approval_id: UUID, verdict: str, *, reviewer: str, options: Mapping[str, Any]
    ) -> Status: ...

    async def complete_tool_call(
        self, session_id: SessionId, call_id: str, *, result: str, options: Mapping[str, Any]
    ) -> Status: ...

    async def get(self, session_id: SessionId) -> Session:
        """Raises ``NotFound``."""

    async def list(self, filters: Mapping[str, Any], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Rows of the view ``session_list``, newest first; filters: status, agent, queue, tenant, labels, reason
        (of a suspension), before (only what stands behind this session)."""

    async def read_journal(self, session_id: SessionId, after_seq: int, *, max_entries: int) -> Sequence[Entry]: ...

    def follow(self, session_id: SessionId, after_seq: int) -> AsyncGenerator[Entry, None]:
        """Entries in order, each once, as they are committed; across takeovers and reconnects; until closed."""

    async def workers(self) -> Sequence[WorkerRow]: ...

    async def pending_approvals(self, session_id: SessionId | None, *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Rows of the view ``pending_approvals``, oldest first; of one session or of all."""

    async def prune_sessions(self, older_than_seconds: float, *, max_sessions: int) -> int:
        """Delete up to ``max_sessions`` sessions that ended longer ago than this; the number of deleted ones."""

    async def queue_depths(self) -> Sequence[QueueDepth]:
        """What is due and waits, per queue and agent; cheap enough for every few seconds."""

    async def close(self) -> None: ...


# --- the model --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model is told of a tool; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Time limits of one call, in seconds: between bytes, to the first event, of the whole call."""

    idle_seconds: float = 120.0
    first_event_seconds: float = 600.0
    call_seconds: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One call. ``messages`` is the provider-valid view; ``settings`` are the adapter's own, such as temperature."""

    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    limits: ModelLimits = ModelLimits()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A whole answer: the provider itself said that (and why) it ended. Call ids are still empty. Odd figures are made
    such that they count: see ``counted_usage`` and ``counted_cost``."""

    content: Content
    stop_reason: StopReason
    model: str
    usage: Usage = Usage()
    cost: float | None = None
    provider: Mapping[str, Any] | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "usage", counted_usage(self.usage))
        object.__setattr__(self, "cost", counted_cost(self.cost))


class ModelErrorClass(StrEnum):
    """How an error of a model call is dealt with: as the README's table of classes says."""

    TRANSIENT = "transient"
    REJECTED = "rejected"
    QUOTA = "quota"
    CONFIGURATION = "configuration"


class ModelError(Exception):
    """A call that gave no answer. ``message`` holds the provider's words; ``retry_after_seconds`` what it asked for
    (already parsed and clamped); ``usage`` and ``cost`` what the call burnt all the same. ``unreadable``: the provider
    answered, and nobody can make anything of it."""

    def __init__(
        self,
        error_class: ModelErrorClass,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        usage: Usage | None = None,
        cost: float | None = None,
        unreadable: bool = False,
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.usage = None if usage is None else counted_usage(usage)
        self.cost = counted_cost(cost)
        self.unreadable = unreadable


class Model(Protocol):
    """One model of one provider. Implementations are cached and shared by all slots."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def context_window(self) -> int | None:
        """In tokens; None when unknown."""

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        """Stream one answer; ``on_text`` gets each piece of visible text. Raises ``ModelError``; a cancelled call
        closes its socket."""


class ModelFactory(Protocol):
    """Gives the model for ``"provider:name"``; raises ``ConfigurationError`` naming what is missing."""

    def __call__(self, name: str) -> Model: ...


# --- observers --------------------------------------------------------------------------------------------------


class EventSink(Protocol):
    """Receives every event, in any thread; never blocks, never raises."""

    def __call__(self, event: Event, /) -> None: ...
