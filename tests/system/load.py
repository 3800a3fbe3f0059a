"""A load that is still on when a worker is told to stop: many quick sessions, and two that wait at gates."""

import asyncpg

from tests.system.fleet import until
from tests.system.gates import Gates

# Sessions that failed, were charged an attempt, or lost their worker instead of being given back.
HARMED = """
select count(*) from agentrt.sessions s
where s.status = 'failed' or s.status = 'running' or s.attempt > 1 or s.takeovers > 0
  or exists (select from agentrt.journal j where j.session_id = s.id and j.type = 'session_orphaned')
"""
COMPLETED = "select count(*) >= 50 from agentrt.sessions where status = 'completed'"
UNFINISHED = "select count(*) from agentrt.sessions where agent = 'three' and status <> 'completed'"


async def hold_up(connection: asyncpg.Connection, gates: Gates) -> None:
    """One session inside a model call and one inside a tool, which neither end nor are waited for any longer."""
    await connection.execute("select agentrt.create_session('talker', 'hello')")
    await gates.reached("model")
    await connection.execute("select agentrt.create_session('one', 'gated_read')")
    await gates.reached("tool")


async def create_load(connection: asyncpg.Connection, sessions: int) -> None:
    """Create sessions of three turns, and return when some are completed and many are not."""
    create = "select count(agentrt.create_session('three', 'take ' || n)) from generate_series(1, $1::int) n"
    await connection.execute(create, sessions)
    await until(connection, COMPLETED, want=True)
    assert await connection.fetchval(UNFINISHED) > 100, "the load is nearly over"
