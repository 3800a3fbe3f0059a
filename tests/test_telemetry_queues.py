"""Queue depths: asked while somebody scrapes, cheap whatever has ended."""

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.ports import QueueDepth
from agentrt.postgres import client
from agentrt.postgres.client import PostgresClientStore
from agentrt.telemetry.queues import REFRESH_SECONDS, STALE_SECONDS, WANTED_SECONDS, QueueDepths

ROW = QueueDepth(queue="q", agent="a", waiting=1, oldest_seconds=2.0)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Database:
    def __init__(self):
        self.asked = 0
        self.away = False

    async def __call__(self):
        self.asked += 1
        if self.away:
            raise DatabaseUnavailable("away")
        return [ROW]


async def test_nothing_is_asked_until_somebody_scrapes_and_when_nobody_does_any_more():
    clock, database = Clock(), Database()
    depths = QueueDepths(database, clock=clock)
    await depths.refresh()
    assert database.asked == 0
    assert depths.read() == ()
    await depths.refresh()
    assert depths.read() == [ROW]
    clock.now += WANTED_SECONDS
    await depths.refresh()
    assert database.asked == 1


async def test_old_figures_are_not_shown():
    clock, database = Clock(), Database()
    depths = QueueDepths(database, clock=clock)
    depths.read()
    await depths.refresh()
    database.away = True
    clock.now += REFRESH_SECONDS
    await depths.refresh()
    assert depths.read() == [ROW]
    clock.now += STALE_SECONDS
    assert depths.read() == ()


async def test_depths_count_what_is_due_per_queue_and_agent(database_url, connection):
    await connection.execute("""
        insert into agentrt.sessions (id, agent, queue, attempt, due, ready_at)
        select gen_random_uuid(), agent, queue, attempt, due, now() - age from (values
          ('a', 'q', 0, true, interval '10 s'), ('a', 'q', 4, true, interval '60 s'),
          ('b', 'q', 0, true, interval '5 s'), ('a', 'r', 0, false, interval '-60 s'))
          t(agent, queue, attempt, due, age)
    """)
    store = await PostgresClientStore.connect(database_url)
    try:
        rows = await store.queue_depths()
    finally:
        await store.close()
    assert [(row.queue, row.agent, row.waiting) for row in rows] == [("q", "a", 2), ("q", "b", 1)]
    assert 60 <= rows[0].oldest_seconds < 120


@pytest.mark.parametrize("analysed", [False, True])
async def test_what_has_ended_is_not_read_for_depths(connection: asyncpg.Connection, analysed):
    await connection.execute("""
        insert into agentrt.sessions (id, agent) select gen_random_uuid(), 'a' from generate_series(1, 500);
        insert into agentrt.sessions (id, agent, status, finished_at)
          select gen_random_uuid(), 'a', 'completed', now() from generate_series(1, 20000);
    """)
    if analysed:
        await connection.execute("analyze agentrt.sessions")
    plan = "\n".join(row[0] for row in await connection.fetch(f"explain {client._DEPTHS}"))
    assert "Seq Scan" not in plan, plan
    assert "sessions_claim" in plan
