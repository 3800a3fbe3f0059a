"""The keeper: a thread with a loop and connections of its own, that keeps the worker's lease and ends what outlives it.

It renews the lease with one statement per heartbeat, however many sessions the worker holds; reaps other workers;
stops this one when the lease cannot be proven any more (``fence``); and watches whether the main loop makes progress.
What it finds out is told to the main loop through ``KeeperHandlers``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from agentrt.core.errors import AgentrtError, DatabaseUnavailable
from agentrt.core.events import (
    HeartbeatFailed,
    HeartbeatSucceeded,
    LoopLagged,
    ReapFailed,
    SelfFenced,
    SessionEnded,
    WarningRaised,
    WorkerAborted,
    WorkerReaped,
    WorkerStalled,
)
from agentrt.core.session import FencingToken, SessionId, WorkerId
from agentrt.ports import (
    EventSink,
    KeeperStore,
    ReaperStore,
    Renewal,
    StoreFactory,
    UnstorableBatch,
    WorkerInfo,
    WorkerState,
)
from agentrt.settings import Settings
from agentrt.worker.endings import EXHAUSTED
from agentrt.worker.fence import Fence
from agentrt.worker.holding import Holdings
from agentrt.worker.pacing import Backoff, jittered, wait_for
from agentrt.worker.watchdog import MainLoop

EXIT_CODE = 70
"""Of a process that could not stop what it was doing before others may own its sessions."""

_LOCKLESS = (
    "advisory locks do not work through the database's URL (a transaction pooler?): when this worker is killed, its "
    "sessions wait for the end of its lease; set AGENTRT_DIRECT_DATABASE_URL to the server itself"
)
_CLOSE_SECONDS = 2.0
_UNANSWERED = (AgentrtError, UnstorableBatch, TimeoutError, OSError)
_LEAST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperHandlers:
    """Called in the main loop, in the order in which things happened."""

    registered: Callable[[], None]
    renewed: Callable[[Mapping[SessionId, FencingToken], Renewal], None]
    """What was held before the renewal was sent, and what the database grants."""
    fenced: Callable[[str], None]
    """Begin nothing, stop everything; until ``unfenced``, if that comes."""
    unfenced: Callable[[], None]
    dead: Callable[[], None]
    """The database does not know this worker as living any more. ``fenced`` came before."""
    failed: Callable[[BaseException], None]
    """The first registration failed; the thread has ended."""


def abort(worker_id: WorkerId, reason: str, *, emit: EventSink, leave: Callable[[int], object]) -> None:
    """End the process now, and say why."""
    emit(WorkerAborted(worker_id=worker_id, reason=reason, exit_code=EXIT_CODE))
    leave(EXIT_CODE)


class Keeper:
    """Keeps the lease of one worker incarnation.

    ``start``, ``drain``, ``stop``, ``beat_soon`` and the properties may be used from any thread. ``beat_once``,
    ``reap_once`` and ``watch_once`` are what the thread does again and again.

    Args:
        stores: Opens the connections, in the keeper's thread.
        worker: What to register.
        holdings: What the main loop runs; none left means that it has stopped.
        settings: heartbeat, lease, stop and stall seconds.
        handlers: How to tell the main loop.
        main: The main loop.
        emit: Hears of heartbeats, fences and reaps.
        offered: The agents that the worker offers just now; those of ``worker`` if left out.
        threads_running: Number of tool threads that have not come back.
        leave: Ends the process at once with an exit code.
        clock: Monotonic seconds.
    """

    worker: WorkerInfo
    fenced: bool
    """The lease cannot be proven: nothing is begun, and everything was told to stop."""
    dead: bool
    """The database does not have this worker as living any more."""
    registered: bool
    stalled: bool
    """The main loop has made no progress for ``stall_seconds``."""
    fence: Fence

    def __init__(
        self,
        stores: StoreFactory,
        worker: WorkerInfo,
        *,
        holdings: Holdings,
        settings: Settings,
        handlers: KeeperHandlers,
        main: MainLoop,
        emit: EventSink,
        threads_running: Callable[[], int],
        offered: Callable[[], tuple[str, ...]] | None = None,
        leave: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self._stores = stores
        self._holdings = holdings
        self._settings = settings
        self._handlers = handlers
        self._main = main
        self._emit = emit
        self._threads_running = threads_running
        self._offered = offered or (lambda: worker.agents)
        self._leave = leave
        self._clock = clock
        self._store: KeeperStore | None = None
        self._reaper: ReaperStore | None = None
        self._liveness_key: int | None = None
        self._lockless = False
        self._draining = False
        self.registered = False
        self.stalled = False
        self.fenced = False
        self.dead = False
        self.fence = Fence(
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
            stop_seconds=settings.stop_seconds,
            renewed_at=clock(),
        )
        self._beat_limit = (settings.lease_seconds - settings.stop_seconds) / 3
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = asyncio.Event()
        self._reap_wanted = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="agentrt-keeper", daemon=True)

    # --- from any thread --------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def heartbeat_age_seconds(self) -> float:
        """Since the last successful renewal was sent."""
        return self._clock() - self.fence.renewed_at

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Renew as draining from now on."""
        self._draining = True
        self.beat_soon()

    def beat_soon(self) -> None:
        """Renew now: something may have happened to what is held."""
        self._call(self._wanted.set)

    async def stop(self) -> None:
        """End the thread, and mark the worker stopped if the database can be reached. It must hold nothing any more."""
        self._call(self._stop_wanted.set)
        await asyncio.to_thread(self._thread.join, 4 * _CLOSE_SECONDS)

    def _call(self, function: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:  # the thread has not begun to wait for anything
            function()
            return
        with suppress(RuntimeError):  # the thread has ended
            loop.call_soon_threadsafe(function)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception as error:  # noqa: BLE001 - the border of a daemon loop
            if self.registered:  # nobody would stop this worker any more
                self._abort(f"the keeper's thread ended: {type(error).__name__}: {error}")
            self._main.call(self._handlers.failed, error)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._first_connect()
            await self.beat_once()
            self._main.call(self._handlers.registered)
            async with asyncio.TaskGroup() as tasks:
                beat = tasks.create_task(self._beat(), name="keeper beat")
                loops = [
                    tasks.create_task(self._reap(), name="keeper reap"),
                    tasks.create_task(self._watch(), name="keeper watch"),
                ]
                await self._stop_wanted.wait()
                self._wanted.set()
                await asyncio.wait({beat})  # a renewal in flight is not cut: its connection has one more thing to say
                for task in loops:
                    task.cancel()
        finally:
            await self._close()

    async def _beat(self) -> None:
        backoff = Backoff(most_seconds=self._settings.heartbeat_seconds)
        while not (self.dead or self._stop_wanted.is_set()):
            self._wanted.clear()
            if await self.beat_once():
                backoff.succeeded()
                self._reap_wanted.set()
                wait = jittered(self._settings.heartbeat_seconds, spread=0.1)
            else:
                wait = backoff.failed()
            if not self._stop_wanted.is_set():
                await asyncio.sleep(jittered(min(_LEAST_PAUSE_SECONDS, wait)))  # however often it is wanted
                await wait_for(self._wanted, wait)

    async def _reap(self) -> None:
        while True:
            await self._reap_wanted.wait()
            self._reap_wanted.clear()
            await self.reap_once()

    async def _watch(self) -> None:
        tick = min(0.25, self._settings.stop_seconds / 4, self._settings.heartbeat_seconds / 4)
        while True:
            self.watch_once()
            await asyncio.sleep(jittered(tick))

    # --- renewing ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> KeeperStore:
        """A new connection, a fresh liveness key, and the worker's row if it is not there yet."""
        store = self._store = await self._stores.keeper()
        self._liveness_key = await store.lock_liveness()
        self._check_lock(locked=self._liveness_key is not None)
        if not self.registered:
            sent = self._clock()
            await store.register(self.worker, self._liveness_key)
            self.registered = True
            self.fence = replace(self.fence, renewed_at=sent, locked=self._liveness_key is not None)
        return store

    def _check_lock(self, *, locked: bool) -> None:
        """Say once that there is no lock, or that it turned out to be another connection's."""
        if locked:
            return
        self._liveness_key = None
        if not self._lockless:
            self._lockless = True
            self._emit(WarningRaised(message=_LOCKLESS))

    async def _first_connect(self) -> None:
        try:
            async with asyncio.timeout(self._settings.lease_seconds):
                await self._connect()
        except TimeoutError:
            words = f"the worker could not be registered within {self._settings.lease_seconds:g} s"
            raise DatabaseUnavailable(words) from None

    async def beat_once(self) -> bool:
        """Renew the lease, on a new connection if need be. False when it was not renewed."""
        if self.stalled or self.dead:
            return False
        try:
            async with asyncio.timeout(self._beat_limit):
                store = self._store or await self._connect()
                held = self._holdings.snapshot()
                sent = self._clock()
                worker = replace(self.worker, agents=self._offered())
                renewal = await store.renew(worker, self._liveness_key, draining=self._draining)
        except Exception as error:  # noqa: BLE001 - a daemon loop: whatever it is, the lease was not renewed
            await self._broke(error)
            return False
        if renewal.state not in (WorkerState.ALIVE, WorkerState.DRAINING):
            self._died(renewal.state)
            return False
        self._check_lock(locked=renewal.locked)
        self.fence = replace(self.fence, renewed_at=sent, locked=renewal.locked, broken=False)
        self._emit(
            HeartbeatSucceeded(worker_id=self.worker.id, seconds=self._clock() - sent, sessions=len(renewal.grants))
        )
        if self.fenced and self._clock() < self.fence.stop_at:
            self.fenced = False
            self._main.call(self._handlers.unfenced)
        self._main.call(self._handlers.renewed, held, renewal)
        return True

    async def _broke(self, error: Exception) -> None:
        self.fence = replace(self.fence, broken=True)
        words = str(error) or f"no answer within {self._beat_limit:.1f} s"
        self._emit(HeartbeatFailed(worker_id=self.worker.id, error=words))
        store, self._store = self._store, None
        if store is not None:
            await _close(store)

    def _died(self, state: WorkerState) -> None:
        self.dead = True
        self._raise_fence(f"the database has this worker as {state}")
        self._main.call(self._handlers.dead)

    # --- reaping ----------------------------------------------------------------------------------------------------

    async def reap_once(self) -> None:
        """Declare dead who is dead, and free the sessions of those that do not live, until none is left."""
        try:
            reaper = self._reaper
            if reaper is None:
                reaper = self._reaper = await self._stores.reaper()
            for reaped, name in (await reaper.mark(self.worker.id)).items():
                self._emit(WorkerReaped(worker_id=self.worker.id, reaped=reaped, name=name))
            more = True
            while more:
                swept = await reaper.sweep(self.worker.id)
                for run in swept.exhausted:
                    self._emit(SessionEnded(**asdict(run), status="failed", code=EXHAUSTED))
                more = swept.more
        except Exception as error:  # noqa: BLE001 - a daemon loop: others reap too, and we try again
            self._emit(ReapFailed(worker_id=self.worker.id, error=str(error) or type(error).__name__))
            reaper, self._reaper = self._reaper, None
            if reaper is not None:
                await _close(reaper)

    # --- watching ---------------------------------------------------------------------------------------------------

    def watch_once(self) -> None:
        """Fence the worker when its time has come, and end the process when it did not stop."""
        self._watch_main_loop()
        now = self._clock()
        if not self.fenced and now >= self.fence.stop_at:
            why = "its connection broke" if self.fence.broken else "its renewals stopped"
            self._raise_fence(f"the keeper cannot prove the lease: {why}")
        if self.fenced and now >= self.fence.exit_at and (len(self._holdings) or self._threads_running()):
            held, threads = len(self._holdings), self._threads_running()
            self._abort(f"{held} sessions and {threads} tool threads outlive the lease")

    def _abort(self, reason: str) -> None:
        abort(self.worker.id, reason, emit=self._emit, leave=self._leave)

    def _raise_fence(self, reason: str) -> None:
        if self.fenced:
            return
        self.fenced = True
        self._emit(SelfFenced(worker_id=self.worker.id, reason=reason, seconds=self.heartbeat_age_seconds))
        self._main.call(self._handlers.fenced, reason)

    def _watch_main_loop(self) -> None:
        seconds = self._main.tick()
        if (lag := self._main.take_lag()) is not None:
            self._emit(LoopLagged(seconds=lag))
        stalled = seconds >= self._settings.stall_seconds
        if stalled and not self.stalled:
            self._emit(WorkerStalled(worker_id=self.worker.id, seconds=seconds, stack=self._main.stack()))
        self.stalled = stalled

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    if self.registered and not self.dead and not len(self._holdings):
                        await store.stop(self.worker.id)
            except _UNANSWERED as error:  # its lease runs out all the same
                self._emit(HeartbeatFailed(worker_id=self.worker.id, error=f"not marked stopped: {error}"))
            await _close(store)
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            await _close(reaper)


async def _close(store: KeeperStore | ReaperStore) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await store.close()
    except _UNANSWERED:
        return  # it is broken already, and nobody uses it any more
