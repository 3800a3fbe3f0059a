"""What this worker holds: one ``Holding`` per session that it owns, and the table of them all.

A holding lives in the main loop: only the runner's task, the committer and the daemon touch it. The table is also read
by the keeper's thread, which compares what the database grants with what was held before it asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentrt.core.journal import AssistantMessage, ToolResult
from agentrt.core.session import FencingToken, Lease, Seq, Session, SessionId
from agentrt.ports import Write


class Holding:
    """One session that this worker owns.

    The runner watches ``ahead`` and ``draining``, keeps ``last_seq`` and ``once_running``, and writes nothing once
    ``lost`` is set. The committer keeps ``owner_writes`` and ``committed_seq``, also for a write whose caller was
    cancelled: after a cancellation inside a write, await ``Committer.settled`` and read the journal if
    ``committed_seq`` is above ``last_seq``.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        """As it was claimed."""
        self.lease = Lease(session.id, session.fencing_token)
        self.owner_writes = session.owner_writes
        """Owner writes that are known to be committed; the committer's."""
        self.committed_seq = session.last_seq
        """The highest seq that any answer of the database named; the committer's."""
        self.last_seq = Seq(0)
        """What the runner's journal in memory holds."""
        self.once_running = 0
        """``once`` tools that have started and not ended: they get ``drain_tool_seconds``."""
        self.ahead = asyncio.Event()
        """The database knows entries that we may not have read: read at the next gate, at once for an interrupt."""
        self.draining = asyncio.Event()
        """Release at the next committed boundary."""
        self.lost = False
        """Set before the task is cancelled: write nothing."""
        self.lost_reason = ""
        self.fenced = False
        """Lost only as far as the runner is concerned: the worker cannot prove its lease just now. What the committer
        already has is still written, and the session is released when the lease is proven again."""
        self.ended = False
        """An ending was committed; the committer's."""
        self.progressed = False
        """A model's answer or a tool's result was committed in this ownership; the committer's."""
        self.calmed: Callable[[], None] = lambda: None
        """Called when the session is fragile no longer."""
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        lost = f" lost: {self.lost_reason}" if self.lost else ""
        return f"<Holding {self.session.id} token {self.lease.fencing_token}{lost}>"

    @property
    def fragile(self) -> bool:
        """Whether the session may be one that kills its workers: it was not seen to commit a step since its third
        attempt began."""
        return self.session.fragile and not self.progressed

    def wrote(self, write: Write) -> None:
        """``write`` is committed."""
        self.owner_writes = write.owner_writes + 1
        self.ended = self.ended or write.ending is not None
        if not self.progressed and any(isinstance(entry.data, _PROGRESS) for entry in write.entries):
            fragile = self.fragile
            self.progressed = True
            if fragile:
                self.calmed()

    def lose(self, reason: str, *, fenced: bool = False) -> bool:
        """Write nothing from now on, and stop the task. True for the first caller only."""
        if self.lost:
            self.fenced = self.fenced and fenced
            return False
        self.lost = True
        self.fenced = fenced
        self.lost_reason = reason
        if self.task is not None:
            self.task.cancel()
        return True


_PROGRESS = (AssistantMessage, ToolResult)


def event_keys(holding: Holding) -> dict[str, Any]:
    """What every event of a session carries."""
    return {
        "session_id": holding.session.id,
        "agent": holding.session.agent,
        "queue": holding.session.queue,
        "run": holding.session.run,
        "attempt": holding.session.attempt,
        "fencing_token": int(holding.lease.fencing_token),
    }


class Holdings:
    """All holdings of one worker incarnation. Written in the main loop; ``snapshot`` and ``len`` from any thread."""

    def __init__(self) -> None:
        self._held: dict[SessionId, Holding] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Holding]:
        """The holdings as they are now; they may come and go while the caller iterates."""
        with self._lock:
            return iter(list(self._held.values()))

    def get(self, session_id: SessionId) -> Holding | None:
        return self._held.get(session_id)

    def add(self, holding: Holding) -> None:
        with self._lock:
            self._held[holding.lease.session_id] = holding

    def remove(self, holding: Holding) -> None:
        """Forget ``holding``; not a newer one of the same session."""
        with self._lock:
            if self._held.get(holding.lease.session_id) is holding:
                del self._held[holding.lease.session_id]

    def snapshot(self) -> Mapping[SessionId, FencingToken]:
        """What is held at this moment, with the tokens."""
        with self._lock:
            return {session_id: holding.lease.fencing_token for session_id, holding in self._held.items()}

    @property
    def fragile(self) -> bool:
        """Whether one of them is fragile: a worker holds at most one."""
        return any(holding.fragile for holding in self)
