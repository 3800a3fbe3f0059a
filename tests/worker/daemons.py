"""A daemon in this process, with the real runner and store, an agent whose model is a function, and tools that a test
can hold up."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agentrt.agents import Agent, Registry, tool
from agentrt.core.session import WorkerId
from agentrt.models.scripted import Call, Conversation, Reply, ScriptedModel
from agentrt.ports import Model, SessionStore
from agentrt.worker.committer import Committer
from agentrt.worker.daemon import Daemon, MakeRunner, RunSession, WorkerParts
from agentrt.worker.runner import RunnerDeps, run_session
from agentrt.worker.threads import ToolThreads
from tests.worker.ownership import AGENT, Ground, settings, stores

QUICK = {"heartbeat_seconds": 0.1, "poll_seconds": 0.5}
LEASE_SECONDS = 120.0
"""No pause of the machine outlasts it; a test whose lease is to end moves the worker's clock."""


class Ahead:
    """The real monotonic clock, which a test sets forward."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.seconds


class Worker:
    """A daemon, and its exit code if it left at once."""

    def __init__(
        self,
        ground: Ground,
        *agents: Agent,
        opened: Any = None,
        make_runner: MakeRunner | None = None,
        **values: Any,
    ) -> None:
        self.ground = ground
        self.clock = Ahead()
        self._registry = Registry.of(*agents)
        self._settings = settings(ground.url, **({"http_port": 0, "lease_seconds": LEASE_SECONDS} | values))
        self._threads = ToolThreads()
        self.left: list[int] = []
        self.daemon = Daemon(
            WorkerParts(
                stores=opened or stores(ground.url),
                settings=self._settings,
                agents={agent.name: agent.version for agent in agents},
                make_runner=make_runner or self._make_runner,
                emit=ground.heard,
                version="0",
                threads_running=lambda: self._threads.running,
                leave=self.leave,
                clock=self.clock,
            )
        )

    def _make_runner(
        self,
        store: SessionStore,
        committer: Committer,
        *,
        worker_id: WorkerId,
        agent_unavailable: Callable[[str, str], None],
    ) -> RunSession:
        deps = RunnerDeps(
            store=store,
            committer=committer,
            registry=self._registry,
            models=_no_model,
            events=self.ground.heard,
            settings=self._settings,
            worker_id=worker_id,
            threads=self._threads,
            agent_unavailable=agent_unavailable,
        )
        return lambda holding: run_session(holding, deps)

    def leave(self, code: int) -> None:
        self.left.append(code)
        self.ground.heard.changed()


def _no_model(name: str) -> Model:
    raise AssertionError(f"asked for {name}")


@asynccontextmanager
async def working(ground: Ground, *agents: Agent, **values: Any) -> AsyncIterator[Worker]:
    """A worker that runs during the block, and is drained at its end unless the block did that."""
    worker = Worker(ground, *agents, **values)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.daemon.run())
        running.add_done_callback(lambda _: ground.heard.changed())
        yield worker
        worker.daemon.drain("the test is over")


class Held:
    """Tools that wait until the test lets them go."""

    def __init__(self, ground: Ground) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.release = asyncio.Event()
        self._changed = ground.heard.changed

    async def wait(self, name: str) -> str:
        self.begun.append(name)
        self._changed()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled")
            raise
        self.ended.append(name)
        return f"{name} done"

    def agent(self, *, calls: tuple[str, ...] = ("look",)) -> Agent:
        """An agent that calls these of ``look`` (read) and ``pay`` (once), and then is done."""

        @tool(effect="read")
        async def look() -> str:
            """Look."""
            return await self.wait("look")

        @tool(effect="once")
        async def pay() -> str:
            """Pay."""
            return await self.wait("pay")

        def model(conversation: Conversation) -> Reply | str | list[Call]:
            return "all is well" if conversation.results else [Call(name, {}) for name in calls]

        return Agent(AGENT, model=ScriptedModel(model), tools=[look, pay])
