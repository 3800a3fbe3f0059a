"""What the database refuses to store ends where people see it, and is not tried again and again."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from agentrt.agents import Agent, Limits, ToolContext, tool
from agentrt.core import events
from agentrt.core.budget import MOST_COST, MOST_TOKENS
from agentrt.core.errors import InvalidTransition
from agentrt.core.journal import Usage
from agentrt.core.session import WorkerId
from agentrt.ports import UnstorableBatch, Write, Written
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from tests.worker.models import suspension
from tests.worker.scenes import agent_of, calls_once, head, results, told

_TOO_MANY = 10**30


class Before:
    """The real store; something happens just before an append, or an ending, reaches it."""

    def __init__(self, store: Any, happens: Callable[[Sequence[Write]], Awaitable[None]]) -> None:
        self._store = store
        self._happens = happens

    async def append(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        await self._happens(writes)
        written: Sequence[Written] = await self._store.append(worker_id, writes, side=side)
        return written

    async def end(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        await self._happens(writes)
        written: Sequence[Written] = await self._store.end(worker_id, writes, side=side)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_an_answer_that_cannot_be_stored_blocks_the_session_and_is_not_asked_for_again(database_url):
    """Case 82."""
    asked = []

    def script(conversation: Conversation):
        asked.append(True)
        return "unspeakable"

    async def refused(writes: Sequence[Write]) -> None:
        if "unspeakable" in repr([write.entries for write in writes]):
            raise UnstorableBatch("22003")

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        worker.deps.committer._store = Before(worker.store, refused)
        session_id = await worker.ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert (reason, asked) == ("blocked", [True])
        assert "cannot store" in message
        assert (await head(worker, session_id)).attempt == 0
        assert told(worker, events.SessionCrashed) == []


@pytest.mark.parametrize(
    ("usage", "cost", "tokens", "paid"),
    [
        (Usage(_TOO_MANY, 1), 0.25, MOST_TOKENS + 1, 0.25),
        (Usage(-5, 7), -3.0, 7, 0),
        (Usage(1, 1), float("nan"), 2, 0),
        (Usage(1, 1), float("inf"), 2, MOST_COST),
        (Usage(1, 1), 1e30, 2, MOST_COST),
    ],
)
async def test_odd_figures_of_a_provider_are_stored_as_far_as_they_count(database_url, usage, cost, tokens, paid):
    """Case 82: more tokens than a bigint holds, costs that are no number or below zero."""
    model = ScriptedModel(lambda _: Reply(text="hello", usage=usage, cost=cost))
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
    assert (session.status, session.turns) == ("completed", 1)
    assert (session.input_tokens + session.output_tokens, float(session.cost)) == (tokens, paid)


async def test_a_cost_below_zero_or_without_a_number_does_not_lift_the_limit(database_url):
    costs = iter([float("nan"), -5.0, 0.75, 0.75])

    def script(conversation: Conversation):
        return Reply(calls=[Call("look", {"n": len(conversation.results)})], cost=next(costs))

    @tool(effect="read")
    async def look(n: int) -> str:
        """Look."""
        return str(n)

    agent = Agent("a", model=ScriptedModel(script), tools=[look], limits=Limits(cost=1.0))
    async with local_worker(database_url, agent) as worker:
        reason, message = await suspension(worker, await worker.ask("a", "begin"))
    assert (reason, "1.5000 of 1.0000" in message) == ("budget", True)


async def test_an_ending_that_cannot_be_stored_blocks_the_session(database_url):
    async def refused(writes: Sequence[Write]) -> None:
        if "unspeakable" in repr([write.ending for write in writes]):
            raise UnstorableBatch("22P05")

    async with local_worker(database_url, Agent("a", model=ScriptedModel(lambda _: "unspeakable"))) as worker:
        worker.deps.committer._store = Before(worker.store, refused)
        session_id = await worker.ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert (reason, "22P05" in message) == ("blocked", True)


@pytest.mark.parametrize("effect", ["read", "once", "transactional"])
async def test_a_client_cannot_answer_a_call_that_is_being_run(database_url, effect):
    async with local_worker(database_url) as outside:

        @tool(effect=effect)
        async def order(ctx: ToolContext) -> str:
            """Order."""
            with pytest.raises(InvalidTransition, match="deferred"):
                await outside.client.complete_tool_call(ctx.session_id, ctx.call_id, result="from outside")
            return "from inside"

        async with local_worker(database_url, agent_of(order, model=calls_once(Call("order")))) as worker:
            session_id = await worker.ask("a", "begin")
            assert await results(worker, session_id) == [("ok", "from inside")]
            assert (await head(worker, session_id)).outcome == {"text": "ok"}
            assert told(worker, events.SessionCrashed) == []


@pytest.mark.parametrize("effect", ["once", "transactional"])
async def test_a_client_that_answers_before_the_call_is_deferred_is_refused_and_asks_again(database_url, effect):
    async with local_worker(database_url) as outside:

        @tool(effect=effect)
        async def order(ctx: ToolContext) -> None:
            """Order."""
            calls.append(ctx.call_id)
            with pytest.raises(InvalidTransition, match="deferred"):
                await outside.client.complete_tool_call(ctx.session_id, ctx.call_id, result="from outside")
            ctx.defer()

        calls: list[str] = []

        async with local_worker(database_url, agent_of(order, model=calls_once(Call("order")))) as worker:
            session_id = await worker.ask("a", "begin")
            await outside.client.complete_tool_call(session_id, calls[0], result="from outside")
            assert await worker.run() == 1
            assert await results(worker, session_id) == [("ok", "from outside")]
            assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_clients_result_that_comes_before_the_owner_closes_the_call_is_the_one_that_counts(database_url):
    """Case 30: the call was deferred, and the user has interrupted."""

    @tool(effect="once")
    async def order(ctx: ToolContext) -> None:
        """Order."""
        ctx.defer()

    late: list[str] = []
    async with local_worker(database_url, agent_of(order, model=calls_once(Call("order")))) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.suspension is not None
        [call_id] = session.suspension["waits_for"]
        await worker.client.send(session_id, "stop", when_running="interrupt")
        await worker.client.resume(session_id)

        async def deliver(writes: Sequence[Write]) -> None:
            if call_id in repr([write.entries for write in writes]) and not late:
                late.append(call_id)
                await worker.client.complete_tool_call(session_id, call_id, result="from outside")

        worker.deps.committer._store = Before(worker.store, deliver)
        await worker.run()
        assert late == [call_id]
        assert await results(worker, session_id) == [("ok", "from outside")]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert told(worker, events.SessionCrashed) == []
        assert told(worker, events.SessionResumed) == []


async def test_what_the_database_refuses_at_a_transactional_tools_commit_is_an_error_of_the_tool(
    database_url, connection
):
    """A deferred constraint of the tool's own tables."""
    await connection.execute("create table orders (id int unique deferrable initially deferred)")
    await connection.execute("insert into orders values (1)")

    @tool(effect="transactional")
    async def order(ctx: ToolContext) -> str:
        """Order."""
        await ctx.connection.execute("insert into orders values (1)")
        return "ordered"

    async with local_worker(database_url, agent_of(order, model=calls_once(Call("order")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "no effect" in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert await connection.fetchval("select count(*) from orders") == 1
