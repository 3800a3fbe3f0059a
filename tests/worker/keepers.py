"""A keeper whose methods a test calls, on the real database."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentrt.core.session import FencingToken, SessionId
from agentrt.ports import Renewal
from agentrt.worker.holding import Holding, Holdings
from agentrt.worker.keeper import Keeper, KeeperHandlers
from agentrt.worker.watchdog import MainLoop
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.ownership import OFFER, Clock, Ground, settings, stores, worker_info


class Kept:
    """A keeper without its thread, and what it told the main loop."""

    def __init__(self, ground: Ground, **values: Any) -> None:
        self.clock = Clock()
        self.holdings = Holdings()
        self.told: list[str] = []
        self.renewals: list[tuple[Mapping[SessionId, FencingToken], Renewal]] = []
        self.left: list[int] = []
        self.threads = 0
        loop = asyncio.get_running_loop()
        self.keeper = Keeper(
            stores(ground.url),
            worker_info(lease_seconds=settings(ground.url, **values).lease_seconds),
            holdings=self.holdings,
            settings=settings(ground.url, **values),
            handlers=KeeperHandlers(
                registered=lambda: self.tell("registered"),
                renewed=lambda held, renewal: self.renewals.append((held, renewal)),
                fenced=lambda _: self.tell("fenced"),
                unfenced=lambda: self.tell("unfenced"),
                dead=lambda: self.tell("dead"),
                failed=lambda error: self.tell(f"failed: {error}"),
            ),
            main=MainLoop(loop, thread_id=threading.get_ident(), clock=self.clock),
            emit=ground.heard,
            threads_running=lambda: self.threads,
            leave=self.left.append,
            clock=self.clock,
        )
        self.keeper._beat_limit = HANGS_AFTER_SECONDS  # only the clock above decides
        self.id = self.keeper.worker.id
        self.ground = ground

    def tell(self, what: str) -> None:
        self.told.append(what)
        self.ground.heard.changed()

    async def beat(self) -> bool:
        renewed = await self.keeper.beat_once()
        await asyncio.sleep(0)  # what was told has arrived
        return renewed

    def stalled(self) -> bool:
        return self.keeper.stalled

    async def watch(self) -> None:
        self.keeper.watch_once()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def hold(self) -> Holding:
        await self.ground.create()
        claimed = await self.ground.store.claim(self.id, OFFER, limit=1, fragile_limit=1)
        holding = Holding(claimed.sessions[0])
        self.holdings.add(holding)
        return holding


@asynccontextmanager
async def kept(ground: Ground, **values: Any) -> AsyncIterator[Kept]:
    one = Kept(ground, **values)
    try:
        yield one
    finally:
        await one.keeper._close()
