"""Much bad luck in a short time: workers die in every way under load.

SOAK_SECONDS and SOAK_SEED set its length and its dice.
"""

import asyncio
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.system.chaos import Chaos, supervised
from tests.system.fleet import fleet, until
from tests.system.gates import Gates
from tests.system.soaking import OPEN, Load, judge

SECONDS = float(os.environ.get("SOAK_SECONDS", "1800"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or secrets.randbits(32)
WORKERS = 4
SESSIONS = 500
AGENTS = str(CHECKOUT / "tests" / "system" / "soak_agents.py")
DEFAULTS = {"heartbeat_seconds": 2, "stop_seconds": 3, "lease_seconds": 15, "poll_seconds": 5, "slots": 250}


@pytest.mark.soak
@pytest.mark.one_server
@pytest.mark.timeout(SECONDS + 900)
async def test_four_workers_that_die_all_the_time_lose_and_double_nothing(
    database_url: str,
    connection: asyncpg.Connection,
    tmp_path: Path,
    gates: Gates,
    record_property: Callable[[str, object], None],
) -> None:
    print(f"SOAK_SEED={SEED} SOAK_SECONDS={SECONDS:g}, logs in {tmp_path}", flush=True)
    await connection.execute("create table bookings (call text not null)")
    env = {"GATES": str(gates.folder)}
    async with (
        asyncpg.create_pool(database_url, min_size=1, max_size=4) as pool,
        fleet(database_url, AGENTS, tmp_path, env=env, **DEFAULTS) as workers,
        supervised(workers, WORKERS) as supervisor,
    ):
        load = Load(pool, random.Random(SEED), SESSIONS)
        chaos = Chaos(supervisor, connection, random.Random(SEED + 1), (6, 18), (5, 25))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            happening = tasks.create_task(chaos.run())
            await asyncio.sleep(SECONDS)
            happening.cancel()
            load.over = True
        await until(connection, OPEN, want=0, seconds=600)
    figures = await judge(connection, load, chaos, gates.effects())
    for line in (f"SOAK_SEED={SEED}", *figures.lines(), f"exits {dict(supervisor.exits)}"):
        print(line)
        record_property("figures", line)
    assert not figures.lost
    assert not figures.doubled
    assert figures.unfinished == 0
    assert supervisor.unexpected == []
    await assert_sound(connection)
