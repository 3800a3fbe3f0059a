"""A worker without a daemon: it claims when it is told, and runs what it claimed, in the caller's event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from agentrt.agents import Agent, Registry
from agentrt.app import connect, store_factory
from agentrt.client import Client
from agentrt.core.errors import ConfigurationError
from agentrt.core.events import Event
from agentrt.core.session import SessionId, WorkerId
from agentrt.ports import Model, Offer, SessionStore, WorkerInfo
from agentrt.settings import Settings
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding
from agentrt.worker.runner import RunnerDeps, run_session

_LEASE_SECONDS = 3_600.0


def _no_models(name: str) -> Model:
    raise ConfigurationError(f"a local worker calls no provider: give the agent a ScriptedModel in place of {name!r}")


class LocalWorker:
    """Made by ``local_worker``. Nothing happens unless it is asked for, so that a test decides the order.

    ``client`` is connected to the same database; ``events`` holds what observers were told.
    """

    def __init__(
        self,
        client: Client,
        store: SessionStore,
        deps: RunnerDeps,
        *,
        events: list[Event],
        committing: asyncio.Future[None],
    ) -> None:
        self.client = client
        self.store = store
        self.deps = deps
        self.events = events
        self._committing = committing

    async def claim(self, limit: int = 1) -> list[Holding]:
        """Claim up to ``limit`` sessions that are due, without running them."""
        agents = {agent.name: agent.version for agent in self.deps.registry.agents.values()}
        offer = Offer(queues=self.deps.settings.queues, agents=agents)
        claimed = await self.store.claim(self.deps.worker_id, offer, limit=limit, fragile_limit=limit)
        return [Holding(session) for session in claimed.sessions]

    async def run_one(self, holding: Holding) -> None:
        """Run a claimed session until this ownership has ended, or was lost; raises what has ended the committer."""
        task = holding.task = asyncio.ensure_future(run_session(holding, self.deps))
        try:
            await asyncio.wait({task, self._committing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self._committing.done():
            self._committing.result()
        if not task.cancelled():
            task.result()

    async def run(self, most: int = 100) -> int:
        """Claim and run, one session after another, until nothing is due; returns how many ownerships that were.

        Raises:
            RuntimeError: something was still due after ``most``.
        """
        for count in range(most):
            holdings = await self.claim()
            if not holdings:
                return count
            await self.run_one(holdings[0])
        raise RuntimeError(f"sessions were still due after {most} ownerships")

    async def ask(self, agent: str, message: str) -> SessionId:
        """Create a session with a message and run it until nothing is due."""
        session_id = await self.client.create(agent, message)
        await self.run()
        return session_id


@asynccontextmanager
async def local_worker(
    database_url: str, *agents: Agent, settings: Settings | None = None, models: dict[str, Model] | None = None
) -> AsyncIterator[LocalWorker]:
    """A worker that serves ``agents`` on a migrated database.

    Args:
        database_url: where; the schema must be there (``agentrt migrate``).
        agents: what it serves.
        settings: limits and the like; ``database_url`` wins over theirs.
        models: models by ``"provider:name"``, for agents that name theirs.
    """
    chosen = (settings or Settings(database_url=database_url)).model_copy(
        update={"database_url": database_url, "direct_database_url": database_url}
    )
    stores = store_factory(chosen)
    worker_id = WorkerId(uuid4())
    events: list[Event] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(database_url))
        store = await stores.sessions()
        stack.push_async_callback(store.close)
        keeper = await stores.keeper()
        stack.push_async_callback(keeper.close)
        await keeper.register(_info(worker_id, agents, chosen), None)
        committer = Committer(store, worker_id, emit=events.append)
        deps = RunnerDeps(
            store=store,
            committer=committer,
            registry=Registry.of(*agents),
            models=(lambda name: models[name] if name in models else _no_models(name)) if models else _no_models,
            events=events.append,
            settings=chosen,
            worker_id=worker_id,
        )
        committing = asyncio.ensure_future(committer.run())
        try:
            yield LocalWorker(client, store, deps, events=events, committing=committing)
        finally:
            committing.cancel()
            await asyncio.wait({committing})
            await keeper.stop(worker_id)


def _info(worker_id: WorkerId, agents: tuple[Agent, ...], settings: Settings) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id,
        name="local",
        host=socket.gethostname(),
        pid=os.getpid(),
        version="test",
        agents=tuple(sorted(agent.name for agent in agents)),
        queues=settings.queues,
        slots=1,
        heartbeat_seconds=settings.heartbeat_seconds,
        lease_seconds=_LEASE_SECONDS,
    )
