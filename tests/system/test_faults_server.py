"""What may happen to the server: it dies and recovers, and its notification queue fills up."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.history import assert_sound
from tests.system.conftest import AGENTS
from tests.system.fleet import fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.ownserver import own_server
from tests.system.sessions import ORPHANED, UNFINISHED, create, create_many

pytestmark = pytest.mark.system

OUTAGE = {"heartbeat_seconds": 3, "stop_seconds": 1, "lease_seconds": 10, "poll_seconds": 1}
"""Nobody is reaped who is back two heartbeats after the first one is: longer than this machine keeps one waiting."""
UNHARMED = "select count(*) from agentrt.sessions where attempt = 1 and takeovers = 0"


async def notify_for_ever(connection: asyncpg.Connection) -> None:
    while True:
        await connection.execute("select pg_notify('agentrt_ready', repeat('x', 7000))")


async def test_a_server_that_dies_and_comes_back_after_three_leases_finds_its_fleet_and_nobody_is_charged(
    tmp_path: Path, gates: Gates
) -> None:
    """Case 25, case 76."""
    env = {"GATES": str(gates.folder)}
    async with own_server() as server, fleet(server.url, AGENTS, tmp_path, env=env, **OUTAGE) as workers:
        connection = await asyncpg.connect(server.url)
        for number in range(5):
            workers.start(f"worker-{number}", slots=2)
        await wait_for_workers(connection, 5)
        for _ in range(10):
            await create(connection, "one", "gated_read")
        await until(connection, "select count(*) from agentrt.sessions where status = 'running'", want=10)
        known = await connection.fetch("select id from agentrt.workers order by id")

        await server.stop_immediately()
        await asyncio.sleep(3 * OUTAGE["lease_seconds"])  # the outage has to last
        assert all(worker.process.poll() is None for worker in workers.workers)
        await server.start()
        assert workers.url == server.url
        gates.open("tool")

        connection = await asyncpg.connect(server.url)
        await until(connection, UNFINISHED, want=0)
        assert await connection.fetchval(ORPHANED) == 0
        assert await connection.fetchval(UNHARMED) == 10
        assert await connection.fetch("select id from agentrt.workers where state = 'alive' order by id") == known
        await assert_sound(connection)
        await connection.close()


async def test_a_notification_queue_that_is_full_stops_neither_clients_nor_workers(
    tmp_path: Path, gates: Gates
) -> None:
    """Case 93."""
    async with (
        own_server(max_notify_queue_pages=64) as server,
        fleet(server.url, AGENTS, tmp_path, env={}) as workers,
    ):
        connection, hog = await asyncpg.connect(server.url), await asyncpg.connect(server.url)
        workers.start("only")
        await wait_for_workers(connection, 1)
        await hog.execute("listen agentrt_ready")
        await hog.execute("begin")  # what it has not heard stays in the queue
        await hog.execute("select 1")
        with pytest.raises(asyncpg.PostgresError, match="too many notifications"):
            await notify_for_ever(connection)
        full = await connection.fetchval("select pg_notification_queue_usage()")
        assert full > 0.5

        await create_many(connection, 100)
        await until(connection, UNFINISHED, want=0)
        assert await connection.fetchval("select pg_notification_queue_usage()") == full, "nothing was notified"
        await hog.execute("rollback")
        await assert_sound(connection)
        for one in (hog, connection):
            await one.close()
