"""Real worker processes that are killed, stopped, blocked and drained: who owns a session, and until when."""

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.sessions import BEFORE_ITS_LEASE_ENDED, MAY_JUDGE, STATUS, charged, create, owners

pytestmark = pytest.mark.system

BLOCKING = str(CHECKOUT / "tests" / "system" / "blocking_agents.py")
LEASE_SECONDS = 10
"""Of a lease whose end is waited for: longer than this machine may keep a process waiting before that is meant."""


async def test_a_killed_worker_is_replaced_before_its_lease_ends(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """Case 14; within how many heartbeats is measured by ``tests/benchmarks/recovery.py``."""
    first = workers.start("first", lease_seconds=60)
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    workers.start("second", lease_seconds=60)
    await until(connection, MAY_JUDGE, "second")
    first.kill()
    gates.open("tool")
    await until(connection, STATUS, session, want="completed")
    assert await owners(connection, session) == ["first", "second"]
    assert await connection.fetchval(BEFORE_ITS_LEASE_ENDED, session)
    await assert_sound(connection)


async def test_a_worker_stopped_past_its_lease_writes_nothing_more_and_leaves(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """F16."""
    first = workers.start("first", lease_seconds=LEASE_SECONDS)
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_once")
    await gates.reached("tool")
    workers.start("second")
    await wait_for_workers(connection, 2)
    first.pause()
    await until(connection, STATUS, session, want="completed")
    entries = await connection.fetchval("select last_seq from agentrt.sessions where id = $1", session)
    gates.open("tool")
    first.resume()
    assert await first.exit_code() == 70
    assert await connection.fetchval("select last_seq from agentrt.sessions where id = $1", session) == entries
    assert await owners(connection, session) == ["first", "second"]
    assert len(gates.effects()) == 1
    await assert_sound(connection)


@pytest.mark.parametrize("what", ["block_loop", "block_thread"])
async def test_what_blocks_for_ever_ends_the_process_before_others_own_its_sessions(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, what: str
) -> None:
    """Case 79."""
    workers.agents = BLOCKING
    first = workers.start("first", stall_seconds=5, lease_seconds=LEASE_SECONDS)
    await wait_for_workers(connection, 1)
    session = await create(connection, "blocking", what)
    await gates.reached("blocked")
    if what == "block_thread":  # the loop runs, but the database does not know the worker any more
        await connection.execute("update agentrt.workers set state = 'dead'")
    assert await first.exit_code() == 70
    workers.start("second")
    await until(connection, STATUS, session, want="completed")
    assert await owners(connection, session) == ["first", "second"]
    if what == "block_loop":
        assert "worker.stalled" in first.logged()
        assert "_block" in first.logged(), "where the main thread stood"
    await assert_sound(connection)


async def test_a_drain_lets_a_started_once_tool_finish_and_exits_with_zero(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates
) -> None:
    """F35."""
    first = workers.start("first", drain_seconds=0, drain_tool_seconds=600)
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_once")
    await gates.reached("tool")
    first.terminate()
    await until(connection, "select state from agentrt.workers", want="draining")
    workers.start("second")
    await wait_for_workers(connection, 1)
    gates.open("tool")
    assert await first.exit_code() == 0
    await until(connection, STATUS, session, want="completed")
    assert await charged(connection, session) == (1, 0)
    result = await connection.fetchval("select data ->> 'outcome' from agentrt.journal where type = 'tool_result'")
    assert result == "ok"
    assert len(gates.effects()) == 1
    await assert_sound(connection)
