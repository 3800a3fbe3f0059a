"""Queue depths for ``/metrics``: asked from the database while somebody scrapes, and answered from a cache."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from agentrt.core.errors import AgentrtError
from agentrt.ports import QueueDepth

REFRESH_SECONDS = 10.0
WANTED_SECONDS = 120.0  # after the last scrape
STALE_SECONDS = 60.0


class QueueDepths:
    """``read`` answers at once, from any thread; ``run`` refreshes in the event loop that it is awaited in."""

    def __init__(
        self, fetch: Callable[[], Awaitable[Sequence[QueueDepth]]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._rows: Sequence[QueueDepth] = ()
        self._fetched_at = -math.inf
        self._wanted_at = -math.inf

    def read(self) -> Sequence[QueueDepth]:
        """What was last seen; nothing when that is too long ago, so that an outage shows no false figures."""
        self._wanted_at = self._clock()
        return self._rows if self._clock() - self._fetched_at < STALE_SECONDS else ()

    async def refresh(self) -> None:
        """Ask once, if somebody has scraped lately."""
        if self._clock() - self._wanted_at >= WANTED_SECONDS:
            return
        try:
            self._rows = await self._fetch()
            self._fetched_at = self._clock()
        except AgentrtError:
            pass  # the heartbeat says already that the database is away

    async def run(self) -> None:
        """Refresh until cancelled; looks often, so that the second scrape has figures."""
        while True:
            if self._clock() - self._fetched_at >= REFRESH_SECONDS:
                await self.refresh()
            await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311 - spreads the load, hides nothing
