"""What the tests of holding, writing, keeping and claiming share: the real store, sessions, and the events heard."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg

from agentrt.core.events import Event
from agentrt.core.journal import ToolResult
from agentrt.core.session import CallId, SessionId, WorkerId
from agentrt.ports import KeeperStore, NewEntry, Offer, SessionStore, WorkerInfo
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresStores
from agentrt.settings import Settings
from agentrt.worker.holding import Holding
from tests.postgres.stage import HANGS_AFTER_SECONDS

AGENT = "auditor"
OFFER = Offer(queues=("default",), agents={AGENT: "v1"})


class Heard:
    """An event sink that remembers, and lets a test wait for what it hears, from whichever thread."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.changed()

    def changed(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # the test is over
            return

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait until ``true`` holds; asked again after whatever is heard. The bound only ends what would never end."""
        async with asyncio.timeout(HANGS_AFTER_SECONDS):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Clock:
    """Monotonic seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def settings(url: str, **values: Any) -> Settings:
    return Settings(database_url=url, **values)


def stores(url: str) -> PostgresStores:
    return PostgresStores(DatabaseOptions(url=url))


def worker_info(**values: Any) -> WorkerInfo:
    known: dict[str, Any] = {
        "id": WorkerId(uuid4()),
        "name": "test",
        "host": "here",
        "pid": 1,
        "version": "0",
        "agents": (AGENT,),
        "queues": ("default",),
        "slots": 20,
        "heartbeat_seconds": 2.0,
        "lease_seconds": 15.0,
    }
    return WorkerInfo(**(known | values))


def result(text: str = "done", *, call_id: str = "c", dedup_key: str | None = None) -> NewEntry:
    return NewEntry(data=ToolResult(call_id=CallId(call_id), tool="look", content=text), dedup_key=dedup_key)


@dataclass
class Ground:
    """One worker's store and registration, without a daemon, and a plain connection to look and to disturb."""

    url: str
    connection: asyncpg.Connection
    store: SessionStore
    keeper: KeeperStore
    worker: WorkerInfo
    heard: Heard

    async def create(self, message: str = "hello", **options: Any) -> SessionId:
        made = await self.connection.fetchval(
            "select agentrt.create_session($1, $2, $3)", options.pop("agent", AGENT), message, json.dumps(options)
        )
        return SessionId(made)

    async def hold(self, count: int = 1) -> list[Holding]:
        """Create sessions and claim them."""
        for _ in range(count):
            await self.create()
        claimed = await self.store.claim(self.worker.id, OFFER, limit=count, fragile_limit=count)
        assert len(claimed.sessions) == count
        return [Holding(session) for session in claimed.sessions]

    async def row(self, session_id: SessionId) -> asyncpg.Record:
        row = await self.connection.fetchrow("select * from agentrt.sessions where id = $1", session_id)
        assert row is not None
        return row

    async def journal(self, session_id: SessionId) -> list[asyncpg.Record]:
        return await self.connection.fetch(
            "select * from agentrt.journal where session_id = $1 order by seq", session_id
        )

    async def results(self, session_id: SessionId) -> list[str]:
        return [
            json.loads(row["data"])["content"] for row in await self.journal(session_id) if row["type"] == "tool_result"
        ]

    async def state(self, worker_id: WorkerId) -> str | None:
        state: str | None = await self.connection.fetchval("select state from agentrt.workers where id = $1", worker_id)
        return state

    async def silence(self, worker_id: WorkerId, *, seconds: float) -> None:
        """The worker's last renewal was so long ago."""
        await self.connection.execute(
            "update agentrt.workers set renewed_at = renewed_at - make_interval(secs => $2), "
            "lease_expires_at = lease_expires_at - make_interval(secs => $2) where id = $1",
            worker_id,
            seconds,
        )

    async def reap(self, worker_id: WorkerId) -> None:
        """Another worker declared this one dead and swept."""
        await self.connection.execute("update agentrt.workers set state = 'dead' where id = $1", worker_id)
        reaper = await stores(self.url).reaper()
        await reaper.sweep(worker_id)
        await reaper.close()

    async def terminate(self, role: str) -> int:
        """Cut the connections of this role; how many there were."""
        cut = await self.connection.fetch(
            "select pg_terminate_backend(pid, 20000) from pg_stat_activity "
            "where datname = current_database() and application_name = $1",
            f"agentrt {role}",
        )
        return len(cut)
