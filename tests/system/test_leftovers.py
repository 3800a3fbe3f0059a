"""What tools leave behind in a worker's process: it does not outlive the lease."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.system.fleet import Fleet, Worker, fleet, wait_for_workers
from tests.system.gates import Gates
from tests.system.sessions import create

pytestmark = pytest.mark.system

AGENTS = str(CHECKOUT / "tests" / "system" / "leftover_agents.py")
GONE_SECONDS = 40  # the tools' leftovers take 90

REFUSE_RENEWALS = """
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
create trigger refuse before update on agentrt.workers for each row execute function refuse();
"""


@pytest.fixture
async def workers(database_url: str, tmp_path: Path, gates: Gates) -> AsyncIterator[Fleet]:
    async with fleet(database_url, AGENTS, tmp_path, env={"GATES": str(gates.folder)}) as running:
        yield running


async def gone(worker: Worker) -> int:
    async with asyncio.timeout(GONE_SECONDS):
        return await worker.exited()


@pytest.mark.parametrize("tool", ["in_thread", "in_executor"])
async def test_a_thread_of_the_loops_executor_does_not_outlive_the_lease(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection, tool: str
) -> None:
    """Case 79."""
    worker = workers.start()
    await wait_for_workers(connection, 1)
    await create(connection, "leftover", tool)
    await gates.reached("blocked")
    await connection.execute(REFUSE_RENEWALS)
    assert await gone(worker) == 70
    assert "tool threads outlive the lease" in worker.logged()
