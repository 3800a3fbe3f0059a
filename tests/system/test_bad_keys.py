"""Workers whose key the provider refuses at run time: with a sound worker beside them, and without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.commandline import run
from tests.history import assert_sound
from tests.strictprovider.process import StrictProviderProcess
from tests.system.fleet import Worker, fleet, until, wait_for_workers

pytestmark = pytest.mark.system

AGENTS = "tests.system.provider_agents"
AGENT = "anthropic"
SLOTS = 5
PATIENT: dict[str, Any] = {"lease_seconds": 120}
"""No takeover belongs to the counts, however busy the machine is, and though one of them is stopped for a while."""

CREATE = "select count(agentrt.create_session($2, 'say ' || n)) from generate_series(1, $1::int) n"
STATUSES = "select status, count(*) from agentrt.sessions group by status order by status"
CLAIMS = """
select w.name, count(*) from agentrt.journal j join agentrt.workers w on w.id = j.worker_id
where j.type = 'session_claimed' group by w.name
"""
GAVE_BACK = """
select count(*) from agentrt.journal where type = 'session_released' and data ->> 'reason' = 'model unavailable'
  and data ->> 'message' like '%401%'
"""
QUIET = """
select not exists (select from agentrt.sessions where status = 'running')
  and not exists (select from agentrt.workers where agent = any (agents))
from (select $1::text as agent) a
"""


@asynccontextmanager
async def serving(
    url: str, folder: Path, provider: StrictProviderProcess, **keys: str
) -> AsyncIterator[dict[str, Worker]]:
    """One worker for each key, by its name in ``keys``."""
    workers = {}
    async with AsyncExitStack() as stack:
        for name, key in keys.items():
            env = {
                "OPENAI_API_KEY": key,
                "OPENAI_BASE_URL": provider.openai_url,
                "ANTHROPIC_API_KEY": key,
                "ANTHROPIC_BASE_URL": provider.anthropic_url,
            }
            running = await stack.enter_async_context(fleet(url, AGENTS, folder, env=env, **PATIENT))
            workers[name] = running.start(name, slots=SLOTS)
        yield workers


async def counts(connection: asyncpg.Connection, query: str) -> dict[str, int]:
    return {row[0]: row[1] for row in await connection.fetch(query)}


async def test_a_worker_with_a_bad_key_drains_no_queue_beside_one_with_a_good_key(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    """F30."""
    with StrictProviderProcess("echo", "--key", "good") as provider:
        async with serving(database_url, tmp_path, provider, able="good", unable="bad") as workers:
            await wait_for_workers(connection, 2)
            workers["able"].pause()  # it might have done everything before the other one came to anything
            await connection.execute(CREATE, 100, AGENT)
            await until(connection, f"select ({GAVE_BACK}) > 0")
            workers["able"].resume()
            await until(
                connection, "select count(*) from agentrt.sessions where status = 'completed'", want=100, seconds=200
            )
            claims = await counts(connection, CLAIMS)
            offered = "select $1 = any (agents) from agentrt.worker_list where name = 'unable'"
            await until(connection, offered, AGENT, want=False)
    assert 0 < claims["unable"] <= SLOTS
    assert await connection.fetchval(GAVE_BACK) == claims["unable"]
    assert await connection.fetchval("select max(attempt) from agentrt.sessions") == 1
    await assert_sound(connection)


async def test_workers_that_all_have_a_bad_key_block_what_they_tried_and_a_bulk_resume_wakes_it(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    """F30, F31: nothing fails, nothing loops."""
    with StrictProviderProcess("echo", "--key", "good") as provider:
        async with serving(database_url, tmp_path, provider, one="bad", two="worse"):
            await wait_for_workers(connection, 2)
            await connection.execute(CREATE, 100, AGENT)
            await until(connection, "select count(*) > 0 from agentrt.sessions where status = 'suspended'")
            await until(connection, QUIET, AGENT)
            left = await counts(connection, STATUSES)
            messages = await connection.fetch("select distinct suspension ->> 'message' from agentrt.session_list")
            claims = await counts(connection, CLAIMS)
        assert left.keys() == {"queued", "suspended"}
        assert all("401" in row[0] for row in messages if row[0])
        assert max(claims.values()) <= SLOTS
        assert len(provider.requests()) == sum(claims.values())
        async with serving(database_url, tmp_path, provider, able="good"):
            woken = ("sessions", "resume", "--reason", "blocked", "--agent", AGENT)
            ran = await asyncio.to_thread(run, *woken, url=database_url)
            assert (ran.code, len(ran.out.split())) == (0, left["suspended"])
            await until(
                connection, "select count(*) from agentrt.sessions where status = 'completed'", want=100, seconds=200
            )
    await assert_sound(connection)
