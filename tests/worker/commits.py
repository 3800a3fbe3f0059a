"""A committer on the real store, whose calls a test sees, holds up, or leaves without an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import WorkerId
from agentrt.ports import SessionStore, Write, Written
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresStores
from agentrt.worker.committer import Committer
from tests.worker.ownership import Ground

Calls = list[tuple[str, tuple[Write, ...], bool]]


class Watched:
    """The real store; remembers its calls, and may hold them up, or fail before the commit (with an error of ``kind``)
    or after it."""

    def __init__(self, store: SessionStore, changed: Callable[[], None]) -> None:
        self.store = store
        self.changed = changed
        self.calls: Calls = []
        self.before = 0
        self.after = 0
        self.kind: type[Exception] = DatabaseUnavailable
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    async def append(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        return await self._call("append", self.store.append, worker_id, writes, side)

    async def end(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        return await self._call("end", self.store.end, worker_id, writes, side)

    async def _call(
        self, name: str, function: Any, worker_id: WorkerId, writes: Sequence[Write], side: bool
    ) -> Sequence[Written]:
        self.calls.append((name, tuple(writes), side))
        self.arrived.set()
        self.changed()
        await self.gate.wait()
        if self.before:
            self.before -= 1
            raise self.kind("refused before the commit")
        answers: Sequence[Written] = await function(worker_id, writes, side=side)
        if self.after:
            self.after -= 1
            raise DatabaseUnavailable("the connection broke after the commit")
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@asynccontextmanager
async def within(ground: Ground, **limits: float) -> AsyncIterator[Ground]:
    """The ground with a store of other time limits."""
    store = await PostgresStores(DatabaseOptions(url=ground.url, **limits)).sessions()  # type: ignore[arg-type]
    try:
        yield replace(ground, store=store)
    finally:
        await store.close()


@asynccontextmanager
async def committing(ground: Ground) -> AsyncIterator[tuple[Committer, Watched]]:
    watched = Watched(ground.store, ground.heard.changed)
    committer = Committer(watched, ground.worker.id, emit=ground.heard)
    task = asyncio.create_task(committer.run())
    await asyncio.sleep(0)
    yield committer, watched
    task.cancel()
    await asyncio.wait({task})
