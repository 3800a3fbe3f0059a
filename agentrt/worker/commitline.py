"""What one session wants to write: a line of requests, of which one write is on its way at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agentrt.core.journal import AssistantMessage
from agentrt.core.session import Outcome, Seq
from agentrt.core.storable import about_bytes
from agentrt.ports import Answer, NewEntry, Write, Written
from agentrt.worker.holding import Holding
from agentrt.worker.pacing import jittered

BUSY_BEFORE_ALONE = 3
"""Answers "busy" in a row until a session goes to the side connection, where it waits for the row lock."""

MOST_SESSIONS = 500
"""In one group commit: bounds its locks, its size and what its loss costs."""

MOST_BYTES = 4 * 1024 * 1024
"""In one group commit, about; one session's write is sent however large it is."""

CROWD = 50
"""Sessions with as much work between two commits as it costs to make two out of one."""

_REST_SECONDS = 0.005
_MOST_MERGED = 100


class Lane(StrEnum):
    APPEND = "append"
    END = "end"
    SIDE = "side"


class Asked:
    """One request and its answer. The answer is a value even if it is an error: nobody may be waiting for it."""

    __slots__ = ("ending", "entries", "planned_from", "result", "size")

    def __init__(
        self, entries: tuple[NewEntry, ...], ending: Outcome | None = None, planned_from: Seq = Seq(0)
    ) -> None:
        self.entries = entries
        self.ending = ending
        self.planned_from = planned_from
        self.size = sum([entry.size for entry in entries]) + (0 if ending is None else about_bytes(ending))
        self.result: asyncio.Future[Written | Exception] = asyncio.get_running_loop().create_future()

    def answer(self, result: Written | Exception) -> None:
        if not self.result.done():
            self.result.set_result(result)


@dataclass(slots=True, eq=False)
class Sending:
    """One write, and the requests that it stands for. Never changed once its outcome may be unknown."""

    line: Line
    asked: tuple[Asked, ...]
    write: Write
    unknown: bool = False
    size: int = field(init=False)
    """About how many bytes it has."""

    def __post_init__(self) -> None:
        self.size = sum([asked.size for asked in self.asked])

    @property
    def dedup_key(self) -> str:
        """By which the first entry can be found: the statements' default, unless the caller gave one."""
        first = self.write.entries[0].dedup_key if self.write.entries else None
        return first or f"w:{self.write.lease.fencing_token}:{self.write.owner_writes}"

    def journaled(self, written: Written) -> int:
        """How many entries the journal has of it, now that it was answered; an ending is one, too."""
        if written.answer not in (Answer.WRITTEN, Answer.ALREADY):
            return 0
        return len(self.write.entries) + (self.write.ending is not None)


class Line:
    """All that one holding wants to write, in order."""

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.waiting: deque[Asked] = deque()
        self.sending: Sending | None = None
        self.in_flight = False
        self.busy = 0
        self.waits = 0
        """Turns on the side connection in a row: those who had fewer go first."""
        self.alone = False
        """Its write was too slow to go with others."""
        self.resting = False
        self.merges = True
        self.paused = False
        """A tool's transaction is about to write: begin nothing."""
        self.exclusive = asyncio.Lock()
        self.over = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def idle(self) -> bool:
        return not self.waiting and self.sending is None and not self.paused

    def lane(self) -> Lane | None:
        """Where the next write goes; None when there is nothing to send now."""
        if self.in_flight or self.resting or (self.sending is None and (self.paused or not self.waiting)):
            return None
        if self.alone or self.busy >= BUSY_BEFORE_ALONE:
            return Lane.SIDE
        ending = self.sending.write.ending if self.sending is not None else self.waiting[0].ending
        return Lane.APPEND if ending is None else Lane.END

    def least_size(self) -> int:
        """About how many bytes the next write has at least."""
        return self.sending.size if self.sending is not None else self.waiting[0].size

    def form(self, most_bytes: int) -> Sending:
        """The write to send: the one to be repeated, else a new one from the next requests, of ``most_bytes`` unless
        the first of them has more by itself."""
        if self.sending is None:
            asked = self._next(most_bytes)
            write = Write(
                lease=self.holding.lease,
                owner_writes=self.holding.owner_writes,
                entries=tuple([entry for one in asked for entry in one.entries]),
                ending=asked[0].ending,
                planned_from=asked[0].planned_from,
            )
            self.sending = Sending(self, asked, write)
        self.in_flight = True
        return self.sending

    def _next(self, most_bytes: int) -> tuple[Asked, ...]:
        """The first request, with the appends that follow it; a write holds at most one answer of a model."""
        first = self.waiting.popleft()
        if first.ending is not None or not self.merges or not self.waiting:
            return (first,)
        merged = [first]
        answers, size = _answers(first), first.size
        while self.waiting and len(merged) < _MOST_MERGED:
            answers += _answers(self.waiting[0])
            size += self.waiting[0].size
            if self.waiting[0].ending is not None or answers > 1:
                break
            if size > most_bytes:
                break
            merged.append(self.waiting.popleft())
        return tuple(merged)

    def finish(self, result: Written | Exception) -> None:
        """The write is answered: so are its requests, each with the seq of its own last entry."""
        sending = self._clear()
        self.busy, self.waits, self.alone = 0, 0, False
        if not self.waiting:
            self.merges = True
        behind = 0
        for asked in reversed(sending.asked):
            if behind and isinstance(result, Written):
                asked.answer(replace(result, last_seq=Seq(max(0, result.last_seq - behind))))
            else:
                asked.answer(result)
            behind += len(asked.entries)

    def rest(self, then: Callable[[Line], None]) -> None:
        """Send nothing for a moment, in which whoever holds the row may let it go; unless it is time to wait alone."""

        def over() -> None:
            self.resting = False
            then(self)

        if self.busy >= BUSY_BEFORE_ALONE:
            return
        self.resting = True
        asyncio.get_running_loop().call_later(jittered(_REST_SECONDS * 2**self.busy), over)

    def dissolve(self, *, merge: bool = True) -> None:
        """The write is known not to be written: its requests stand first in line again."""
        self.merges = self.merges and merge
        self.waiting.extendleft(reversed(self._clear().asked))

    def drop(self, error: Exception) -> None:
        """Nothing of this session will be written any more."""
        if self.sending is not None:
            self.finish(error)
        while self.waiting:
            self.waiting.popleft().answer(error)

    def _clear(self) -> Sending:
        sending, self.sending, self.in_flight = self.sending, None, False
        if sending is None:
            raise RuntimeError(f"nothing of {self.holding!r} is on its way")
        return sending

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until ``true`` holds; asked again after each change."""
        event = asyncio.Event()
        self._watchers.add(event)
        try:
            while not true():
                event.clear()
                await event.wait()
        finally:
            self._watchers.discard(event)

    async def until_idle(self) -> None:
        await self.until(lambda: self.idle)

    def changed(self) -> None:
        for event in self._watchers:
            event.set()


class Bounds:
    """How much one commit of a lane may hold. A commit that failed may have been too much for the database in its
    present state, or for the time limit: the next ones are smaller, and grow again while they succeed."""

    def __init__(self, most_sessions: int = MOST_SESSIONS) -> None:
        self._most_sessions = most_sessions
        self.sessions = most_sessions
        self.size = MOST_BYTES

    def failed(self, batch: Sequence[Sending]) -> None:
        """``batch`` was given up or has an unknown outcome. One write alone says nothing about how many go together."""
        if len(batch) > 1:
            self.sessions = max(1, len(batch) // 2)
            self.size = max(1, sum(sending.size for sending in batch) // 2)

    def succeeded(self) -> None:
        self.sessions = min(self._most_sessions, self.sessions + self.sessions // 4 + 1)
        self.size = min(MOST_BYTES, self.size + self.size // 4 + 1)


class Backlog:
    """Lines that have something to send, first come, first served; and how much of it one commit takes."""

    def __init__(self, most_sessions: int = MOST_SESSIONS) -> None:
        self.bounds = Bounds(most_sessions)
        self.share = most_sessions
        """How many sessions the next commit takes."""
        self._lines: dict[Line, None] = {}
        self._filled = asyncio.Event()

    def put(self, line: Line) -> None:
        self._lines[line] = None
        self._filled.set()

    async def filled(self) -> None:
        """Wait until something is there. Of a crowd that comes while no commit is in flight the first one takes half:
        all in one, they would ask for the next one together too, and database and worker wait for each other in turn.
        """
        idle = not self._filled.is_set()
        await self._filled.wait()
        crowd = idle and len(self._lines) > CROWD
        self.share = min(self.bounds.sessions, len(self._lines) // 2 if crowd else len(self._lines))

    def drain(self) -> list[Line]:
        lines = sorted(self._lines, key=lambda line: line.waits)
        self._lines.clear()
        self._filled.clear()
        return lines

    def look_again(self, offer: Callable[[Line], None]) -> None:
        """Let those that wait for the row that somebody else waits for go with the others once more, in case that
        their own has come free."""
        for line in self.drain():
            line.busy = min(line.busy, BUSY_BEFORE_ALONE - 1)
            offer(line)


def _answers(asked: Asked) -> int:
    return sum(isinstance(entry.data, AssistantMessage) for entry in asked.entries)
