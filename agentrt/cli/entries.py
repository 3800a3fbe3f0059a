"""The journal for people: one line per entry, and how an entry looks in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrt.cli.output import one_line
from agentrt.core.codec import encode
from agentrt.core.content import in_words
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Compaction,
    Entry,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionClaimed,
    SessionCompleted,
    SessionCreated,
    SessionFailed,
    SessionOrphaned,
    SessionReleased,
    SessionResumed,
    SessionSuspended,
    SessionWoken,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    Unknown,
    UserMessage,
)

STYLES = {
    "user_message": "green", "message_queued": "green", "assistant_message": "bold", "tool_result": "cyan",
    "session_orphaned": "red", "session_failed": "red", "model_retried": "yellow", "session_suspended": "yellow",
}  # fmt: skip


def as_json(entry: Entry) -> dict[str, Any]:
    """The entry as ``read_journal`` gives it."""
    return {
        "seq": entry.seq,
        "run": entry.run,
        "attempt": entry.attempt,
        "fencing_token": entry.fencing_token,
        "worker_id": entry.worker_id,
        "type": entry.type,
        "data": encode(entry.data),
        "created_at": entry.created_at,
    }


class EntryLines:
    """Makes lines of one session's entries; remembers the names of the workers that claimed it.

    Args:
        workers: Names by worker id, which may become more meanwhile.
    """

    def __init__(self, workers: Mapping[Any, str] | None = None) -> None:
        self._known: Mapping[Any, str] = {} if workers is None else workers
        self._claimed: dict[object, str] = {}

    def line(self, entry: Entry) -> tuple[str, str]:
        """The line and its style."""
        if isinstance(entry.data, SessionClaimed):
            self._claimed[entry.worker_id] = one_line(entry.data.worker)
        time = entry.created_at.astimezone().strftime("%H:%M:%S") if entry.created_at else "-"
        tell = _TELL.get(type(entry.data))
        what = "" if tell is None else tell(entry.data)
        text = f"{entry.seq:>4}  {time}  {self._author(entry):<14.14}  {one_line(entry.type):<18}  {one_line(what)}"
        return text, STYLES.get(entry.data.type, "dim")

    def _author(self, entry: Entry) -> str:
        if entry.worker_id is not None:
            names = (self._claimed.get(entry.worker_id), self._known.get(entry.worker_id))
            return next(filter(None, names), str(entry.worker_id)[:8])
        match entry.data:
            case ApprovalDecided(verdict="expired") | SessionWoken(by="expiry"):
                return "sweep"  # time did it; whichever worker noticed that
            case ToolResult(outcome=ToolOutcome.TIMEOUT | ToolOutcome.UNKNOWN):
                return "sweep"  # a client says ok or error
            case _:
                return "client"


def _started(data: ToolStarted) -> str:
    if not data.deferred:
        return f"{data.tool} ({data.effect})"
    limit = "no limit" if data.expires_seconds is None else f"for {data.expires_seconds:g} s at most"
    return f"{data.tool} ({data.effect}) is deferred, {limit}"


def _suspension(suspension: Mapping[str, Any]) -> str:
    return f"{suspension.get('reason', '')}: {suspension.get('message') or 'waits for a message'}"


def _outcome(outcome: Mapping[str, Any]) -> str:
    code = outcome.get("code")
    text = str(outcome.get("message") or outcome.get("text") or "")
    return f"{code}: {text}" if code else text


_TELL: Mapping[type, Callable[[Any], str]] = {
    UserMessage: lambda data: in_words(data.content),
    MessageQueued: lambda data: in_words(data.content),
    AssistantMessage: lambda data: in_words(data.content),
    ToolStarted: _started,
    ToolResult: lambda data: f"{data.tool} {data.outcome} in {data.seconds:.1f} s: {data.content}",
    SessionCreated: lambda data: data.agent,
    SessionClaimed: lambda data: f"by {data.worker}",
    SessionOrphaned: lambda data: f"worker {data.worker or data.worker_id} is gone",
    SessionResumed: lambda data: f"closed {', '.join(data.repaired)}",
    SessionReleased: lambda data: f"{data.reason}: {data.message}" if data.message else data.reason,
    SessionSuspended: lambda data: _suspension(data.suspension),
    SessionWoken: lambda data: f"by {data.by}",
    SessionCompleted: lambda data: _outcome(data.outcome),
    SessionFailed: lambda data: _outcome(data.outcome),
    SessionCancelled: lambda data: data.reason or "",
    ModelRetried: lambda data: f"{data.error_class}, again in {data.delay_seconds:.1f} s: {data.message}",
    ApprovalRequested: lambda data: f"{data.tool}({data.arguments}): approval {data.approval_id}",
    ApprovalDecided: lambda data: f"{data.verdict} by {data.reviewer}" if data.reviewer else data.verdict,
    Unknown: lambda data: f"cannot be taken: {data.problem}",
    Compaction: lambda data: f"entries {data.covers_from} to {data.covers_to}",
}
