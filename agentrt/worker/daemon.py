"""The worker process's top: signals, drain, and one incarnation after another.

A worker that was declared dead stops everything and registers anew under a new id. A drain begins with the first
SIGTERM, SIGINT or SIGHUP; a second SIGTERM or SIGINT cuts its time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from agentrt.core.errors import AgentrtError
from agentrt.core.events import WarningRaised, WorkerDraining, WorkerStopped
from agentrt.worker.claimer import Offering
from agentrt.worker.holding import Holding
from agentrt.worker.incarnation import Incarnation, MakeRunner, RunSession, WorkerParts
from agentrt.worker.keeper import abort
from agentrt.worker.leaving import end_in_time
from agentrt.worker.pacing import Backoff, jittered, wait_for

__all__ = ["Daemon", "MakeRunner", "RunSession", "WorkerParts"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_HANGUP: Final = "SIGHUP"
"""A terminal was closed. Its shell and the kernel both say so, and thus a second one cuts nothing short."""

_LAST_SECONDS = 10.0
"""For what was cancelled to journal what is unknown and to be released; then the drain goes on without it."""

_GIVEN_UP_SECONDS = 1.0
"""For the task of a session that is given up to end; then the process ends."""


class Daemon:
    """One worker process.

    ``run`` works until a drain has ended; ``drain`` and ``cut`` are what the signals call. ``live_problems``,
    ``ready_problems`` and ``facts`` may be asked from any thread.
    """

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._emit = parts.emit
        self._offering = Offering(parts.settings.queues, parts.agents, emit=parts.emit, clock=parts.clock)
        self._incarnation: Incarnation | None = None
        self._drained_at: float | None = None
        self._cut_at: float | None = None
        self._hung_up = False
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Work until drained.

        Raises:
            AgentrtError: the worker could not start: no database, another schema, bad settings.
        """
        store = await self._parts.stores.sessions()
        backoff = Backoff(0.5, most_seconds=self._parts.settings.lease_seconds)
        worked = False
        try:
            with self._signals():
                while not self._draining.is_set():
                    self._incarnation = Incarnation(self._parts, store, offering=self._offering)
                    try:
                        await self._incarnation.run(self._supervise)
                    except AgentrtError as error:
                        if not worked:
                            raise
                        self._emit(WarningRaised(message=f"cannot register anew: {error}"))
                        await wait_for(self._draining, backoff.failed())
                        continue
                    worked = True
                    backoff.succeeded()
                    reason = "drained" if self._draining.is_set() else "declared dead"
                    self._emit(WorkerStopped(worker_id=self._incarnation.worker.id, reason=reason))
        finally:
            if self._parts.owns_process:
                end_in_time(self._parts, code=0 if self._draining.is_set() else 1)
            await store.close()

    # --- ending -----------------------------------------------------------------------------------------------------

    def drain(self, reason: str) -> None:
        """Stop claiming, and end when everything is finished or released. Counted from the first call."""
        if self._drained_at is not None:
            return
        self._drained_at = self._parts.clock()
        self._draining.set()
        if self._incarnation is not None:
            worker_id, sessions = self._incarnation.worker.id, len(self._incarnation.holdings)
            self._emit(WorkerDraining(worker_id=worker_id, reason=reason, sessions=sessions))
            self._incarnation.begin_drain()

    def cut(self) -> None:
        """The drain's time is over now."""
        if self._cut_at is None:
            self._cut_at = self._parts.clock()
            if self._incarnation is not None:
                self._incarnation.changed.set()

    def _signalled(self, name: str) -> None:
        hangup = name == _HANGUP
        if self._drained_at is None:
            self._hung_up = hangup
            self.drain(name)
        elif self._hung_up:  # whoever closes the terminal may say it in both ways; that is no second thought
            self._hung_up = hangup
        elif not hangup:
            self.cut()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Not the loop's own way: that leaves the default actions behind, and one signal more while the process closes
        would end it as killed."""
        loop = asyncio.get_running_loop()

        def heard(number: int, _: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._signalled, signal.Signals(number).name)

        before = {number: signal.signal(number, heard) for number in (*SIGNALS, *_hangup())}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self._parts.owns_process else handler)

    async def _supervise(self, incarnation: Incarnation) -> None:
        """Wait for the end of the incarnation, and see that a drain keeps its time."""
        if self._draining.is_set():
            incarnation.begin_drain()
        cancelled: dict[Holding, float] = {}
        while incarnation.busy or not (incarnation.draining or incarnation.dead):
            incarnation.changed.clear()
            wait = self._cut_short(incarnation, cancelled) if incarnation.draining else None
            if incarnation.dead:
                wait = jittered(0.2)  # a tool's thread tells nobody that it has ended
            await wait_for(incarnation.changed, wait)

    def _cut_short(self, incarnation: Incarnation, cancelled: dict[Holding, float]) -> float:
        """Cancel what had its time; returns when to look again, in seconds."""
        now = self._parts.clock()
        for holding in incarnation.holdings:
            if holding in cancelled:
                over = now - cancelled[holding] - _LAST_SECONDS
                if over >= 0:
                    self._give_up(holding)
                if over >= _GIVEN_UP_SECONDS:
                    words = f"{holding!r} did not stop within {_LAST_SECONDS:g} s of being cancelled"
                    abort(incarnation.worker.id, words, emit=self._emit, leave=self._parts.leave)
            elif now >= self._due(holding):
                cancelled[holding] = now
                if holding.task is not None:
                    holding.task.cancel()
        dues = [self._due(holding) - now for holding in incarnation.holdings if holding not in cancelled]
        return max(0.01, min([1.0, *dues]))

    def _give_up(self, holding: Holding) -> None:
        """Leave a session to whoever sweeps, such as one whose row a client keeps locked: the others are released, and
        this worker has done what it could."""
        if holding.lose("it could not be released in the time of the drain"):
            seconds = f"{_LAST_SECONDS:g} s after it was stopped"
            words = f"session {holding.session.id} could not be released within {seconds}: the next sweep requeues it"
            self._emit(WarningRaised(message=words))

    def _due(self, holding: Holding) -> float:
        """When a session's time in the drain is over: started ``once`` tools get more."""
        if self._cut_at is not None:
            return self._cut_at
        settings = self._parts.settings
        seconds = settings.drain_tool_seconds if holding.once_running else settings.drain_seconds
        return (self._drained_at or 0.0) + seconds

    # --- what probes ask, from another thread ------------------------------------------------------------------------

    def live_problems(self) -> tuple[str, ...]:
        """What a restart of the process would help against."""
        incarnation = self._incarnation
        if incarnation is None:
            return ()
        keeper, problems = incarnation.keeper, []
        if keeper.registered and not keeper.alive and not self._draining.is_set():
            problems.append("the keeper's thread has ended")
        if keeper.stalled:
            problems.append("the main loop makes no progress")
        return tuple(problems)

    def ready_problems(self) -> tuple[str, ...]:
        """Why this worker cannot claim sessions just now."""
        incarnation = self._incarnation
        if incarnation is None or not incarnation.keeper.registered:
            return ("not registered yet",)
        keeper, problems = incarnation.keeper, list(self.live_problems())
        if self._draining.is_set():
            problems.append("draining")
        if incarnation.dead or keeper.dead:
            problems.append("declared dead, about to register anew")
        elif keeper.fenced:
            problems.append("the lease cannot be proven: nothing is begun")
        elif keeper.fence.broken:
            problems.append("the database does not answer heartbeats")
        return tuple(problems)

    def facts(self) -> dict[str, Any]:
        """What goes into a probe's answer beside the problems."""
        incarnation = self._incarnation
        if incarnation is None:
            return {}
        return {
            "worker_id": str(incarnation.worker.id),
            "sessions": len(incarnation.holdings),
            "slots": incarnation.worker.slots,
            "heartbeat_age_seconds": round(incarnation.keeper.heartbeat_age_seconds, 3),
        }


def _hangup() -> tuple[signal.Signals, ...]:
    """SIGHUP, unless nohup had it ignored; Windows has none."""
    numbers = [number for number in signal.Signals if number.name == _HANGUP]
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
