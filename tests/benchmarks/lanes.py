"""One lane of recoveries: two workers on a database of their own, one of which dies in each round."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import asyncpg

from tests.benchmarks.place import benchmark_database
from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.system.fleet import Fleet, Worker, fleet, until
from tests.system.gates import Gates
from tests.system.sessions import DEFAULTS, ENTRIES, MAY_JUDGE, STATUS, create

AGENTS = str(CHECKOUT / "tests" / "benchmarks" / "agents.py")
OWNER = "select w.name from agentrt.sessions s join agentrt.workers w on w.id = s.lease_owner where s.id = $1"
SINCE_REGISTRATION = """
select extract(epoch from j.created_at - w.started_at)
from agentrt.journal j join agentrt.workers w on w.id = j.worker_id
where j.session_id = $1 and j.type = 'session_claimed' order by j.seq desc limit 1
"""


@dataclass
class Lane:
    """Rounds of one lane happen one after another; lanes run beside each other."""

    workers: Fleet
    connection: asyncpg.Connection
    gates: Gates
    dice: random.Random
    rounds: int = 0

    async def hire(self) -> Worker:
        """One more worker, with a name of its own, which may judge others when this returns."""
        worker = self.workers.start(f"worker-{len(self.workers.workers)}")
        await until(self.connection, MAY_JUDGE, worker.name)
        return worker

    async def hold(self) -> tuple[UUID, str, Worker]:
        """A session whose tool waits, the name of its gate, and the worker that holds it."""
        self.rounds += 1
        gate = f"gate-{self.rounds}"
        session = await create(self.connection, "waiting", gate)
        await self.gates.reached(gate)
        name = await self.connection.fetchval(OWNER, session)
        [worker] = [worker for worker in self.workers.workers if worker.name == name]
        heartbeat = float(str(self.workers.settings["heartbeat_seconds"]))
        await asyncio.sleep(self.dice.uniform(0, heartbeat))  # any moment between two renewals
        return session, gate, worker

    async def taken_over(self, session: UUID) -> None:
        await until(self.connection, ENTRIES, session, "session_claimed", want=2)

    async def finish(self, session: UUID, gate: str) -> None:
        self.gates.open(gate)
        await until(self.connection, STATUS, session, want="completed")

    async def after_kill(self) -> float:
        """Seconds from SIGKILL to the other worker's claim."""
        session, gate, worker = await self.hold()
        begun = time.monotonic()
        worker.kill()
        await self.taken_over(session)
        seconds = time.monotonic() - begun
        await self.finish(session, gate)
        return seconds

    async def after_stop(self) -> float:
        """Seconds from SIGSTOP to the other worker's claim."""
        session, gate, worker = await self.hold()
        begun = time.monotonic()
        worker.pause()
        await self.taken_over(session)
        seconds = time.monotonic() - begun
        await self.finish(session, gate)
        worker.kill()
        return seconds

    async def after_drain(self) -> float:
        """Seconds from SIGTERM, with no time to drain, to the first entry that the next owner adds to its claim."""
        session, gate, worker = await self.hold()
        begun = time.monotonic()
        worker.terminate()
        await self.taken_over(session)
        self.gates.open(gate)
        await until(self.connection, ENTRIES, session, "tool_result", want=1)
        seconds = time.monotonic() - begun
        await self.finish(session, gate)
        assert await worker.exit_code() == 0
        return seconds

    async def after_restart(self) -> float:
        """Seconds from the registration of the only worker's replacement to its claim."""
        session, gate, worker = await self.hold()
        worker.kill()
        self.workers.start(f"worker-{len(self.workers.workers)}")
        await self.taken_over(session)
        seconds = await self.connection.fetchval(SINCE_REGISTRATION, session)
        await self.finish(session, gate)
        return float(seconds)


@asynccontextmanager
async def lane(server_url: str, dice: random.Random, **settings: object) -> AsyncIterator[Lane]:
    """A lane without workers; the history of its database is checked at the end."""
    with TemporaryDirectory(prefix="agentrt-benchmark-") as folder:
        gates = Gates(Path(folder))
        async with (
            benchmark_database(server_url) as url,
            fleet(url, AGENTS, Path(folder), env={"GATES": folder}, **{**DEFAULTS, **settings}) as workers,
        ):
            connection = await asyncpg.connect(url)
            try:
                yield Lane(workers, connection, gates, dice)
                await assert_sound(connection)
            finally:
                await connection.close()
