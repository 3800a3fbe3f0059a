"""Sessions whose time has come, by the hundred thousand."""

import asyncpg
import pytest

from tests.postgres.owner import AGENT, HireOwner

COUNT = 100_000


@pytest.mark.one_server
async def test_a_hundred_thousand_sessions_that_come_due_at_once_are_due_after_one_round_of_one_worker(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Case 95."""
    await connection.execute("alter table agentrt.sessions set unlogged")
    await connection.execute(
        "insert into agentrt.sessions (id, agent, ready_at, due, last_seq) "
        "select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, now() - interval '1 s', false, 2 "
        "from generate_series(1, $2) i",
        AGENT,
        COUNT,
    )
    owner = await hire()
    due = 0
    more = True
    while more:
        swept = await owner.reaper.sweep(owner.id)
        due, more = due + swept.due, swept.more
    assert due == COUNT
    assert await connection.fetchval("select count(*) from agentrt.sessions where due") == COUNT
    assert len(await owner.claim(50)) == 50
