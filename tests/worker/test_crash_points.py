"""A worker dies at each single point of a story, and another goes on."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import pytest

from agentrt.agents import Agent, tool
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.messages import ModelIdentity
from agentrt.ports import ModelAnswer, ModelRequest
from agentrt.testing import Call, LocalWorker, local_worker
from agentrt.worker.holding import Holding
from tests.history import assert_sound
from tests.worker.scenes import agent_of, calls_once, head, kill, results

pytestmark = pytest.mark.one_server


class Dying:
    """The real store, of a worker that is killed at its ``number``-th commit: before it, or right behind it."""

    def __init__(self, worker: LocalWorker, number: int, *, behind: bool) -> None:
        self._worker = worker
        self._left = number
        self._behind = behind
        self.holding: Holding | None = None
        self.died = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker.store, name)

    async def append(self, worker_id: Any, writes: Sequence[Any], *, side: bool = False) -> Any:
        return await self._commit(self._worker.store.append, worker_id, writes, side)

    async def end(self, worker_id: Any, writes: Sequence[Any], *, side: bool = False) -> Any:
        return await self._commit(self._worker.store.end, worker_id, writes, side)

    async def _commit(self, commit: Callable[..., Any], worker_id: Any, writes: Sequence[Any], side: bool) -> Any:
        self._left -= 1
        if self._left:
            return await commit(worker_id, writes, side=side)
        self.died = True
        if self._behind:
            await commit(worker_id, writes, side=side)
        assert self.holding is not None
        self.holding.lose("killed")
        raise DatabaseUnavailable("nobody lives to hear the answer")


async def run_and_die(worker: LocalWorker, number: int, *, behind: bool) -> bool:
    """Run the next session; whether the worker died before it had come to an end."""
    dying = Dying(worker, number, behind=behind)
    worker.deps.committer._store = dying
    [dying.holding] = await worker.claim()
    await worker.run_one(dying.holding)
    return dying.died


@pytest.mark.parametrize("behind", [False, True], ids=["before the commit", "behind the commit"])
async def test_a_crash_at_any_point_around_a_suspension_leaves_one_approval_for_each_call(
    database_url: str, connection: asyncpg.Connection, behind: bool
) -> None:
    """Case 50."""

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(effect="once", requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = agent_of(look, pay, model=calls_once(Call("look"), Call("pay"), Call("pay", {"": 1}), Call("pay")))
    for number in itertools.count(1):
        async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
            session_id = await a.client.create("a", "begin")
            died = await run_and_die(a, number, behind=behind)
            await kill(a, connection, b)
            await b.run()
            session = await head(b, session_id)
            pending = await b.client.pending_approvals(session_id)
            calls = [approval["tool_call_id"] for approval in pending]
            assert (session.status, len(set(calls)), len(calls)) == ("suspended", 2, 2), number
            assert session.suspension is not None
            assert set(session.suspension["waits_for"]) == set(calls)
            await assert_sound(connection)
            for approval in pending:
                await b.client.decide(approval["id"], "rejected", reviewer="ann")
            await b.run()
            assert (await head(b, session_id)).outcome == {"text": "ok"}
            assert len(await results(b, session_id)) == 4
        if not died:
            break
    assert number > 3
    await assert_sound(connection)


class Deadly:
    """A model whose stream kills its worker after some text."""

    identity = ModelIdentity("scripted", "scripted", "deadly")
    context_window = None

    def __init__(self) -> None:
        self.asked = 0
        self.victim: Holding | None = None

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        self.asked += 1
        for piece in range(self.asked):
            on_text(f"piece {piece} ")
        assert self.victim is not None
        self.victim.lose("killed")
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_streamed_text_is_no_progress_that_would_save_an_attempt(
    database_url: str, connection: asyncpg.Connection
) -> None:
    """Case 24, bounded by case 21: five crashes, each after more text than the one before."""
    model = Deadly()
    agent = Agent("a", model=model)
    async with local_worker(database_url) as survivor:
        session_id = await survivor.client.create("a", "begin")
        for attempt in range(1, 6):
            await connection.execute("update agentrt.sessions set due = true, ready_at = now()")
            async with local_worker(database_url, agent) as worker:
                [model.victim] = await worker.claim()
                assert model.victim.session.attempt == attempt
                await worker.run_one(model.victim)
                await kill(worker, connection, survivor)
        session = await head(survivor, session_id)
        assert (session.status, session.outcome and session.outcome["code"]) == ("failed", "attempts_exhausted")
        assert model.asked == 5
        await survivor.client.send(session_id, "again")
        session = await head(survivor, session_id)
        assert (session.status, session.run, session.attempt) == ("queued", 2, 0)
