"""The group commit: the only way by which an owner writes, but for a transactional tool's last statement.

With no commit in flight a write is sent at once; while one is in flight writes gather, and go together in the next.
Appends and endings have a lane each (two statements, two connections); a session that stays locked by somebody else
goes to a third, alone. Writes of one session go out one after another, in the order in which they were asked for.

A write whose outcome is unknown is repeated byte for byte until it is answered: the database tells a repeat by
``owner_writes``. It goes on when its caller was cancelled, and while the worker cannot prove its lease: the fencing
token protects the session, and a finished tool's result must not be lost. It ends when the session is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from agentrt.core.errors import OUTAGES, LeaseLost
from agentrt.core.events import CommitFailed, CommitFinished
from agentrt.core.session import Outcome, Seq, WorkerId
from agentrt.ports import (
    Answer,
    EventSink,
    NewEntry,
    SessionStore,
    StatementTimeout,
    ToolTransaction,
    ToolTransactionConflict,
    Write,
    Written,
)
from agentrt.worker.commitline import Asked, Backlog, Lane, Line, Sending
from agentrt.worker.endings import tell_end
from agentrt.worker.holding import Holding
from agentrt.worker.pacing import Backoff, jittered

_CANCELLED_COMMIT_SECONDS = 1.0
_REFUSED = "the database refused a write: the session has another owner or was cancelled"


class Committer:
    """Writes for all sessions of one worker. ``run`` does the work; the rest may be called from any task of the loop.

    Args:
        store: Where to write.
        worker_id: The incarnation that owns the sessions.
        emit: Hears of each group commit, and of each ending.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: SessionStore, worker_id: WorkerId, *, emit: EventSink, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._emit = emit
        self._clock = clock
        self._lines: dict[Holding, Line] = {}
        self._lanes = {Lane.APPEND: Backlog(), Lane.END: Backlog(), Lane.SIDE: Backlog(most_sessions=1)}
        self._tasks: asyncio.TaskGroup | None = None
        self._closed = False

    async def append(self, holding: Holding, entries: Sequence[NewEntry]) -> Written:
        """Commit ``entries``; the answer is ``WRITTEN`` or ``ALREADY``, and its ``last_seq`` is that of the last one.

        Cancelling the caller does not cancel the write: see ``settled``.

        Raises:
            LeaseLost: the session is somebody else's now; stop.
            UnstorableBatch: the database cannot store one of these entries; nothing was written.
        """
        return await self._ask(holding, Asked(tuple(entries)))

    async def end(
        self, holding: Holding, outcome: Outcome, *, planned_from: Seq = Seq(0), entries: Sequence[NewEntry] = ()
    ) -> Written:
        """Commit the end of this ownership, behind ``entries``. ``STALE`` (complete and suspend only): a client wrote
        after ``planned_from``; nothing was written: read and plan again. Raises like ``append``."""
        return await self._ask(holding, Asked(tuple(entries), outcome, planned_from))

    async def append_in(
        self, holding: Holding, transaction: ToolTransaction, *, entries: Sequence[NewEntry]
    ) -> Written:
        """Commit ``entries`` as the last statement of a tool's transaction, while nothing else of the session is sent.

        Raises:
            LeaseLost: as in ``append``; the transaction was rolled back.
            ToolTransactionConflict: nothing was written; run the tool again.
            ToolTransactionBroken: the tool ended the transaction itself.
        """
        self._check(holding)
        if self._tasks is None:
            raise RuntimeError("the committer is not running")
        abandoned = asyncio.Event()
        committing = self._commit_in(holding, transaction, entries=tuple(entries), abandoned=abandoned)
        task = self._tasks.create_task(committing)
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            abandoned.set()
            await asyncio.wait({task}, timeout=_CANCELLED_COMMIT_SECONDS)  # the caller closes the transaction next
            raise
        if isinstance(result, Exception):
            raise result
        return result

    @asynccontextmanager
    async def exclusive(self, holding: Holding) -> AsyncIterator[None]:
        """Nothing of this session is on its way inside the block. Raises ``LeaseLost`` when it is lost by then."""
        self._check(holding)
        line = self._line(holding)
        async with line.exclusive:
            line.paused = True
            try:
                await line.until(lambda: line.sending is None)
                self._check(holding)
                yield
            finally:
                line.paused = False
                self._go_on(line)

    async def settled(self, holding: Holding) -> None:
        """Wait until nothing of this session is on its way: ``holding.committed_seq`` is the truth then."""
        line = self._lines.get(holding)
        if line is not None:
            await line.until_idle()

    async def quiet(self) -> None:
        """Wait until nothing of any session is on its way."""
        for line in list(self._lines.values()):
            await line.until_idle()

    def pending(self, holding: Holding) -> bool:
        """Whether something of this session is on its way."""
        line = self._lines.get(holding)
        return line is not None and not line.idle

    def ending(self, holding: Holding) -> bool:
        """Whether an ending of this session is on its way: the database may know of it before we do."""
        line = self._lines.get(holding)
        return line is not None and line.sending is not None and line.sending.write.ending is not None

    def forget(self, holding: Holding) -> None:
        """The holding is over and nothing can be asked for it any more; what is on its way still goes."""
        line = self._lines.get(holding)
        if line is not None and line.idle:
            del self._lines[holding]
        elif line is not None:
            line.over = True

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for kind, backlog in self._lanes.items():
                    self._tasks.create_task(self._serve(kind, backlog), name=f"committer {kind}")
        finally:
            self._closed = True
            for line in list(self._lines.values()):
                self._drop(line, LeaseLost("the worker stopped before the write was answered"))

    # --- asking -----------------------------------------------------------------------------------------------------

    def _check(self, holding: Holding) -> None:
        if holding.lost:
            raise LeaseLost(f"session {holding.session.id} is lost: {holding.lost_reason}")
        if holding.ended:
            raise LeaseLost(f"session {holding.session.id} was given up: its ending is committed")
        if self._closed:
            raise LeaseLost("the worker has stopped")

    def _line(self, holding: Holding) -> Line:
        line = self._lines.get(holding)
        if line is None:
            line = self._lines[holding] = Line(holding)
        return line

    async def _ask(self, holding: Holding, asked: Asked) -> Written:
        self._check(holding)
        line = self._line(holding)
        line.waiting.append(asked)
        self._offer(line)
        result = await asked.result  # a cancelled caller takes its future along, not the write
        if isinstance(result, Exception):
            raise result
        return result

    def _offer(self, line: Line) -> None:
        lane = line.lane()
        if lane is not None:
            self._lanes[lane].put(line)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _serve(self, kind: Lane, backlog: Backlog) -> None:
        backoff = Backoff()
        while True:
            await backlog.filled()
            batch = self._take(kind, backlog)
            if batch and not await self._commit(kind, batch):
                backlog.bounds.failed(batch)
                await asyncio.sleep(backoff.failed())
            elif batch:
                backlog.bounds.succeeded()
                backoff.succeeded()
            if kind is Lane.SIDE:
                backlog.look_again(self._offer)

    def _take(self, kind: Lane, backlog: Backlog) -> list[Sending]:
        """Form one write for each of the next lines, within the bounds of the lane, but at least one. A session whose
        former holding still writes waits its turn."""
        room = backlog.bounds.size
        batch: dict[object, Sending] = {}
        for line in backlog.drain():
            holding = line.holding
            if holding.lost and not holding.fenced:
                self._drop(line, LeaseLost(f"session {holding.session.id} is lost: {holding.lost_reason}"))
            elif line.lane() is not kind:
                self._offer(line)
            elif batch and (holding.session.id in batch or len(batch) >= backlog.share or line.least_size() > room):
                backlog.put(line)
            else:
                sending = batch[holding.session.id] = line.form(room)
                room -= sending.size
                line.waits += kind is Lane.SIDE
        return list(batch.values())

    async def _commit(self, kind: Lane, batch: list[Sending]) -> bool:
        """Send one group commit and hand out its answers. False when it was given up, or has an unknown outcome."""
        begun = self._clock()
        writes = [sending.write for sending in batch]
        try:
            if writes[0].ending is None:
                answers = await self._store.append(self._worker_id, writes, side=kind is Lane.SIDE)
            else:
                answers = await self._store.end(self._worker_id, writes, side=kind is Lane.SIDE)
        except OUTAGES as error:
            self._emit(CommitFailed(error=str(error), sessions=len(batch)))
            for sending in batch:
                sending.unknown |= not isinstance(error, StatementTimeout)
                sending.line.in_flight = False
                if isinstance(error, StatementTimeout) and len(batch) == 1:
                    self._too_slow(sending)
                self._offer(sending.line)
            return False
        except Exception as error:  # noqa: BLE001 - a daemon loop: what one session wrote must not stop the others
            return await self._refused(kind, batch, error)
        entries = sum([sending.journaled(written) for sending, written in zip(batch, answers, strict=True)])
        self._emit(CommitFinished(seconds=self._clock() - begun, sessions=len(batch), entries=entries))
        for sending, written in zip(batch, answers, strict=True):
            await self._answered(kind, sending, written)
        return True

    async def _refused(self, kind: Lane, batch: list[Sending], error: Exception) -> bool:
        """The database (or the adapter) refuses the batch as a whole: find out whose fault it is."""
        if len(batch) > 1:
            return await self._one_by_one(kind, batch)
        self._emit(CommitFailed(error=str(error), sessions=1))
        line = batch[0].line
        if len(batch[0].asked) > 1:
            line.dissolve(merge=False)
        else:
            line.finish(error)
        self._go_on(line)
        return True

    async def _one_by_one(self, kind: Lane, batch: list[Sending]) -> bool:
        for index, sending in enumerate(batch):
            if not await self._commit(kind, [sending]):
                for rest in batch[index + 1 :]:  # were not sent at all
                    rest.line.in_flight = False
                    self._offer(rest.line)
                return False
        return True

    def _too_slow(self, sending: Sending) -> None:
        """The server gave the write up, which was alone: it holds up nobody else from now on, and what was merged into
        it goes in pieces."""
        sending.line.alone = True
        if len(sending.asked) > 1 and not sending.unknown:
            sending.line.dissolve(merge=False)

    async def _answered(self, kind: Lane, sending: Sending, written: Written) -> None:
        line, holding = sending.line, sending.line.holding
        holding.committed_seq = max(holding.committed_seq, written.last_seq)
        match written.answer:
            case Answer.WRITTEN | Answer.ALREADY:
                self._wrote(sending, written)
                line.finish(written)
            case Answer.STALE:
                line.finish(written)
            case Answer.BUSY:
                line.busy += 1
                line.in_flight = False
                if not sending.unknown:
                    line.dissolve()
                if kind is Lane.SIDE:  # a lock that outlasts the time limit; or a row that is gone, as a renewal tells
                    await asyncio.sleep(jittered(0.1))
                else:
                    line.rest(self._offer)
            case Answer.LOST:
                await self._lost(sending)
        self._go_on(line)

    def _wrote(self, sending: Sending, written: Written) -> None:
        holding, ending = sending.line.holding, sending.write.ending
        holding.wrote(sending.write)
        if ending is not None:
            tell_end(self._emit, holding, ending, exhausted=written.exhausted)

    async def _lost(self, sending: Sending) -> None:
        """Not ours any more. An *ending* with an unknown outcome may have been written before somebody else claimed
        the session: one look tells. After an append it would change nothing: nobody may go on with a lost session."""
        line, holding = sending.line, sending.line.holding
        if sending.unknown and sending.write.ending is not None:
            try:
                found = await self._store.wrote(holding.session.id, sending.dedup_key)
            except OUTAGES:
                line.in_flight = False  # stays unknown: the repeat is answered the same, and we look again
                await asyncio.sleep(jittered(0.1))
                return
            if found:
                written = Written(answer=Answer.ALREADY, last_seq=holding.committed_seq)
                self._wrote(sending, written)
                line.finish(written)
                return
        holding.lose(_REFUSED)
        self._drop(line, LeaseLost(f"session {holding.session.id} is lost: {holding.lost_reason}"))

    def _go_on(self, line: Line) -> None:
        line.changed()
        if line.idle and line.over:
            self._lines.pop(line.holding, None)
        else:
            self._offer(line)

    def _drop(self, line: Line, error: Exception) -> None:
        line.drop(error)
        self._go_on(line)

    # --- transactional tools ----------------------------------------------------------------------------------------

    async def _commit_in(
        self,
        holding: Holding,
        transaction: ToolTransaction,
        *,
        entries: tuple[NewEntry, ...],
        abandoned: asyncio.Event,
    ) -> Written | Exception:
        """In a task of our own, and with its result as a value: the caller may be cancelled, the count must go on."""
        try:
            async with self.exclusive(holding):
                if abandoned.is_set():
                    return ToolTransactionConflict("the tool was cancelled before its commit")
                write = Write(lease=holding.lease, owner_writes=holding.owner_writes, entries=entries)
                try:
                    written = await transaction.commit(write)
                except OUTAGES:
                    written = await self._find_out(holding, write)
                return self._judge(holding, write, written)
        except Exception as error:  # noqa: BLE001 - handed to the caller, if it still waits
            return error

    def _judge(self, holding: Holding, write: Write, written: Written) -> Written | Exception:
        holding.committed_seq = max(holding.committed_seq, written.last_seq)
        match written.answer:
            case Answer.WRITTEN | Answer.ALREADY:
                holding.wrote(write)
                return written
            case Answer.LOST:
                holding.lose(_REFUSED)
                return LeaseLost(f"session {holding.session.id} is lost: {holding.lost_reason}")
            case Answer.BUSY | Answer.STALE:
                return ToolTransactionConflict(f"session {holding.session.id} stayed locked by a client")

    async def _find_out(self, holding: Holding, write: Write) -> Written:
        """The tool's commit has an unknown outcome and cannot be repeated. An empty write with the same count settles
        it for good: it waits for the row lock that the commit holds, and what comes later is refused."""
        empty, key = replace(write, entries=()), Sending(self._line(holding), (), write).dedup_key
        backoff = Backoff()
        while not holding.lost or holding.fenced:
            try:
                [written] = await self._store.append(self._worker_id, [empty], side=True)
                if written.answer is Answer.ALREADY and not await self._store.wrote(holding.session.id, key):
                    written = replace(written, answer=Answer.WRITTEN)  # by a try of ours that was not answered
            except OUTAGES as error:
                self._emit(CommitFailed(error=str(error), sessions=1))
            else:
                if written.answer is Answer.WRITTEN:  # ours took the number: the tool's can never be written
                    holding.owner_writes += 1
                    raise ToolTransactionConflict("the connection broke before the commit")
                if written.answer in (Answer.ALREADY, Answer.LOST):
                    return written
            await asyncio.sleep(backoff.failed())
        raise LeaseLost(f"session {holding.session.id} is lost: {holding.lost_reason}")
