"""Real clocks that are wrong by more than a lease, and that jump while a worker runs."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.history import assert_sound
from tests.system.fleet import CALM, MOST_SECONDS, Fleet, Worker, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.sessions import (
    BEFORE_ITS_LEASE_ENDED,
    ORPHANED,
    STATUS,
    UNFINISHED,
    charged,
    create,
    create_many,
    owners,
)

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (apt-get install libfaketime)"),
]


class Clock:
    """The wall clock of processes that are started with ``env``; the monotonic one stays as it is."""

    def __init__(self, file: Path, *, seconds: int) -> None:
        self._file = file
        self.step(seconds)

    @property
    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """From now on the clock is so many seconds fast."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.replace(self._file)


def start(workers: Fleet, name: str, clock: Clock) -> None:
    gates = workers.env
    workers.env = {**gates, **clock.env}
    workers.start(name)
    workers.env = gates


async def until_seen_to_go_back(connection: asyncpg.Connection, worker: Worker) -> None:
    """Until the worker has logged with the new clock; libfaketime looks at its file once a second."""
    async with asyncio.timeout(MOST_SECONDS):
        while (times := [line["timestamp"] for line in worker.lines()]) == sorted(times):
            await create_many(connection, 10)
            await until(connection, f"select ({UNFINISHED}) = 1")


async def test_clocks_ten_minutes_off_steal_nothing_and_a_step_back_fires_nothing_twice(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, tmp_path: Path
) -> None:
    """Case 19, F20."""
    fast, slow = Clock(tmp_path / "fast", seconds=600), Clock(tmp_path / "slow", seconds=-600)
    start(workers, "fast", fast)
    await wait_for_workers(connection, 1)
    held = await create(connection, "one", "gated_once")
    await gates.reached("tool")
    start(workers, "slow", slow)
    await wait_for_workers(connection, 2)
    await create_many(connection, 50)
    fast.step(480)  # two minutes back
    slow.step(-1200)
    await create_many(connection, 50)
    await until(connection, f"select ({UNFINISHED}) = 1")
    await until_seen_to_go_back(connection, workers.workers[0])
    stepped = await connection.fetchval("select clock_timestamp()")
    await until(connection, "select min(renewed_at) > $1::timestamptz + interval '2 s' from agentrt.workers", stepped)
    gates.open("tool")
    await until(connection, STATUS, held, want="completed")
    assert await connection.fetchval(ORPHANED) == 0
    assert await owners(connection, held) == ["fast"]
    assert len(gates.effects()) == 1
    assert await charged(connection, held) == (1, 0)
    leases = "select max(abs(extract(epoch from lease_expires_at - clock_timestamp()))) < $1 from agentrt.workers"
    assert await connection.fetchval(leases, CALM["lease_seconds"] + 1), "leases are the database's time"
    await assert_sound(connection)


async def test_a_killed_worker_whose_clock_was_ahead_is_replaced_as_quickly_as_any_other(
    workers: Fleet, connection: asyncpg.Connection, gates: Gates, tmp_path: Path
) -> None:
    """Case 19: nothing lives too long."""
    start(workers, "fast", Clock(tmp_path / "fast", seconds=600))
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "gated_read")
    await gates.reached("tool")
    start(workers, "slow", Clock(tmp_path / "slow", seconds=-600))
    await wait_for_workers(connection, 2)
    workers.workers[0].kill()
    gates.open("tool")
    await until(connection, STATUS, session, want="completed")
    assert await owners(connection, session) == ["fast", "slow"]
    assert await connection.fetchval(BEFORE_ITS_LEASE_ENDED, session)
    await assert_sound(connection)
