"""What tools leave behind in a worker's process: it does not outlive the lease, and does not hold up a drain."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.system.fleet import Fleet, Worker, fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.leftover_agents import LONG_SECONDS
from tests.system.sessions import STATUS, create

pytestmark = pytest.mark.system

AGENTS = str(CHECKOUT / "tests" / "system" / "leftover_agents.py")
STATES = "select array_agg(distinct state) from agentrt.workers"
GONE_SECONDS = 120
assert GONE_SECONDS < LONG_SECONDS, "who is gone by then has not waited for what a tool left"

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


def warnings(worker: Worker) -> list[str]:
    return [line["message"] for line in worker.lines() if line["event"] == "warning.raised"]


@pytest.mark.parametrize("tool", ["in_thread", "in_executor"])
async def test_a_thread_of_the_loops_executor_does_not_outlive_the_lease(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection, tool: str
) -> None:
    """Case 79."""
    worker = workers.start(lease_seconds=10)
    await wait_for_workers(connection, 1)
    await create(connection, "leftover", tool)
    await gates.reached("blocked")
    await connection.execute(REFUSE_RENEWALS)
    assert await gone(worker) == 70
    assert "tool threads outlive the lease" in worker.logged()


LEFTOVERS = ["past_its_limit", "in_executor", "in_many_threads", "own_thread", "own_task", "swallowing", "at_exit"]


@pytest.mark.parametrize("tool", LEFTOVERS)
async def test_what_a_tool_leaves_behind_does_not_hold_up_a_drain(
    workers: Fleet, connection: asyncpg.Connection, tool: str
) -> None:
    """F21, F35: everything is released, so that there is nothing to wait for; the log says what was left."""
    worker = workers.start(stop_seconds=1)
    await wait_for_workers(connection, 1)
    session = await create(connection, "leftover", tool)
    await until(connection, STATUS, session, want="completed")
    worker.terminate()
    assert await gone(worker) == 0
    assert await connection.fetchval(STATES) == ["stopped"]
    assert len([words for words in warnings(worker) if "did not end by itself within 1 s" in words]) == 1


async def test_what_a_module_of_agents_has_to_do_at_the_end_does_not_hold_up_a_drain_and_is_told(
    workers: Fleet, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    """F35: it was there before the worker's log."""
    module = tmp_path / "at_exit_agents.py"
    module.write_text(
        "import atexit, time\nfrom tests.system.leftover_agents import leftover\natexit.register(time.sleep, 600)\n"
    )
    worker = workers.start(stop_seconds=1, agents=module)
    await wait_for_workers(connection, 1)
    worker.terminate()
    assert await gone(worker) == 0
    assert len([words for words in warnings(worker) if "did not end by itself within 1 s" in words]) == 1


async def test_a_worker_without_leftovers_ends_by_itself(workers: Fleet, connection: asyncpg.Connection) -> None:
    worker = workers.start(stop_seconds=60, lease_seconds=90)
    await wait_for_workers(connection, 1)
    session = await create(connection, "leftover", "nothing")
    await until(connection, STATUS, session, want="completed")
    worker.terminate()
    assert await gone(worker) == 0
    assert warnings(worker) == []


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)])
async def test_signals_while_the_process_ends_do_not_change_its_exit_code(
    workers: Fleet, connection: asyncpg.Connection, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    first, second = numbers
    worker = workers.start()
    await wait_for_workers(connection, 1)
    session = await create(connection, "leftover", "own_thread")
    await until(connection, STATUS, session, want="completed")
    worker.process.send_signal(first)
    await until(connection, STATES, want=["stopped"])
    async with asyncio.timeout(GONE_SECONDS):
        while worker.process.poll() is None:
            worker.process.send_signal(second)
            await asyncio.sleep(0.01)
    assert await gone(worker) == 0
