"""Points: sessions whose workers die at chosen port calls until one is left that finishes.

Many points share a database, a store and a reaper; each has a queue and workers of its own. Workers die for real as far
as the database can tell: their rows age, the reaper marks them and sweeps, and the next worker claims what is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import uuid4

import asyncpg

from agentrt.agents import Registry
from agentrt.app import connect
from agentrt.client import Client
from agentrt.core.events import CommitFailed, Event, SessionCrashed
from agentrt.core.session import SessionId, Status, WorkerId
from agentrt.ports import KeeperStore, Offer, ReaperStore, SessionStore
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresStores
from agentrt.settings import Settings
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding
from agentrt.worker.runner import RunnerDeps, run_session
from tests.crash.mortality import BREAKABLE, BREAKS, DEATHS, Died, Doom, Life, MortalModel, MortalStore
from tests.crash.world import WORLD, Script, World
from tests.worker.ownership import worker_info

AT_ONCE = 8
MOST_ROUNDS = 12
PATIENCE_SECONDS = 60
"""Of the database and of tools: no call fails but those that are doomed."""
REST_SECONDS = 60
"""How long a step may take that is expected to end by itself; it only ends a test that would never end."""


@dataclass(eq=False)
class Point:
    """One session, and the ends that its workers meet, in order; the worker after the last of them finishes."""

    script: Script
    dooms: tuple[Doom, ...]
    world: World
    lives: list[Life] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """What no worker may tell: runners that crashed, commits that failed."""
    over: bool = False

    @property
    def name(self) -> str:
        ends = ", then ".join(f"{doom.moment} call {doom.n}" for doom in self.dooms) or "no crash"
        return f"{self.script.name}: {ends}"

    @property
    def crashes(self) -> int:
        return sum(life.over for life in self.lives)

    @property
    def next_doom(self) -> Doom | None:
        """Of the worker that comes next; None lives as long as it is needed."""
        return self.dooms[len(self.lives)] if len(self.lives) < len(self.dooms) else None

    @property
    def reached(self) -> tuple[str, str, int, str] | None:
        """(script, port, n, moment) of the first doom, if it came."""
        life = self.lives[0]
        return (self.script.name, life.met, life.doom.n, life.doom.moment) if life.met and life.doom else None

    def hear(self, event: Event) -> None:
        life = self.lives[-1]
        expected = isinstance(event, CommitFailed) and life.met is not None
        if isinstance(event, SessionCrashed | CommitFailed) and not (life.over or expected):
            self.trouble.append(repr(event))


class Incarnation:
    """A worker without a daemon, alive until its life's end or its point's."""

    def __init__(self, stage: "Stage", point: Point) -> None:
        self.id = WorkerId(uuid4())
        self.life = Life(point.next_doom, meddle=self._meddle if point.script.meddle else None)
        point.lives.append(self.life)
        point.world.life = self.life
        self._point = point
        self._agent = point.script.agent
        self._store: Any = MortalStore(stage.store, self.life)
        self._committer = Committer(self._store, self.id, emit=point.hear)
        self._committing = asyncio.ensure_future(self._committer.run())
        self._deps = RunnerDeps(
            store=self._store,
            committer=self._committer,
            registry=Registry.of(self._agent),
            models=lambda _: MortalModel(self.life, self._answer, self._hear),
            events=point.hear,
            settings=stage.settings,
            worker_id=self.id,
            random=lambda: 0.0,
        )

    async def work(self) -> None:
        """Claim and run until nothing is due, or until the end."""
        offer = Offer(queues=(str(self._point.world.session_id),), agents={self._agent.name: self._agent.version})
        try:
            while not self.life.over:
                claimed = await self._store.claim(self.id, offer, limit=1, fragile_limit=1)
                assert claimed.alive
                if not claimed.sessions:
                    return
                await self._run(Holding(claimed.sessions[0]))
        except Died:
            return

    async def _run(self, holding: Holding) -> None:
        self._point.world.holding = holding
        task = holding.task = asyncio.ensure_future(run_session(holding, self._deps))
        done, _ = await asyncio.wait({task}, timeout=REST_SECONDS)
        assert done, f"{self._point.name}: nobody ends this run; calls: {self.life.calls}"
        self._point.world.holding = None
        if not task.cancelled() and task.exception() is not None and not self.life.over:
            task.result()

    async def leave(self) -> None:
        """Nothing of this worker is left in the process; what it had sent has been carried out."""
        self._committing.cancel()
        [ended] = await asyncio.gather(self._committing, return_exceptions=True)
        if not self.life.over and not isinstance(ended, asyncio.CancelledError):
            raise AssertionError(f"{self._point.name}: the committer ended by itself: {ended!r}")
        await self.life.settled()
        await self._point.world.settled()

    async def _meddle(self, port: str) -> None:
        if self._point.script.meddle is not None:
            await self._point.script.meddle(self._point.world, port)

    async def _answer(self, conversation: Any) -> Any:
        return await self._point.script.answer(self._point.world, conversation)

    def _hear(self, request: Any, on_text: Any) -> None:
        self._point.world.requests.append(request.messages)
        self._point.world.say = on_text


class Stage:
    """A database, and whoever is not mortal: clients, the reaper, and the store under every worker's own."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        client: Client,
        store: SessionStore,
        keeper: KeeperStore,
        reaper: ReaperStore,
    ) -> None:
        self.connection = connection
        self.client = client
        self.store = store
        self.settings = Settings(database_url="postgresql://", transactional_seconds=PATIENCE_SECONDS)
        self._keeper = keeper
        self._reaper = reaper
        self._judge = worker_info(name="judge", heartbeat_seconds=600, lease_seconds=3600)  # never too silent to judge
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._working: dict[Point, Incarnation] = {}

    async def open(self) -> None:
        await self.connection.execute("create table if not exists public.ledger (session_id uuid, line text)")
        await self._keeper.register(self._judge, None)

    async def point(self, script: Script, *dooms: Doom) -> Point:
        """A session that waits for its first worker."""
        session_id = SessionId(uuid4())
        await self.client.create(script.agent.name, "begin", queue=str(session_id), id=session_id)
        return Point(script, dooms, World(self.client, session_id))

    async def play(self, points: Sequence[Point]) -> None:
        """Let all of them come to their end: everybody works, the dead are reaped, and again."""
        for _ in range(MOST_ROUNDS):
            playing = [point for point in points if not point.over]
            if not playing:
                return
            async with asyncio.TaskGroup() as group:
                for point in playing:
                    group.create_task(self._round(point), name=point.name)
            await self._reap([self._working.pop(point).id for point in playing if point.lives[-1].over])
        raise AssertionError(
            f"not over after {MOST_ROUNDS} rounds: {[point.name for point in points if not point.over]}"
        )

    async def _round(self, point: Point) -> None:
        async with self._gate:
            WORLD.set(point.world)
            worker = self._working.get(point) or await self._employ(point)
            while True:
                await worker.work()
                if worker.life.over:
                    await worker.leave()
                    return
                await point.world.settled()
                session = await self.client.get(point.world.session_id)
                if session.status is Status.QUEUED:
                    return  # later: the round's end makes it due
                if not await point.script.move(point.world, session):
                    break
            await self._working.pop(point).leave()
            point.over = True

    async def _employ(self, point: Point) -> Incarnation:
        worker = self._working[point] = Incarnation(self, point)
        await self._keeper.register(worker_info(id=worker.id, agents=(point.script.agent.name,)), None)
        return worker

    async def _reap(self, dead: Sequence[WorkerId]) -> None:
        """The leases of the dead run out; whatever waits for a time becomes due."""
        await self.connection.execute(
            "update agentrt.workers set renewed_at = clock_timestamp(), lease_expires_at = clock_timestamp() + "
            "interval '1 hour', renewing_since = clock_timestamp() - interval '1 hour' where id <> all($1)",
            dead,
        )
        await self.connection.execute(
            "update agentrt.workers set lease_expires_at = clock_timestamp() - interval '1 second' where id = any($1)",
            dead,
        )
        assert set(await self._reaper.mark(self._judge.id)) == set(dead)
        await self.connection.execute(
            "update agentrt.sessions set ready_at = now() where status = 'queued' and not due"
        )
        while (await self._reaper.sweep(self._judge.id)).more:
            pass


@asynccontextmanager
async def staged(url: str) -> AsyncIterator[Stage]:
    """A stage on a migrated database."""
    stores = PostgresStores(
        DatabaseOptions(
            url=url,
            transactional_connections=2 * AT_ONCE,
            transactional_seconds=PATIENCE_SECONDS,
            statement_seconds=PATIENCE_SECONDS,
            lock_seconds=PATIENCE_SECONDS,
            idle_transaction_seconds=PATIENCE_SECONDS,
        )
    )
    async with AsyncExitStack() as stack:
        connection = await asyncpg.connect(url)
        stack.push_async_callback(connection.close, timeout=5)
        client = await stack.enter_async_context(connect(url))
        store = await stores.sessions()
        stack.push_async_callback(store.close)
        keeper, reaper = await stores.keeper(), await stores.reaper()
        stack.push_async_callback(keeper.close)
        stack.push_async_callback(reaper.close)
        stage = Stage(connection, client, store, keeper, reaper)
        await stage.open()
        yield stage


# --- which points there are -----------------------------------------------------------------------------------------


async def calls_without_a_crash(stage: Stage, script: Script) -> Point:
    """The script as it goes when nobody dies: its port calls are ``lives[0].calls``."""
    point = await stage.point(script)
    await stage.play([point])
    return point


def single(calls: int) -> list[Doom]:
    """Every way to die once in so many calls."""
    return [Doom(n, moment) for n in range(1, calls + 1) for moment in DEATHS]


def breaks(calls: Sequence[str]) -> list[Doom]:
    """Every way in which one of these calls may fail without a death."""
    return [Doom(n, moment) for n, port in enumerate(calls, start=1) if port in BREAKABLE for moment in BREAKS]


def several(calls: int, deaths: int, dice: Random) -> tuple[Doom, ...]:
    """Some way to die several times; later owners have less left to do."""
    first = dice.randint(1, calls)
    later = [dice.randint(1, max(2, calls - first + 2)) for _ in range(deaths - 1)]
    return tuple(Doom(n, dice.choice(DEATHS)) for n in (first, *later))
