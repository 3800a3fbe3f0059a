"""The daemon with the real runner, the real store and a scripted model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agentrt.agents import Agent, Registry, tool
from agentrt.core.events import SessionEnded, SessionReleased, WorkerStarted, WorkerStopped
from agentrt.core.session import WorkerId
from agentrt.models.scripted import Call, Conversation, Reply, ScriptedModel
from agentrt.ports import Model, SessionStore
from agentrt.worker.committer import Committer
from agentrt.worker.daemon import Daemon, RunSession, WorkerParts
from agentrt.worker.runner import RunnerDeps, run_session
from agentrt.worker.threads import ToolThreads
from tests.worker.ownership import AGENT, Ground, settings, stores


class Worker:
    """A daemon in this process, and ways to wait for what it does."""

    def __init__(self, ground: Ground, agent: Agent, **values: Any) -> None:
        self.ground = ground
        registry = Registry.of(agent)
        given = settings(ground.url, http_port=0, **values)
        threads = ToolThreads()

        def make_runner(
            store: SessionStore,
            committer: Committer,
            *,
            worker_id: WorkerId,
            agent_unavailable: Callable[[str, str], None],
        ) -> RunSession:
            deps = RunnerDeps(
                store=store,
                committer=committer,
                registry=registry,
                models=no_model,
                events=ground.heard,
                settings=given,
                worker_id=worker_id,
                threads=threads,
                agent_unavailable=agent_unavailable,
            )
            return lambda holding: run_session(holding, deps)

        self.left: list[int] = []
        self.daemon = Daemon(
            WorkerParts(
                stores=stores(ground.url),
                settings=given,
                agents={agent.name: agent.version},
                make_runner=make_runner,
                emit=ground.heard,
                version="0",
                threads_running=lambda: threads.running,
                leave=self.left.append,
            )
        )


def no_model(name: str) -> Model:
    raise AssertionError(f"asked for {name}")


@asynccontextmanager
async def working(ground: Ground, agent: Agent, **values: Any) -> AsyncIterator[Worker]:
    worker = Worker(ground, agent, **values)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.daemon.run())
        yield worker
        worker.daemon.drain("test")


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


def two_turns(conversation: Conversation) -> Reply | str | Call:
    return Call("look", {}) if not conversation.results else "all is well"


async def test_sessions_are_claimed_run_and_completed_and_the_worker_stops_when_drained(ground: Ground) -> None:
    ids = [await ground.create() for _ in range(3)]
    agent = Agent(AGENT, model=ScriptedModel(two_turns), tools=[look])
    async with working(ground, agent) as worker:
        await ground.heard.wait_for(SessionEnded, 3)
        late = await ground.create()
        await ground.heard.wait_for(SessionEnded, 4)
    for session_id in [*ids, late]:
        row = await ground.row(session_id)
        assert row["status"] == "completed"
        types = [entry["type"] for entry in await ground.journal(session_id)]
        assert types == [
            "session_created",
            "user_message",
            "session_claimed",
            "assistant_message",
            "tool_result",
            "assistant_message",
            "session_completed",
        ]
    [started], [stopped] = ground.heard.of(WorkerStarted), ground.heard.of(WorkerStopped)
    assert stopped.worker_id == started.worker_id
    assert await ground.state(started.worker_id) == "stopped"
    assert not ground.heard.of(SessionReleased)
    assert not worker.left
