"""A worker behind a pooler in transaction mode shares the server's processes with everybody else who asks there."""

from pathlib import Path

import asyncpg
import pytest

from agentrt.postgres.keeping import PostgresKeeperStore
from agentrt.postgres.pool import DatabaseOptions
from tests.system.pooler import PROGRAM, pooled

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (apt-get install pgbouncer)"),
]

A_NEIGHBOURS_LOCK = 17
LOCKS_HERE = """
select l.objid from pg_locks l join pg_database d on d.oid = l.database
where l.locktype = 'advisory' and d.datname = current_database()
"""


async def test_a_worker_whose_lock_is_not_seen_gives_back_that_one_and_no_other(
    connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    async with pooled(database_url, tmp_path) as url:
        neighbour = await asyncpg.connect(url, statement_cache_size=0)
        await neighbour.execute(f"select pg_advisory_lock({A_NEIGHBOURS_LOCK})")
        store = PostgresKeeperStore(DatabaseOptions(url=url))
        assert await store.lock_liveness() is None
        locks = await connection.fetch(LOCKS_HERE)
        assert [row["objid"] for row in locks] == [A_NEIGHBOURS_LOCK]
        await store.close()
        await neighbour.close()
