"""Workers that die, and who goes on: a single replacement, a twin of the same name, a supervisor beside a poison."""

import json

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.system.chaos import supervised
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.sessions import BEFORE_ITS_LEASE_ENDED, STATUS, UNFINISHED, charged, create, owners

pytestmark = pytest.mark.system

AGENTS = str(CHECKOUT / "tests" / "system" / "takeover_agents.py")


async def test_the_replacement_of_the_only_worker_runs_its_sessions_before_the_lease_ends(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """Case 77; within how many heartbeats is measured by ``tests/benchmarks/recovery.py``."""
    first = workers.start("first", lease_seconds=60)
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    first.kill()
    workers.start("second", lease_seconds=60)
    gates.open("tool")
    await until(connection, STATUS, session, want="completed")
    assert await connection.fetchval(BEFORE_ITS_LEASE_ENDED, session)
    assert await owners(connection, session) == ["first", "second"]
    await assert_sound(connection)


async def test_two_workers_of_one_name_are_two_workers_and_the_survivor_finds_what_the_other_left(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """Case 20: also when the dead one's row is gone."""
    first = workers.start("twin")
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    workers.start("twin")
    await wait_for_workers(connection, 2)
    first.kill()
    await connection.execute("delete from agentrt.workers where pid = $1", first.pid)
    gates.open("tool")
    await until(connection, STATUS, session, want="completed")
    claims = await connection.fetch(
        "select worker_id, data ->> 'worker' as name from agentrt.journal where type = 'session_claimed' order by seq"
    )
    assert [row["name"] for row in claims] == ["twin", "twin"]
    assert claims[0]["worker_id"] != claims[1]["worker_id"]
    assert await charged(connection, session) == (1, 1), "taken over once, and then a step was committed"
    await assert_sound(connection)


async def test_a_session_that_kills_its_workers_fails_and_none_of_its_neighbours_does(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """Case 80."""
    workers.agents = AGENTS
    workers.settings = {"slots": 4}  # each has at least two of ten
    async with supervised(workers, 3) as supervisor:
        await wait_for_workers(connection, 3)
        healthy = [await create(connection, "healthy", f"work {number}") for number in range(10)]
        await until(connection, "select count(*) from agentrt.sessions where status = 'running'", want=10)
        poison = await create(connection, "poison", "drink")
        await until(connection, STATUS, poison, want="failed")
        gates.open("healthy")
        for session in healthy:
            await until(connection, STATUS, session, want="completed")
    outcome = await connection.fetchval("select outcome from agentrt.sessions where id = $1", poison)
    assert json.loads(outcome)["code"] == "attempts_exhausted"
    assert len(gates.effects()) == 5, "asked once for each attempt"
    assert supervisor.exits[-9] == 5
    taken = await connection.fetchval("select count(*) from agentrt.sessions where agent = 'healthy' and takeovers > 0")
    assert taken > 0, "a neighbour of the poison was taken over"
    await assert_sound(connection)


async def test_no_task_is_lost_to_the_garbage_collector(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """F25."""
    workers.agents = AGENTS
    workers.start(slots=10)
    await wait_for_workers(connection, 1)
    for number in range(10):
        await create(connection, "pressed", f"work {number}")
    await until(connection, UNFINISHED, want=0)
    results = await connection.fetchval("select count(*) from agentrt.journal where type = 'tool_result'")
    assert results == 10 * 5
    assert await connection.fetchval("select count(*) from agentrt.journal where type = 'session_claimed'") == 10
    await assert_sound(connection)
