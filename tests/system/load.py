"""A load that is still on when a worker is told to stop: quick sessions without end, and two that wait at gates."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.system.gates import Gates
from tests.system.sessions import create_many

WAITING = 200

# Sessions that failed, were charged an attempt, or lost their worker instead of being given back.
HARMED = """
select count(*) from agentrt.sessions s
where s.status = 'failed' or s.status = 'running' or s.attempt > 1 or s.takeovers > 0
  or exists (select from agentrt.journal j where j.session_id = s.id and j.type = 'session_orphaned')
"""
QUEUED = "select count(*) from agentrt.sessions where agent = 'three' and status = 'queued'"


async def hold_up(connection: asyncpg.Connection, gates: Gates) -> None:
    """One session inside a model call and one inside a tool, which neither end nor are waited for any longer."""
    await connection.execute("select agentrt.create_session('talker', 'hello')")
    await gates.reached("model")
    await connection.execute("select agentrt.create_session('one', 'gated_read')")
    await gates.reached("tool")


@asynccontextmanager
async def under_load(url: str) -> AsyncIterator[None]:
    """Quick sessions are waiting for as long as the block lasts, however fast they are finished."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.TaskGroup() as tasks:
            feeding = tasks.create_task(_feed(connection))
            yield
            feeding.cancel()
    finally:
        await connection.close(timeout=5)


async def _feed(connection: asyncpg.Connection) -> None:
    while True:
        missing = WAITING - await connection.fetchval(QUEUED)
        if missing > WAITING // 2:
            await create_many(connection, missing)
        await asyncio.sleep(0.05)
