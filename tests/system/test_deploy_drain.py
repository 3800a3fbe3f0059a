"""One of two workers is drained while both are busy, as in a rollout."""

import asyncpg
import pytest

from tests.history import assert_sound
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.load import HARMED, hold_up, under_load

pytestmark = pytest.mark.system

OWNED = "select count(*) from agentrt.journal j join agentrt.workers w on w.id = j.worker_id where w.name = $1"


async def test_a_worker_of_two_is_drained_under_load_and_no_session_fails_or_is_charged(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    leaving = workers.start("leaving", drain_seconds=2, drain_tool_seconds=4)
    await wait_for_workers(connection, 1)
    await hold_up(connection, gates)  # both are the first worker's
    workers.start("staying")
    await wait_for_workers(connection, 2)
    async with under_load(workers.url):
        for name in ("leaving", "staying"):
            await until(connection, f"select ({OWNED} and j.type = 'session_completed') >= 10", name)
        leaving.terminate()
        assert await leaving.exit_code() == 0
    assert await connection.fetchval("select state from agentrt.workers where name = 'leaving'") == "stopped"
    released = await connection.fetchval(f"{OWNED} and j.type = 'session_released'", "leaving")
    assert released >= 2, "the held up sessions were given back"
    gates.open("model")
    gates.open("tool")
    await until(connection, "select count(*) from agentrt.sessions where status <> 'completed'", want=0)
    assert await connection.fetchval(HARMED) == 0
    await assert_sound(connection)
