"""A worker that is told to stop in the middle of a long tool, and one that dies before it has noticed a cancel."""

from uuid import UUID

import asyncpg
import pytest

from tests.history import assert_sound
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates

pytestmark = pytest.mark.system

STATUS = "select status from agentrt.sessions where id = $1"
STATE = "select state from agentrt.workers where id = $1"
OWNER = "select lease_owner from agentrt.sessions where id = $1"
TYPES = "select array_agg(type order by seq) from agentrt.journal where session_id = $1"
OUTCOMES = """
select array_agg(data ->> 'outcome') from agentrt.journal where session_id = $1 and type = 'tool_result'
"""


async def create(connection: asyncpg.Connection, message: str) -> UUID:
    session: UUID = await connection.fetchval("select agentrt.create_session('one', $1)", message)
    return session


async def test_a_tool_that_outlasts_the_drain_is_cut_and_its_session_given_back_without_an_attempt(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    """F21: renewals go on until the last slot is empty; the tool would have waited for ever."""
    worker = workers.start(drain_seconds=10, drain_tool_seconds=10)  # a renewal has to be seen in this time
    await wait_for_workers(connection, 1)
    session = await create(connection, "gated_read")
    await gates.reached("tool")
    owner = await connection.fetchval(OWNER, session)
    worker.terminate()
    await until(connection, STATE, owner, want="draining")
    begun = await connection.fetchval("select renewed_at from agentrt.workers where id = $1", owner)
    renewed = "select renewed_at > $2::timestamptz from agentrt.workers where id = $1 and state = 'draining'"
    await until(connection, renewed, owner, begun)
    assert await connection.fetchval(OWNER, session) == owner, "it holds what it renews for"
    assert await worker.exit_code() == 0
    assert await connection.fetchval(STATE, owner) == "stopped"
    head = "select format('%s %s %s', status, attempt, takeovers) from agentrt.sessions where id = $1"
    assert await connection.fetchval(head, session) == "queued 1 0"
    assert (await connection.fetchval(TYPES, session))[-1] == "session_released"
    gates.open("tool")
    workers.start()
    await until(connection, STATUS, session, want="completed")
    assert "session_orphaned" not in await connection.fetchval(TYPES, session)
    assert await connection.fetchval(OUTCOMES, session) == ["ok"]
    await assert_sound(connection)


async def test_a_cancel_that_its_worker_did_not_live_to_notice_stays_and_the_next_run_works(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    """F21, F3: cancelled while the worker stood still, killed before it could see that."""
    worker = workers.start()
    await wait_for_workers(connection, 1)
    session = await create(connection, "gated_once")
    await gates.reached("tool")
    owner = await connection.fetchval(OWNER, session)
    worker.pause()
    assert await connection.fetchval("select agentrt.cancel_session($1)", session) == "cancelled"
    worker.kill()
    before = await connection.fetchval(TYPES, session)
    workers.start()
    await until(connection, STATE, owner, want="dead")
    assert await connection.fetchval(STATUS, session) == "cancelled"
    assert await connection.fetchval(TYPES, session) == before
    assert before[-1] == "session_cancelled"
    await connection.execute("select agentrt.send_message($1, 'go on')", session)
    await until(connection, STATUS, session, want="completed")
    assert await connection.fetchval(OUTCOMES, session) == ["unknown"]
    assert len(gates.effects()) == 1
    await assert_sound(connection)
