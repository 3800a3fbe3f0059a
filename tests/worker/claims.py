"""A claimer and a reconciler on the real store, without a daemon."""

import asyncio
from typing import Any, Self

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import Session, WorkerId
from agentrt.ports import Claimed, Offer, SessionStore
from agentrt.worker.claimer import Claimer, Offering
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding, Holdings
from agentrt.worker.reconciler import Reconciler
from tests.worker.ownership import AGENT, Clock, Ground, settings


class Fleet:
    """A claimer and a reconciler of the ground's worker, without tasks that drive them."""

    def __init__(
        self,
        ground: Ground,
        *,
        store: SessionStore | None = None,
        slots: int = 5,
        poll_seconds: float = 5.0,
        **agents: str,
    ) -> None:
        self.ground = ground
        self.clock = Clock()
        self.holdings = Holdings()
        self.open = True
        self.doubts = 0
        self.renewals_wanted = 0
        self.offering = Offering(("default",), agents or {AGENT: "v1"}, emit=ground.heard, clock=self.clock)
        self.claimer = Claimer(
            store or ground.store,
            ground.worker.id,
            offering=self.offering,
            holdings=self.holdings,
            settings=settings(ground.url, slots=slots, poll_seconds=poll_seconds),
            start=self.start,
            open=lambda: self.open,
            listening=lambda: True,
            doubted=self.doubt,
            emit=ground.heard,
        )
        self.committer = Committer(ground.store, ground.worker.id, emit=ground.heard)
        self.reconciler = Reconciler(
            ground.store,
            self.committer,
            worker_id=ground.worker.id,
            holdings=self.holdings,
            pending_claim=lambda: self.claimer.pending,
            renew=self.want_renewal,
        )

    def start(self, session: Session) -> None:
        self.holdings.add(Holding(session))
        self.ground.heard.changed()

    def doubt(self) -> None:
        self.doubts += 1

    def want_renewal(self) -> None:
        self.renewals_wanted += 1

    async def renew(self) -> None:
        """One heartbeat."""
        held = self.holdings.snapshot()
        renewal = await self.ground.keeper.renew(self.ground.worker, None, draining=False)
        self.reconciler.renewed(held, renewal)

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(self.committer.run()), asyncio.create_task(self.reconciler.run())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class LosesClaims:
    """The real store; the claim commits, but its answer is lost, or is held up."""

    def __init__(self, store: SessionStore, changed: Any) -> None:
        self.store = store
        self.changed = changed
        self.lost = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.claims: list[tuple[Offer, int, int]] = []
        self.answers: list[Claimed] = []

    async def claim(self, worker_id: WorkerId, offer: Offer, *, limit: int, fragile_limit: int) -> Claimed:
        self.claims.append((offer, limit, fragile_limit))
        claimed = await self.store.claim(worker_id, offer, limit=limit, fragile_limit=fragile_limit)
        self.answers.append(claimed)
        self.changed()
        await self.gate.wait()
        if self.lost:
            self.lost -= 1
            raise DatabaseUnavailable("no answer")
        return claimed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)
