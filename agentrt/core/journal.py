"""The journal's entries (public, ``schema_version`` 1); ``codec`` gives their JSON form.

An entry's ``data`` is one frozen dataclass of the union ``EntryData``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final
from uuid import UUID

from agentrt.core.content import Content
from agentrt.core.session import CallId, FencingToken, Seq, WorkerId

SCHEMA_VERSION = 1
CALL_POSITIONS: Final = 0x1000
"""How many blocks of an answer have ids of their own, if they are calls."""


def call_id(seq: int, position: int) -> CallId:
    """The id of the tool call at ``position`` (index in ``content``, from 0) of the answer at ``seq``.

    Nine characters of ``[0-9a-f]``, unique in a session up to 16.7 million entries of 4,096 blocks; the database's
    ``agentrt._call_id`` gives the same. Nine alphanumeric characters is the strictest form that a provider demands
    (Mistral's chat completions).
    """
    return CallId(f"{seq % 0x1000000:06x}{position % CALL_POSITIONS:03x}")


class StopReason(StrEnum):
    """Why the model stopped. ``interrupted`` is ours: the text that a user had seen when they interrupted. ``error``
    and ``aborted`` are only met in imported journals."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    ABORTED = "aborted"


class ToolOutcome(StrEnum):
    """How a tool call ended. ``unknown``: it may or may not have had its effect."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"
    DENIED = "denied"
    NOT_RUN = "not_run"


class Effect(StrEnum):
    """What running a tool twice would mean; see ``agentrt.tool``."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
    TRANSACTIONAL = "transactional"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. ``input_tokens`` includes cache reads and writes."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SessionCreated:
    type: ClassVar[str] = "session_created"
    agent: str = ""


@dataclass(frozen=True, slots=True)
class SessionClaimed:
    """``worker`` is the worker's name, for people; ``agent_version`` a hash of what the agent is made of."""

    type: ClassVar[str] = "session_claimed"
    worker: str = ""
    agent_version: str = ""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    type: ClassVar[str] = "session_resumed"
    repaired: tuple[CallId, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionReleased:
    type: ClassVar[str] = "session_released"
    reason: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SessionOrphaned:
    """The owner was declared dead; the entry's row bears the new token."""

    type: ClassVar[str] = "session_orphaned"
    worker_id: UUID | None = None
    worker: str = ""


@dataclass(frozen=True, slots=True)
class SessionSuspended:
    type: ClassVar[str] = "session_suspended"
    suspension: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionWoken:
    type: ClassVar[str] = "session_woken"
    by: str = ""


@dataclass(frozen=True, slots=True)
class SessionCompleted:
    type: ClassVar[str] = "session_completed"
    outcome: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionFailed:
    type: ClassVar[str] = "session_failed"
    outcome: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionCancelled:
    """``dropped`` lists the seqs of the queued messages that the cancel dropped."""

    type: ClassVar[str] = "session_cancelled"
    reason: str | None = None
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionRetried:
    type: ClassVar[str] = "session_retried"


@dataclass(frozen=True, slots=True)
class UserMessage:
    """``message_seq`` is set when a ``message_queued`` of that seq was promoted. ``when_running`` is ``interrupt``
    when what was in flight was to be cancelled, else ``steer``."""

    type: ClassVar[str] = "user_message"
    content: Content = ()
    request_id: str | None = None
    message_seq: Seq | None = None
    when_running: str = "steer"


@dataclass(frozen=True, slots=True)
class MessageQueued:
    type: ClassVar[str] = "message_queued"
    content: Content = ()
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One whole answer. ``seen_seq`` is the highest user-message seq that its request held; ``provider`` is
    ``{"format", "provider", "model", ...}``, opaque but for these three (see ``ModelIdentity``)."""

    type: ClassVar[str] = "assistant_message"
    content: Content = ()
    model: str = ""
    stop_reason: StopReason = StopReason.STOP
    seen_seq: Seq = Seq(0)
    usage: Usage = Usage()
    cost: float | None = None
    provider: Mapping[str, Any] | None = None
    message: str | None = None
    """The provider's words, for a refusal or an error."""


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Committed before a ``once`` tool runs; and, with ``deferred``, after a tool said that its result comes from
    outside (``complete_tool_call``), within ``expires_seconds`` if given."""

    type: ClassVar[str] = "tool_started"
    call_id: CallId = CallId("")
    tool: str = ""
    effect: Effect = Effect.ONCE
    deferred: bool | None = None
    expires_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """``content`` is the text that the model reads."""

    type: ClassVar[str] = "tool_result"
    call_id: CallId = CallId("")
    tool: str = ""
    content: str = ""
    outcome: ToolOutcome = ToolOutcome.OK
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """In a write together with its answer ``position`` stands in for ``call_id``, which the database fills in."""

    type: ClassVar[str] = "approval_requested"
    approval_id: UUID | None = None
    call_id: CallId | None = None
    position: int | None = None
    tool: str = ""
    arguments: str = ""
    arguments_hash: str = ""
    reason: str | None = None
    expires_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """``verdict`` is ``approved``, ``rejected``, ``expired`` or ``obsolete``."""

    type: ClassVar[str] = "approval_decided"
    approval_id: UUID | None = None
    call_id: CallId = CallId("")
    verdict: str = ""
    reviewer: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRetried:
    """A model call that gave no answer; ``error_class`` is ``class`` in JSON."""

    type: ClassVar[str] = "model_retried"
    error_class: str = ""
    message: str = ""
    delay_seconds: float = 0.0
    usage: Usage | None = None
    cost: float | None = None

    @property
    def rejected(self) -> bool:
        """The request was refused as it was: it is sent without thinking and item ids from here on."""
        return self.error_class == "rejected"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The entries from ``covers_from`` to ``covers_to`` (both included) are represented by ``summary``."""

    type: ClassVar[str] = "compaction"
    summary: str = ""
    covers_from: Seq = Seq(1)
    covers_to: Seq = Seq(0)
    usage: Usage | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """An entry that this version cannot take; ``problem`` says why."""

    type: ClassVar[str] = "unknown"
    name: str
    raw: Any
    problem: str


EntryData = (
    SessionCreated
    | SessionClaimed
    | SessionResumed
    | SessionReleased
    | SessionOrphaned
    | SessionSuspended
    | SessionWoken
    | SessionCompleted
    | SessionFailed
    | SessionCancelled
    | SessionRetried
    | UserMessage
    | MessageQueued
    | AssistantMessage
    | ToolStarted
    | ToolResult
    | ApprovalRequested
    | ApprovalDecided
    | ModelRetried
    | Compaction
    | Unknown
)

TERMINAL = (SessionCompleted, SessionFailed, SessionCancelled)


def stored_type(data: EntryData) -> str:
    """The type as it is stored, also of an entry that this version cannot take."""
    return data.name if isinstance(data, Unknown) else data.type


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the journal. ``worker_id`` is None for what was written for a client."""

    seq: Seq
    run: int = 1
    attempt: int = 0
    fencing_token: FencingToken = FencingToken(0)
    worker_id: WorkerId | None = None
    data: EntryData
    created_at: datetime | None = None
    dedup_key: str | None = None

    @property
    def type(self) -> str:
        """Of its data, as it is stored."""
        return stored_type(self.data)
