"""Free slots are filled with queued sessions: one statement for all of them, at a wake-up or at the poll interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrt.core.events import AgentUnavailable, ClaimFailed, ClaimFinished
from agentrt.core.session import Session, SessionId, WorkerId
from agentrt.ports import EventSink, Offer, SessionStore
from agentrt.settings import Settings
from agentrt.worker.holding import Holdings
from agentrt.worker.pacing import Backoff, jittered, wait_for

WITHHELD_SECONDS = 300.0
"""For how long an agent is not offered after a configuration error; then one session is tried."""

_DEAF_POLL_SECONDS = 1.0


@dataclass(slots=True)
class _Withheld:
    until: float
    trial: SessionId | None = None


class Offering:
    """Which agents this worker offers just now, with their versions."""

    def __init__(
        self,
        queues: Sequence[str],
        agents: Mapping[str, str],
        *,
        emit: EventSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = tuple(queues)
        self._agents = dict(agents)
        self._emit = emit
        self._clock = clock
        self._withheld: dict[str, _Withheld] = {}

    def withhold(self, agent: str, error: str) -> None:
        """Do not offer ``agent`` for a while: its model cannot be used as this worker is configured."""
        if agent not in self._withheld or self._withheld[agent].trial is not None:
            self._emit(AgentUnavailable(agent=agent, error=error))
        self._withheld[agent] = _Withheld(self._clock() + jittered(WITHHELD_SECONDS, spread=0.1))

    def offered(self) -> tuple[str, ...]:
        """What others are told: the agents that are not withheld, a trial or not. From any thread."""
        return tuple(sorted(agent for agent in self._agents if agent not in self._withheld))

    def begun(self, session: Session) -> None:
        """``session`` was claimed; it is the trial of its agent, if there is one to be made."""
        if session.agent in self._withheld:
            self._withheld[session.agent].trial = session.id

    def ended(self, session: Session) -> None:
        """``session`` has left its slot: a trial that was not withheld again has succeeded."""
        if session.agent in self._withheld and self._withheld[session.agent].trial == session.id:
            del self._withheld[session.agent]

    def offers(self) -> Iterator[tuple[Offer, bool]]:
        """What to claim for, and whether it is a trial, of one session."""
        sound = {agent: version for agent, version in self._agents.items() if agent not in self._withheld}
        if sound:
            yield Offer(queues=self._queues, agents=sound), False
        for agent, withheld in list(self._withheld.items()):
            if agent in self._agents and withheld.trial is None and self._clock() >= withheld.until:
                yield Offer(queues=self._queues, agents={agent: self._agents[agent]}), True


class Claimer:
    """Claims for one worker incarnation.

    Args:
        store: Where to claim.
        worker_id: The incarnation that claims.
        offering: Which agents to claim for.
        holdings: What is held; free slots are the settings' less these.
        settings: Slots and the poll interval.
        start: Takes over a claimed session; called before the claim counts as answered.
        open: Whether anything may be begun now.
        listening: Whether notifications arrive.
        doubted: Called when the database has this worker as dead.
        emit: Hears of each claim.
    """

    def __init__(
        self,
        store: SessionStore,
        worker_id: WorkerId,
        *,
        offering: Offering,
        holdings: Holdings,
        settings: Settings,
        start: Callable[[Session], None],
        open: Callable[[], bool],  # noqa: A002 - the claimer is open or shut
        listening: Callable[[], bool],
        doubted: Callable[[], None],
        emit: EventSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._offering = offering
        self._holdings = holdings
        self._settings = settings
        self._start = start
        self._open = open
        self._listening = listening
        self._doubted = doubted
        self._emit = emit
        self._clock = clock
        self._woken = asyncio.Event()
        self._hungry = True
        self._poll_at = clock()
        self._stopping = asyncio.Event()
        self._claims = 0
        self.unanswered = False
        """Whether a claim ever failed: it may have been made all the same."""
        self.pending: int | None = None
        """The number of the claim that is on its way: what it brings is owned, but not held yet."""

    @property
    def free(self) -> int:
        """Slots that hold no session."""
        return self._settings.slots - len(self._holdings)

    def look(self) -> None:
        """There may be sessions to claim."""
        self._hungry = True
        self._woken.set()

    def wake(self) -> None:
        """A slot is free, or the fence is lifted."""
        self._woken.set()

    def stop(self) -> None:
        """Claim no more: ``run`` returns when the claim on its way is answered."""
        self._stopping.set()
        self._woken.set()

    async def run(self) -> None:
        """Claim until ``stop``."""
        backoff = Backoff(0.1, most_seconds=self._settings.poll_seconds)
        while not self._stopping.is_set():
            self._woken.clear()
            if self._hungry and self.free > 0 and self._open():
                self._hungry = False  # who calls ``look`` from now on may mean what this claim does not see
                try:
                    if await self.claim_once(self.free) > 0:
                        self._hungry = True
                except Exception as error:  # noqa: BLE001 - a daemon loop: reported, and tried again
                    self._hungry = True
                    self._emit(ClaimFailed(error=str(error) or repr(error)))
                    await wait_for(self._stopping, backoff.failed())
                    continue
                backoff.succeeded()
                self._looked()
                if self._hungry:
                    continue
            await self._wait()

    async def _wait(self) -> None:
        """Wait for a wake-up, or until the next poll is due: wake-ups for other reasons do not put it off."""
        await wait_for(self._woken, self._poll_at - self._clock())
        if self._clock() >= self._poll_at:
            self._hungry = True
            self._looked()

    def _looked(self) -> None:
        """The next poll is due a whole interval from now."""
        poll = (
            self._settings.poll_seconds if self._listening() else min(_DEAF_POLL_SECONDS, self._settings.poll_seconds)
        )
        self._poll_at = self._clock() + jittered(poll)

    async def claim_next_session(self) -> int:
        """Claim one session, if there is one."""
        return await self.claim_once(1)

    async def claim_once(self, limit: int) -> int:
        """Claim up to ``limit`` sessions and start them; returns how many."""
        total = 0
        for offer, trial in self._offering.offers():
            wanted = min(limit - total, 1 if trial else limit)
            if wanted > 0:
                total += await self._claim(offer, wanted)
        return total

    async def _claim(self, offer: Offer, limit: int) -> int:
        begun = self._clock()
        self._claims += 1
        self.pending = self._claims
        try:
            fragile = 0 if self._holdings.fragile else 1
            claimed = await self._store.claim(self._worker_id, offer, limit=limit, fragile_limit=fragile)
            self.unanswered |= not claimed.whole
            for session in claimed.sessions:
                self._offering.begun(session)
                self._start(session)
        except BaseException:
            self.unanswered = True
            raise
        finally:
            self.pending = None
        self._emit(ClaimFinished(seconds=self._clock() - begun, sessions=len(claimed.sessions)))
        if not claimed.alive:
            self._doubted()
        return len(claimed.sessions)
