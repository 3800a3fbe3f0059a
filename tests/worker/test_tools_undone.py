"""Transactional tools that the database undoes again and again, or has no connection for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentrt.agents import ToolContext, tool
from agentrt.core.errors import DatabaseUnavailable
from agentrt.testing import Call, LocalWorker, local_worker
from tests.worker.models import at_once
from tests.worker.scenes import agent_of, calls_once, head, results, soon

pytestmark = pytest.mark.one_server


class Stingy:
    """The real store, which refuses connections to tools, and answers to ``head``, so many times."""

    def __init__(self, store: Any, *, connections: int = 0, answers: int = 0) -> None:
        self._store = store
        self._connections = connections
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def head(self, session_id: Any) -> Any:
        if self.answers:
            self.answers -= 1
            raise DatabaseUnavailable("away")
        return await self._store.head(session_id)

    @asynccontextmanager
    async def tool_transaction(self, worker_id: Any) -> AsyncIterator[Any]:
        async with self._store.tool_transaction(worker_id) as transaction:
            if self._connections:
                self._connections -= 1
                transaction.connection = _refuse
            yield transaction


async def _refuse() -> Any:
    raise DatabaseUnavailable("too many connections")


def stingy(worker: LocalWorker, **refusals: int) -> Any:
    store: Any = Stingy(worker.deps.store, **refusals)
    worker.deps = replace(at_once(worker).deps, store=store)
    return store


@tool(effect="transactional")
async def write(ctx: ToolContext) -> str:
    """Write a row."""
    await ctx.connection.execute("insert into public.report values ('x')")
    return "written"


async def test_a_tool_without_a_connection_waits_for_one_and_is_no_error(database_url, connection):
    """F26: more often than it would be run again for anything else."""
    await connection.execute("create table public.report (line text)")
    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        stingy(worker, connections=25)
        session_id = await soon(worker.ask("a", "begin"))
        assert await results(worker, session_id) == [("ok", "written")]
        assert await connection.fetchval("select count(*) from public.report") == 1


async def test_a_tool_that_gets_no_connection_in_the_time_that_it_may_take_has_an_error(database_url):
    """F26: no endless loop while the database answers others."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 10
        return now

    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        stingy(worker, connections=1_000)
        worker.deps = replace(worker.deps, clock=clock)
        session_id = await soon(worker.ask("a", "begin"))
        words = "write could not be run: for 600 seconds there was no connection for it. It had no effect."
        assert await results(worker, session_id) == [("error", words)]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
async def test_a_tool_that_loses_its_connection_each_time_has_an_error(database_url, connection, swallows):
    """F26: it may be what brings the connections down."""
    ran = []

    @tool(effect="transactional")
    async def deadly(ctx: ToolContext) -> str:
        """End the connection."""
        ran.append(True)
        pid = await ctx.connection.fetchval("select pg_backend_pid()")
        await connection.execute("select pg_terminate_backend($1, 5000)", pid)
        try:
            await ctx.connection.execute("select 1")
        except Exception:
            if not swallows:
                raise
        return "done"

    async with local_worker(database_url, agent_of(deadly, model=calls_once(Call("deadly")))) as worker:
        session_id = await soon(at_once(worker).ask("a", "begin"))
        words = "deadly was run 10 times, and each time the database undid it. It had no effect."
        assert await results(worker, session_id) == [("error", words)]
        assert len(ran) == 10
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_tool_is_not_run_again_before_the_database_is_back(database_url, connection):
    """F26: an outage is waited out, not run against."""
    still_away: list[int] = []

    @tool(effect="transactional")
    async def unlucky(ctx: ToolContext) -> str:
        """Lose the connection at first."""
        still_away.append(store.answers)
        if len(still_away) == 1:
            pid = await ctx.connection.fetchval("select pg_backend_pid()")
            await connection.execute("select pg_terminate_backend($1, 5000)", pid)
            await ctx.connection.execute("select 1")
        return "done"

    async with local_worker(database_url, agent_of(unlucky, model=calls_once(Call("unlucky")))) as worker:
        store = stingy(worker, answers=2)
        session_id = await soon(worker.ask("a", "begin"))
        assert await results(worker, session_id) == [("ok", "done")]
        assert still_away == [2, 0]
