"""What system tests ask the database about a session."""

import json
from uuid import UUID

import asyncpg

DEFAULTS = {"heartbeat_seconds": 2, "stop_seconds": 3, "lease_seconds": 15, "poll_seconds": 5}
"""The settings' own defaults, for what is about them."""

STATUS = "select status from agentrt.sessions where id = $1"
ENTRIES = "select count(*) from agentrt.journal where session_id = $1 and type = $2"
UNFINISHED = "select count(*) from agentrt.sessions where status <> 'completed'"
ORPHANED = "select count(*) from agentrt.journal where type = 'session_orphaned'"
BEFORE_ITS_LEASE_ENDED = """
select o.created_at < w.lease_expires_at
from agentrt.journal o join agentrt.workers w on w.id = (o.data ->> 'worker_id')::uuid
where o.session_id = $1 and o.type = 'session_orphaned'
"""
"""Whether a session was taken from its dead worker while that one's lease was still on: its lock was found free."""

MAY_JUDGE = """
select coalesce(bool_or(renewed_at - renewing_since > make_interval(secs => 2 * heartbeat_seconds)), false)
from agentrt.workers where name = $1 and state = 'alive'
"""
"""Whether a worker of this name has renewed for so long that it may declare others dead."""


async def create(connection: asyncpg.Connection, agent: str, message: str) -> UUID:
    return await connection.fetchval("select agentrt.create_session($1, $2)", agent, message)


async def create_many(connection: asyncpg.Connection, count: int) -> None:
    """Sessions of the agent ``three``, with the numbers from 1 on."""
    query = "select count(agentrt.create_session('three', 'take ' || n)) from generate_series(1, $1::int) n"
    await connection.execute(query, count)


async def owners(connection: asyncpg.Connection, session: UUID) -> list[str]:
    """The names of the workers that claimed the session, in order."""
    rows = await connection.fetch(
        "select data from agentrt.journal where session_id = $1 and type = 'session_claimed' order by seq", session
    )
    return [json.loads(row["data"])["worker"] for row in rows]


async def charged(connection: asyncpg.Connection, session: UUID) -> tuple[int, int]:
    """Attempt and takeovers."""
    row = await connection.fetchrow("select attempt, takeovers from agentrt.sessions where id = $1", session)
    assert row is not None
    return row["attempt"], row["takeovers"]
