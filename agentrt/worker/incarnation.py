"""One incarnation of a worker: from its registration until it is drained, or was declared dead.

It wires claimer, slots, committer, reconciler and keeper together, and owns their tasks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from agentrt.core.errors import AgentrtError
from agentrt.core.events import ListenerReconnected, SlotsChanged, WarningRaised, WorkerStarted
from agentrt.core.session import Crashed, FencingToken, Released, ReleaseReason, Session, SessionId, WorkerId
from agentrt.ports import EventSink, Renewal, SessionStore, StoreFactory, UnstorableBatch, WakeupHandlers, WorkerInfo
from agentrt.settings import Settings
from agentrt.worker.claimer import Claimer, Offering
from agentrt.worker.committer import Committer
from agentrt.worker.endings import crash_of
from agentrt.worker.holding import Holding, Holdings
from agentrt.worker.keeper import Keeper, KeeperHandlers
from agentrt.worker.reconciler import Reconciler
from agentrt.worker.watchdog import MainLoop

RunSession = Callable[[Holding], Awaitable[None]]
"""Drives one session until an ending is committed or the session is lost, and reports what it did not expect."""

_SETTLE_SECONDS = 2.0


class MakeRunner(Protocol):
    """Gives what runs the sessions of one incarnation. ``agent_unavailable(agent, error)`` stops offering an agent."""

    def __call__(
        self,
        store: SessionStore,
        committer: Committer,
        *,
        worker_id: WorkerId,
        agent_unavailable: Callable[[str, str], None],
    ) -> RunSession: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What a worker is made of. ``agents`` holds the version of each agent that it serves; ``threads_running`` counts
    tools that have not ended; with ``owns_process`` the process ends soon after the worker, whatever tools leave
    behind, and is deaf to signals until then; ``leave`` ends it at once."""

    stores: StoreFactory
    settings: Settings
    agents: Mapping[str, str]
    make_runner: MakeRunner
    emit: EventSink
    version: str
    threads_running: Callable[[], int] = lambda: 0
    owns_process: bool = False
    leave: Callable[[int], object] = os._exit
    clock: Callable[[], float] = time.monotonic


class Incarnation:
    """Made, run once, thrown away; ``run`` returns when ``begin_drain`` or the worker's death has emptied all slots."""

    def __init__(self, parts: WorkerParts, store: SessionStore, *, offering: Offering) -> None:
        self._parts = parts
        self._store = store
        self._offering = offering
        self._emit = parts.emit
        settings = parts.settings
        self.worker = _new_worker(parts, offering)
        self.holdings = Holdings()
        self.draining = False
        self.dead = False
        self._claiming = True
        self.changed = asyncio.Event()
        """Set whenever a slot was emptied, a drain began or the worker died."""
        self._registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots: asyncio.TaskGroup | None = None
        self.committer = Committer(store, self.worker.id, emit=self._emit, clock=parts.clock)
        self._wakeups = store.wakeups(self._wakeup_handlers())
        loop = asyncio.get_running_loop()
        self.keeper = Keeper(
            parts.stores,
            self.worker,
            holdings=self.holdings,
            settings=settings,
            handlers=self._keeper_handlers(),
            main=MainLoop(loop, thread_id=threading.get_ident(), clock=parts.clock),
            emit=self._emit,
            threads_running=parts.threads_running,
            offered=offering.offered,
            leave=parts.leave,
            clock=parts.clock,
        )
        self.claimer = Claimer(
            store,
            self.worker.id,
            offering=offering,
            holdings=self.holdings,
            settings=settings,
            start=self.start,
            open=self._open,
            listening=lambda: self._wakeups.listening,
            doubted=self.keeper.beat_soon,
            emit=self._emit,
            clock=parts.clock,
        )
        self.reconciler = Reconciler(
            store,
            self.committer,
            worker_id=self.worker.id,
            holdings=self.holdings,
            pending_claim=lambda: self.claimer.pending,
            renew=self.keeper.beat_soon,
        )
        self._run_session = parts.make_runner(
            store, self.committer, worker_id=self.worker.id, agent_unavailable=offering.withhold
        )

    # --- the line ---------------------------------------------------------------------------------------------------

    async def run(self, supervise: Callable[[Incarnation], Awaitable[None]]) -> None:
        """Register, work, and leave when all slots are empty after a drain or the worker's death.

        ``supervise`` runs beside the slots and returns when they may be waited for without a limit.

        Raises:
            AgentrtError: the worker could not be registered.
        """
        self.keeper.start()
        try:
            await self._registered
            self._emit(
                WorkerStarted(
                    worker_id=self.worker.id,
                    name=self.worker.name,
                    slots=self.worker.slots,
                    agents=self.worker.agents,
                    queues=self.worker.queues,
                )
            )
            async with asyncio.TaskGroup() as services:
                tasks = [
                    services.create_task(self.committer.run(), name="committer"),
                    services.create_task(self._wakeups.run(), name="wakeups"),
                    services.create_task(self.reconciler.run(), name="reconciler"),
                ]
                async with asyncio.TaskGroup() as self._slots:
                    self._slots.create_task(self._claim(), name="claimer")
                    await supervise(self)
                await self._settle()
                for task in tasks:
                    task.cancel()
        finally:
            await self.keeper.stop()

    @property
    def busy(self) -> bool:
        """Whether anything is held, or may still be claimed. After a death, whether a tool thread runs, too: the
        keeper of this incarnation has to see its end."""
        threads = self._parts.threads_running() if self.dead else 0
        return self._claiming or len(self.holdings) > 0 or threads > 0

    async def _claim(self) -> None:
        try:
            await self.claimer.run()
            if self.claimer.unanswered and not self.dead:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.worker.lease_seconds):
                        await self.reconciler.nothing_astray()
        finally:
            self._claiming = False
            self.changed.set()

    async def _settle(self) -> None:
        """Writes whose callers were cancelled get a last moment."""
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self.committer.quiet()
        except TimeoutError:
            return

    def begin_drain(self) -> None:
        """Claim no more; everything is released at its next committed boundary."""
        if not self.draining:
            self.draining = True
            self.claimer.stop()
            self.keeper.drain()
            for holding in self.holdings:
                holding.draining.set()
            self.changed.set()

    # --- slots ------------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        return not (self.draining or self.dead or self.keeper.fenced)

    def start(self, session: Session) -> None:
        """Run a claimed session in a slot; or give it back at once when nothing may be begun any more."""
        if self._slots is None:
            raise RuntimeError("the incarnation is not running")
        former = self.holdings.get(session.id)
        if former is not None:
            former.lose("claimed anew by this worker")
        holding = Holding(session)
        holding.calmed = self.claimer.look
        self.holdings.add(holding)
        work = self._slot(holding, former) if self._open() else self._refuse(holding)
        holding.task = self._slots.create_task(work, name=f"session {session.id}")
        holding.task.add_done_callback(lambda _: self._leave_slot(holding))  # even of a task that never began
        self._tell_slots()

    async def _slot(self, holding: Holding, former: Holding | None) -> None:
        outcome: Released | Crashed = Crashed("the runner left without an ending")
        try:
            if former is not None and former.task is not None:
                await asyncio.wait({former.task})
            await self._run_session(holding)
        except asyncio.CancelledError:
            if not (holding.lost or holding.ended or self.draining):  # not by us, but together with everything else
                raise
            outcome = Released(ReleaseReason.DRAIN)
        except Exception as error:  # noqa: BLE001 - what gets past the runner's border must not stop the other sessions
            secrets = self._parts.settings.passwords()
            outcome = crash_of(error, holding, emit=self._emit, secrets=secrets)
        if not (holding.lost or holding.ended):
            await self._end(holding, outcome)

    async def _refuse(self, holding: Holding) -> None:
        """Give back what was claimed when nothing may be begun any more; behind the fence with the next renewal."""
        if self.keeper.fenced:
            holding.lose("claimed while the lease could not be proven", fenced=True)
            return
        await self._end(holding, Released(ReleaseReason.DRAIN if self.draining else ReleaseReason.FENCED))

    async def _end(self, holding: Holding, outcome: Released | Crashed) -> None:
        try:
            await self.committer.settled(holding)
            if not holding.ended:
                await self.committer.end(holding, outcome)
        except (AgentrtError, UnstorableBatch):
            return  # the next renewals tell whose it is

    def _leave_slot(self, holding: Holding) -> None:
        self.holdings.remove(holding)
        self._offering.ended(holding.session)
        if holding.fenced and not holding.ended:
            self.reconciler.stopped(holding)
        self.committer.forget(holding)
        if holding.fragile:
            self.claimer.look()  # others that are fragile may have been passed over because of it
        else:
            self.claimer.wake()
        self.changed.set()
        self._tell_slots()

    def _tell_slots(self) -> None:
        busy = len(self.holdings)
        self._emit(SlotsChanged(free=max(self.worker.slots - busy, 0), busy=busy))

    # --- what the keeper and the listener tell ----------------------------------------------------------------------

    def _keeper_handlers(self) -> KeeperHandlers:
        return KeeperHandlers(
            registered=self._begin,
            renewed=self._renewed,
            fenced=self._stop_everything,
            unfenced=self._look,
            dead=self._die,
            failed=self._fail,
        )

    def _wakeup_handlers(self) -> WakeupHandlers:
        return WakeupHandlers(
            ready=self._ready,
            control=self._control,
            reconnected=self._reconnected,
            unavailable=lambda words: self._emit(WarningRaised(message=words)),
        )

    def _begin(self) -> None:
        if not self._registered.done():
            self._registered.set_result(None)

    def _renewed(self, held: Mapping[SessionId, FencingToken], renewal: Renewal) -> None:
        self.reconciler.renewed(held, renewal)

    def _look(self) -> None:
        self.claimer.look()

    def _stop_everything(self, reason: str) -> None:
        for holding in self.holdings:
            holding.lose(reason, fenced=True)

    def _die(self) -> None:
        self.dead = True
        self.claimer.stop()
        for holding in self.holdings:
            holding.lose("this worker was declared dead")
        self.changed.set()

    def _fail(self, error: BaseException) -> None:
        if not self._registered.done():
            self._registered.set_exception(error)

    def _ready(self, queues: Sequence[str] | None) -> None:
        if queues is None or set(self.worker.queues) & set(queues):
            self.claimer.look()

    def _control(self, session_ids: Sequence[SessionId] | None) -> None:
        self.reconciler.control(session_ids)

    def _reconnected(self, error: str) -> None:
        self._emit(ListenerReconnected(error=error))
        self.claimer.look()
        self.keeper.beat_soon()


def _new_worker(parts: WorkerParts, offering: Offering) -> WorkerInfo:
    """What this incarnation registers; its id is never used again."""
    settings = parts.settings
    return WorkerInfo(
        id=WorkerId(uuid4()),
        name=settings.worker_name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=parts.version,
        agents=offering.offered(),
        queues=settings.queues,
        slots=settings.slots,
        heartbeat_seconds=settings.heartbeat_seconds,
        lease_seconds=settings.lease_seconds,
    )
