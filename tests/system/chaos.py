"""A supervisor that restarts workers, and what happens to them at random: killed, stopped, drained, disconnected."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import asyncpg

from tests.system.fleet import Fleet, Worker

KINDS = {"SIGKILL": 8, "SIGSTOP": 4, "SIGTERM": 4, "terminated connections": 4}
"""What happens, and how often in 20 times."""

ALLOWED_EXITS = {"SIGKILL": {-9}, "SIGSTOP": {70}, "SIGTERM": {0, -15}, "terminated connections": {70}}
"""-15: it had not got so far as to drain."""


@dataclass
class Supervised:
    """One place in the fleet: whichever process stands there now."""

    name: str
    worker: Worker | None = None
    paused: bool = False
    events: set[str] = field(default_factory=set)
    """What happened to this process."""


@dataclass(frozen=True)
class Loss:
    """A worker incarnation was killed or stopped at this time of the database."""

    kind: str
    worker_id: UUID
    at: datetime


class Supervisor:
    """Keeps so many workers running, whatever ends them."""

    def __init__(self, fleet: Fleet, count: int, *, restart_seconds: float = 0.3) -> None:
        self._fleet = fleet
        self._restart_seconds = restart_seconds
        self.places = [Supervised(f"place-{number}") for number in range(1, count + 1)]
        self.exits: Counter[int] = Counter()
        self.unexpected: list[str] = []

    async def keep(self, place: Supervised) -> None:
        while True:
            place.worker = self._fleet.start(place.name)
            place.events = set()
            code = await place.worker.exited()
            self.exits[code] += 1
            if not any(code in ALLOWED_EXITS[event] for event in place.events):
                last = place.worker.logged()[-1000:]
                self.unexpected.append(f"{place.name} ended with {code} after {sorted(place.events)}: {last}")
            await asyncio.sleep(self._restart_seconds)

    @property
    def free(self) -> list[Supervised]:
        """Places whose worker runs, and is not stopped."""
        return [
            place
            for place in self.places
            if place.worker is not None and place.worker.process.poll() is None and not place.paused
        ]


@asynccontextmanager
async def supervised(fleet: Fleet, count: int, **options: float) -> AsyncIterator[Supervisor]:
    """Workers that are started again whenever they end, during the block."""
    supervisor = Supervisor(fleet, count, **options)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(supervisor.keep(place)) for place in supervisor.places]
        yield supervisor
        for task in running:
            task.cancel()


@dataclass
class Chaos:
    """Does something to one of the workers every few seconds. All of its dice come from one seed."""

    supervisor: Supervisor
    connection: asyncpg.Connection
    dice: random.Random
    every_seconds: tuple[float, float]
    pause_seconds: tuple[float, float]
    kinds: Mapping[str, int] = field(default_factory=lambda: KINDS)
    events: Counter[str] = field(default_factory=Counter)
    losses: list[Loss] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled; who is stopped then goes on."""
        async with asyncio.TaskGroup() as pauses:
            while True:
                await asyncio.sleep(self.dice.uniform(*self.every_seconds))
                kind = self.dice.choices(list(self.kinds), list(self.kinds.values()))[0]
                free = self.supervisor.free
                if len(free) < 2:  # somebody has to take over
                    continue
                place = self.dice.choice(free)
                self.events[kind] += 1
                place.events.add(kind)
                await self._happen(kind, place, pauses)

    async def _happen(self, kind: str, place: Supervised, pauses: asyncio.TaskGroup) -> None:
        worker = place.worker
        assert worker is not None
        match kind:
            case "SIGKILL":
                await self._note_loss(kind, worker)
                worker.process.kill()
            case "SIGSTOP":
                place.paused = True
                worker.pause()
                await self._note_loss(kind, worker)
                pauses.create_task(self._continue(place, worker))
            case "SIGTERM":
                worker.terminate()
            case _:
                await self.connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and application_name like 'agentrt %' and pid <> pg_backend_pid() and random() < 0.5"
                )
                for other in self.supervisor.free:
                    other.events.add(kind)

    async def _note_loss(self, kind: str, worker: Worker) -> None:
        row = await self.connection.fetchrow(
            "select id, clock_timestamp() as at from agentrt.workers where pid = $1 and state in ('alive', 'draining')",
            worker.pid,
        )
        if row is not None:  # else it has not registered yet
            self.losses.append(Loss(kind, row["id"], row["at"]))

    async def _continue(self, place: Supervised, worker: Worker) -> None:
        try:
            await asyncio.sleep(self.dice.uniform(*self.pause_seconds))
        finally:
            with suppress(ProcessLookupError):
                worker.resume()
            place.paused = False
