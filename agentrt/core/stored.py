"""What the stores take and give, as values: workers and their leases, claims, owners' writes and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from agentrt.core.codec import encode
from agentrt.core.journal import EntryData, stored_type
from agentrt.core.session import FencingToken, Lease, Outcome, Seq, Session, SessionId, Status, WorkerId
from agentrt.core.storable import as_json, storable, storable_text, text_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker registers; ``id`` is new at every start (and after having been marked dead). ``agents`` are those
    that it offers just now: a renewal may name fewer, or more again."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    agents: tuple[str, ...]
    queues: tuple[str, ...]
    slots: int
    heartbeat_seconds: float
    lease_seconds: float


class WorkerState(StrEnum):
    """State of a worker's row; ``GONE`` when there is none."""

    ALIVE = "alive"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One session that the database says the worker owns."""

    session_id: SessionId
    fencing_token: FencingToken
    last_seq: Seq
    owner_writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Answer to a heartbeat. ``grants`` is empty unless the worker is alive or draining; ``locked``: the liveness lock
    is this connection's."""

    state: WorkerState
    locked: bool
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """A run that a reap has failed: its crash was one too many. The token is the new one."""

    session_id: SessionId
    agent: str
    queue: str
    run: int
    attempt: int
    fencing_token: FencingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one round of ``sweep`` did; ``more`` when a limit was hit and another round is due at once. ``exhausted``
    are the runs that it failed: the ``failed`` sessions, and those that a queued message has begun anew."""

    requeued: int = 0
    failed: int = 0
    due: int = 0
    expired: int = 0
    pruned: int = 0
    more: bool = False
    exhausted: tuple[Exhausted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker would run: its queues, and the version (hash) of each agent that it serves just now."""

    queues: tuple[str, ...]
    agents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Answer to a claim. ``alive`` False: this worker was marked dead; silence means nothing then. ``whole`` False: a
    part of the claim was not answered, and may have claimed more."""

    alive: bool
    sessions: tuple[Session, ...]
    whole: bool = True


class Answer(StrEnum):
    """The five answers to an owner's write."""

    WRITTEN = "written"
    ALREADY = "already"
    BUSY = "busy"
    LOST = "lost"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """An entry to be written. ``dedup_key`` is unique in the session.

    What is stored of it is made once, here: every repeat of a write sends the same bytes.
    """

    data: EntryData
    dedup_key: str | None = None
    stored: Any = field(init=False, repr=False, compare=False)
    """Its data as it is stored, in JSON's values."""
    json: str = field(init=False, repr=False, compare=False)
    """All of it: an object with ``type``, ``data`` and perhaps ``dedup_key``."""

    def __post_init__(self) -> None:
        stored = storable(encode(self.data))
        whole = {"type": storable_text(stored_type(self.data)), "data": stored}
        if self.dedup_key is not None:
            whole["dedup_key"] = storable_text(self.dedup_key)
        object.__setattr__(self, "stored", stored)
        object.__setattr__(self, "json", as_json(whole))

    @property
    def size(self) -> int:
        """How many bytes it has as JSON."""
        return text_bytes(self.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One owner write: entries, and an ending or none. Repeated byte for byte when its outcome is unknown.

    ``owner_writes`` is the count before this write. ``planned_from`` is the ``last_seq`` that an ending was planned
    from; suspend and complete are ``stale`` when the session has moved on.
    """

    lease: Lease
    owner_writes: int
    entries: tuple[NewEntry, ...]
    ending: Outcome | None = None
    planned_from: Seq = Seq(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of a ``Write``. Ours are the last ``len(entries)`` (plus the ending's own) up to ``last_seq``; a gap
    before them is what clients wrote. ``status`` is the session's afterwards. ``exhausted``: the crash that was written
    was one too many, and the database has failed the run (which a queued message may have followed at once)."""

    answer: Answer
    last_seq: Seq = Seq(0)
    status: Status | None = None
    exhausted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A row of the view ``worker_list``. ``expired``: its lease has, and nobody has declared it dead yet."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    agents: tuple[str, ...]
    queues: tuple[str, ...]
    slots: int
    busy: int
    state: str
    started_at: datetime
    renewed_at: datetime
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Sessions of one agent in one queue that are due and wait for a worker; the oldest since ``oldest_seconds``."""

    queue: str
    agent: str
    waiting: int
    oldest_seconds: float
