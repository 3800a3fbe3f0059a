"""What the tests of runner, turn and tools share: look at journals, wait for a moment, and kill without a process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from agentrt.agents import Agent, tool
from agentrt.app import store_factory
from agentrt.core.events import Event
from agentrt.core.journal import Entry, ToolResult
from agentrt.core.session import Session
from agentrt.testing import Call, Conversation, LocalWorker, ScriptedModel
from agentrt.worker.holding import Holding
from tests.postgres.stage import HANGS_AFTER_SECONDS

T = TypeVar("T")
E = TypeVar("E", bound=Event)


async def journal(worker: LocalWorker, session_id: UUID) -> list[Entry]:
    """All entries; their seqs are gapless from 1."""
    entries = [entry async for entry in worker.client.read(session_id)]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return entries


async def types(worker: LocalWorker, session_id: UUID) -> list[str]:
    return [entry.data.type for entry in await journal(worker, session_id)]


async def found(worker: LocalWorker, session_id: UUID, kind: type[T]) -> list[T]:
    """The data of all entries of one kind."""
    return [entry.data for entry in await journal(worker, session_id) if isinstance(entry.data, kind)]


async def results(worker: LocalWorker, session_id: UUID) -> list[tuple[str, str]]:
    """Outcome and text of each tool result, which is the only one of its call."""
    given = await found(worker, session_id, ToolResult)
    assert len({result.call_id for result in given}) == len(given)
    return [(str(result.outcome), result.content) for result in given]


def told(worker: LocalWorker, kind: type[E]) -> list[E]:
    return [event for event in worker.events if isinstance(event, kind)]


async def head(worker: LocalWorker, session_id: UUID) -> Session:
    return await worker.client.get(session_id)


@asynccontextmanager
async def running(worker: LocalWorker) -> AsyncIterator[Holding]:
    """Claim the next session and run it beside the block; it has ended, or was cancelled, afterwards."""
    [holding] = await worker.claim()
    run = asyncio.ensure_future(worker.run_one(holding))
    try:
        yield holding
        await asyncio.wait({run})
    finally:
        run.cancel()
        await asyncio.wait({run})


async def kill(worker: LocalWorker, connection: asyncpg.Connection, survivor: LocalWorker) -> None:
    """The worker is dead, and the survivor has reaped it."""
    await connection.execute("update agentrt.workers set state = 'dead' where id = $1", worker.deps.worker_id)
    reaper = await store_factory(survivor.deps.settings).reaper()
    try:
        await reaper.sweep(survivor.deps.worker_id)
    finally:
        await reaper.close()


async def soon(awaitable: Awaitable[T]) -> T:
    """The bound only ends what would never end."""
    async with asyncio.timeout(HANGS_AFTER_SECONDS):
        return await awaitable


class Flawed:
    """The real store, whose ``append`` fails as told, before or after the real one."""

    def __init__(self, store: Any, fails: Callable[[Sequence[Any]], tuple[bool, Exception] | None]) -> None:
        self._store = store
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, worker_id: Any, writes: Sequence[Any], *, side: bool = False) -> Any:
        failure = self._fails(writes)
        if failure is None:
            return await self._store.append(worker_id, writes, side=side)
        after, error = failure
        if after:
            await self._store.append(worker_id, writes, side=side)
        raise error


def calls_once(*calls: Call) -> ScriptedModel:
    """A model that makes these calls in its first answer, and then says ok."""
    return ScriptedModel(lambda conversation: list(calls) if conversation.turn == 0 else "ok")


def agent_of(*tools: Any, model: ScriptedModel) -> Agent:
    return Agent("a", model=model, tools=tools)


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adding(conversation: Conversation):
    if conversation.turn == 0:
        return [Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})]
    if conversation.turn == 1:
        return Call("add", {"a": 3, "b": 7})
    return f"The sum is {conversation.results[-1].content}."


def echo(conversation: Conversation):
    return f"You said: {conversation.last_user_text}"
