"""What may happen between workers and the database: dropped packets, refused and terminated connections."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import asyncpg
import pytest

from tests.history import assert_sound
from tests.postgres.proxy import Proxy, proxied
from tests.system.fleet import MOST_SECONDS, Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.scraping import free_port
from tests.system.sessions import (
    ENTRIES,
    MAY_JUDGE,
    ORPHANED,
    STATUS,
    UNFINISHED,
    charged,
    create,
    create_many,
    owners,
)

pytestmark = pytest.mark.system

LEASE = 15
OUTLASTED = {"stop_seconds": 6, "lease_seconds": LEASE}
"""Of a lease whose end is waited for: some seconds lie between what has to happen before it and what after it."""


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as proxy:
        yield proxy


def _ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


async def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of a probe."""
    return await asyncio.to_thread(_ask, port, path)


async def until_ready(port: int, *, want: bool) -> dict[str, Any]:
    """Until ``/readyz`` says so; its body."""
    async with asyncio.timeout(MOST_SECONDS):
        while True:
            status, body = await probe(port, "readyz")
            if (status == 200) == want:
                return body
            await asyncio.sleep(0.05)


async def until_empty(port: int) -> None:
    """Until it holds no session any more; it is not ready meanwhile."""
    async with asyncio.timeout(MOST_SECONDS):
        while (answer := await probe(port, "readyz"))[1]["sessions"]:
            assert answer[0] == 503
            await asyncio.sleep(0.05)


async def test_a_worker_whose_packets_are_dropped_stops_within_its_lease_and_comes_back_by_itself(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, proxy: Proxy
) -> None:
    """F17: nobody tells the worker, and the server still holds its advisory lock."""
    port = free_port()
    direct, workers.url = workers.url, proxy.url
    first = workers.start("first", **OUTLASTED, http_port=port)
    await wait_for_workers(connection, 1)
    held = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    workers.url = direct
    second = workers.start("second")
    await until(connection, MAY_JUDGE, "second")

    proxy.swallows = True
    dropped = time.monotonic()
    await until_ready(port, want=False)
    assert time.monotonic() - dropped < LEASE, "a time limit fired"
    await until_empty(port)
    assert time.monotonic() - dropped < LEASE, "it stopped before others may own its sessions"
    await until(connection, ENTRIES, held, "session_claimed", want=2)
    gates.open("tool")
    await until(connection, STATUS, held, want="completed")
    assert await owners(connection, held) == ["first", "second"]
    assert (await probe(port, "livez"))[0] == 200, "a restart would not help"

    proxy.swallows = False
    await until_ready(port, want=True)
    second.kill()
    await create_many(connection, 20)
    await until(connection, UNFINISHED, want=0)
    assert first.process.poll() is None
    await assert_sound(connection)


async def test_a_database_that_refuses_connections_for_three_leases_is_waited_for_without_a_storm(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, proxy: Proxy
) -> None:
    """Case 25: stopped in time, renewed under the same id, released uncharged."""
    port = free_port()
    workers.url = proxy.url
    lease = 8
    worker = workers.start("only", lease_seconds=lease, http_port=port)
    await wait_for_workers(connection, 1)
    held = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    identity = await connection.fetchval("select id from agentrt.workers")

    proxy.refuses = True
    await proxy.cut()
    arrivals, refused = proxy.arrivals, time.monotonic()
    await until_ready(port, want=False)
    await until_empty(port)
    assert time.monotonic() - refused < lease, "stopped before the lease ended"
    waiting = await create(connection, "three", "take 2")
    await asyncio.sleep(max(0.0, 3 * lease - (time.monotonic() - refused)))  # the outage has to last
    assert proxy.arrivals - arrivals < 20 * (time.monotonic() - refused), "no hot loop"
    assert worker.process.poll() is None
    assert (await probe(port, "livez"))[0] == 200
    assert (await probe(port, "readyz"))[0] == 503

    proxy.refuses = False
    gates.open("tool")
    for session in (held, waiting):
        await until(connection, STATUS, session, want="completed")
        assert await charged(connection, session) == (1, 0)
    released = "select data ->> 'reason' from agentrt.journal where type = 'session_released'"
    assert await connection.fetchval(released) == "fenced"
    assert [row["id"] for row in await connection.fetch("select id from agentrt.workers")] == [identity]
    await assert_sound(connection)


async def test_connections_that_are_terminated_again_and_again_lose_and_double_nothing(
    workers: Fleet, connection: asyncpg.Connection
) -> None:
    """Case 31, case 78, F18: and nobody is declared dead who is back within two heartbeats."""
    for name in ("first", "second"):
        workers.start(name, heartbeat_seconds=3, slots=10)  # two of these are longer than any pause of this machine
    await wait_for_workers(connection, 2)
    await create_many(connection, 500)
    for _ in range(6):
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name like 'agentrt %'"
        )
        await asyncio.sleep(0.7)  # load has to go on between
    await until(connection, UNFINISHED, want=0)
    assert await connection.fetchval(ORPHANED) == 0
    counted = await connection.fetch(
        "select count(*) filter (where type = 'assistant_message') as answers, "
        "count(*) filter (where type = 'tool_result') as results from agentrt.journal group by session_id"
    )
    assert {tuple(row) for row in counted} == {(3, 2)}
    assert await connection.fetchval("select count(*) from agentrt.workers") == 2
    for worker in workers.workers:
        await worker.says("listener.reconnected")
    await assert_sound(connection)
