"""Workers behind a pooler in transaction mode, where LISTEN is deaf and a session's locks are anybody's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from agentrt import connect
from agentrt.core.finding import Level
from agentrt.core.journal import SessionCompleted
from agentrt.postgres import doctor, keeping
from agentrt.postgres.keeping import PostgresKeeperStore
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresStores
from tests.history import assert_sound
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.pooler import PROGRAM, pooled
from tests.system.sessions import (
    BEFORE_ITS_LEASE_ENDED,
    MAY_JUDGE,
    STATUS,
    UNFINISHED,
    charged,
    create,
    create_many,
    owners,
)
from tests.worker.ownership import worker_info

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (apt-get install pgbouncer)"),
]

DEAF = "LISTEN does not work"
LOCKLESS = "advisory locks do not work"
HOLDER = """
select l.pid from pg_locks l join pg_database d on d.oid = l.database
where l.locktype = 'advisory' and d.datname = current_database()
"""
"""Of the one advisory lock in this database: other tests' workers have theirs on the same server."""


async def kill_the_owner(workers: Fleet, connection: asyncpg.Connection, gates: Gates) -> bool:
    """SIGKILL the worker in the middle of a tool; whether another one got the session before the lease ended."""
    session = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    workers.start("second")
    await until(connection, MAY_JUDGE, "second")
    workers.workers[0].kill()
    gates.open("tool")
    await until(connection, STATUS, session, want="completed")
    assert await owners(connection, session) == ["first", "second"]
    assert await charged(connection, session) == (1, 1)
    return bool(await connection.fetchval(BEFORE_ITS_LEASE_ENDED, session))


async def test_with_a_direct_url_nothing_falls_back_and_a_killed_worker_is_replaced_before_its_lease_ends(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, database_url: str, tmp_path: Path
) -> None:
    """Case 14."""
    async with pooled(database_url, tmp_path) as workers.url:
        workers.settings = {"direct_database_url": database_url, "lease_seconds": 60}
        workers.start("first")
        await wait_for_workers(connection, 1)
        await create_many(connection, 100)
        await until(connection, UNFINISHED, want=0)
        assert await connection.fetchval("select bool_and(liveness_key is not null) from agentrt.workers")
        assert await kill_the_owner(workers, connection, gates)
    for worker in workers.workers:
        assert DEAF not in worker.logged()
        assert LOCKLESS not in worker.logged()
    await assert_sound(connection)


async def test_without_a_direct_url_polling_and_the_end_of_the_lease_do_and_that_is_said_once(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, database_url: str, tmp_path: Path
) -> None:
    """Case 14."""
    async with pooled(database_url, tmp_path) as workers.url:
        workers.settings = {"lease_seconds": 12}
        workers.start("first")
        await wait_for_workers(connection, 1)
        await create_many(connection, 100)
        await until(connection, UNFINISHED, want=0)
        await until(connection, "select bool_and(liveness_key is null) from agentrt.workers")
        await workers.workers[0].says(DEAF)
        assert not await kill_the_owner(workers, connection, gates)
        for worker in workers.workers:
            for words in (DEAF, LOCKLESS):
                await worker.says(words)
                assert worker.logged().count(words) == 1
    await assert_sound(connection)


async def test_a_lock_that_turns_out_to_be_anybodys_protects_nobody_from_the_next_heartbeat_on(
    connection: asyncpg.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof can be deceived while the pooler's connections are busy with others."""
    monkeypatch.setattr(keeping, "_LOOKS", 0)
    worker = worker_info()
    async with pooled(database_url, tmp_path) as url, AsyncExitStack() as others:
        store = await PostgresStores(DatabaseOptions(url=url)).keeper()
        key = await store.lock_liveness()
        await store.register(worker, key)
        assert (await store.renew(worker, key, draining=False)).locked
        holder = await connection.fetchval(HOLDER)
        taken = None
        while taken != holder:
            other = await asyncpg.connect(url, statement_cache_size=0)
            others.push_async_callback(other.close)
            await other.execute("begin")
            taken = await other.fetchval("select pg_backend_pid()")
        assert not (await store.renew(worker, key, draining=False)).locked
        await store.close()
    assert await connection.fetchval("select liveness_key from agentrt.workers") is None


@asynccontextmanager
async def busy(url: str) -> AsyncIterator[None]:
    """Three clients that always ask something."""

    async def ask() -> None:
        client = await asyncpg.connect(url, statement_cache_size=0)
        try:
            while not over:
                await client.execute("select pg_sleep(0.002)")
        finally:
            await client.close()

    over = False
    async with asyncio.TaskGroup() as asking:
        for _ in range(3):
            asking.create_task(ask())
        try:
            yield
        finally:
            over = True


async def test_the_process_that_holds_the_lock_is_known_however_busy_the_pooler_is(
    connection: asyncpg.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_LOOKS", 0)
    async with pooled(database_url, tmp_path) as url, busy(url):
        for _ in range(100):
            store = PostgresKeeperStore(DatabaseOptions(url=url))
            key = await store.lock_liveness()
            holder = await connection.fetchval(
                "select pid from pg_locks where locktype = 'advisory' and (classid::bigint << 32) + objid::bigint = $1",
                key,
            )
            assert holder == store._server
            await store.close()


async def test_the_doctor_looks_more_often_than_a_worker_which_would_find_out_later(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_LOOKS", 0)
    async with pooled(database_url, tmp_path) as url:
        found = {finding.check: finding async for finding in doctor.examine(DatabaseOptions(url=url))}
    assert found["advisory locks"].level is Level.WARNING
    assert "AGENTRT_DIRECT_DATABASE_URL" in found["advisory locks"].text


async def test_a_client_behind_a_pooler_creates_and_follows_a_session_to_its_end(
    workers: Fleet, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    async with pooled(database_url, tmp_path) as workers.url, connect(workers.url) as client:
        workers.start("only")
        session = await client.create("three", "take 2")
        followed = []
        async with aclosing(client.follow(session)) as entries:
            async for entry in entries:
                followed.append(entry.seq)
                if isinstance(entry.data, SessionCompleted):
                    break
        assert followed == list(range(1, len(followed) + 1))
    await assert_sound(connection)
