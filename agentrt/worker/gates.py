"""How many model calls a worker makes at once, for each provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ModelGates:
    """One gate per provider, opened at its first use. A call that waits for one keeps its slot."""

    def __init__(self) -> None:
        self._gates: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def passing(self, provider: str, *, at_once: int) -> AsyncIterator[None]:
        """Be one of at most ``at_once`` calls to ``provider``; 0 is no limit."""
        if at_once <= 0:
            yield
            return
        async with self._gates.setdefault(provider, asyncio.Semaphore(at_once)):
            yield
