"""Appends touch no index of sessions, so that their cost does not grow."""

from collections.abc import Awaitable, Callable

import asyncpg

from agentrt.ports import Answer
from tests.postgres.owner import HireOwner, Owner, answer, create, result

Connect = Callable[[], Awaitable[asyncpg.Connection]]


async def _hot_share(owner: Owner, connection: asyncpg.Connection) -> float:
    for table in ("sessions", "journal"):  # an analysis by the server keeps old rows in sight for a moment
        await connection.execute(f"alter table agentrt.{table} set (autovacuum_enabled = off)")
    held = await owner.claim(100)
    await connection.execute("select pg_stat_reset_single_table_counters('agentrt.sessions'::regclass)")
    for _ in range(50):
        assert {w.answer for w in await owner.append_all(held, answer(), result(f"{held[0].owner_writes:09x}"))} == {
            Answer.WRITTEN
        }
    await owner.store.close()  # a backend reports its counts at the latest when it ends
    updates = hot = 0
    while updates < 5000:
        (counts,) = await connection.fetch(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'agentrt.sessions'::regclass"
        )
        updates, hot = counts
    return float(hot / updates)


async def test_more_than_nine_of_ten_appends_touch_no_index_of_sessions(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Case 92."""
    await create(connection, 100)
    assert await _hot_share(await hire(), connection) > 0.9


async def test_an_index_on_what_each_append_changes_would_be_noticed(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Case 92."""
    await connection.execute("create index on agentrt.sessions (id) where turns > 1000000")
    await create(connection, 100)
    assert await _hot_share(await hire(), connection) < 0.5
