"""A client writes between the plan of an ending and its commit: the ending is stale, read again, and planned again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentrt.agents import Agent, ToolContext, tool
from agentrt.core.events import SessionCrashed
from agentrt.core.journal import ApprovalRequested, SessionSuspended
from agentrt.testing import Call, Conversation, LocalWorker, ScriptedModel, local_worker
from agentrt.tools.ask_user import ask_user
from tests.worker.scenes import found, head, results, running, soon, told, types

pytestmark = pytest.mark.one_server


class Hurried:
    """The real store; just before the first ending of a session is sent, something else is committed."""

    def __init__(self, store: Any, first: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._first: Callable[[], Awaitable[object]] | None = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def end(self, worker_id: Any, writes: Sequence[Any], *, side: bool = False) -> Any:
        first, self._first = self._first, None
        if first is not None:
            await first()
        return await self._store.end(worker_id, writes, side=side)


def before_the_ending(worker: LocalWorker, first: Callable[[], Awaitable[object]]) -> None:
    worker.deps.committer._store = Hurried(worker.store, first)


def echo(conversation: Conversation) -> str:
    return f"ok: {conversation.last_user_text}"


@pytest.mark.parametrize(
    ("when_running", "answer", "run"),
    [("steer", "ok: late", 1), ("interrupt", "ok: late", 1), ("queue", "ok: late", 2)],
)
async def test_a_message_just_before_the_end_is_answered_once(database_url, when_running, answer, run):
    """Case 30, for each way in which a message is delivered."""
    async with local_worker(database_url, Agent("a", model=ScriptedModel(echo))) as worker:
        session_id = await worker.client.create("a", "early")
        before_the_ending(worker, lambda: worker.client.send(session_id, "late", when_running=when_running))
        await worker.run()
        session = await head(worker, session_id)
        assert (session.status, session.run, session.outcome) == ("completed", run, {"text": answer})
        kinds = await types(worker, session_id)
        assert kinds.count("assistant_message") == 2
        assert kinds.count("session_completed") == run


async def test_an_answer_just_before_the_suspension_is_taken(database_url):
    """Case 85: suspend(input)."""

    def script(conversation: Conversation):
        return Call("ask_user", {"question": "Which?"}) if conversation.turn == 0 else echo(conversation)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[ask_user])) as worker:
        session_id = await worker.client.create("a", "early")
        before_the_ending(worker, lambda: worker.client.send(session_id, "this"))
        assert await worker.run() == 1
        assert (await head(worker, session_id)).outcome == {"text": "ok: this"}
        assert await found(worker, session_id, SessionSuspended) == []


def paying(ran: list[int]) -> Agent:
    @tool(effect="once", requires_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    def script(conversation: Conversation):
        return Call("pay", {"amount": 5}) if conversation.turn == 0 else echo(conversation)

    return Agent("a", model=ScriptedModel(script), tools=[pay])


async def test_a_decision_just_before_the_suspension_is_taken(database_url):
    """Case 85: suspend(approval) planned before the last decision."""
    ran: list[int] = []
    async with local_worker(database_url, paying(ran)) as worker:
        session_id = await worker.client.create("a", "early")

        async def decide() -> None:
            [requested] = await found(worker, session_id, ApprovalRequested)
            await worker.client.decide(str(requested.approval_id), "approved", reviewer="ann")

        before_the_ending(worker, decide)
        assert await worker.run() == 1
        assert ran == [5]
        assert (await head(worker, session_id)).status == "completed"


async def test_a_message_just_before_the_suspension_for_approval_waits_until_the_decision(database_url):
    """Case 85: suspended without a loop; delivered after the decision."""
    ran: list[int] = []
    async with local_worker(database_url, paying(ran)) as worker:
        session_id = await worker.client.create("a", "early")
        before_the_ending(worker, lambda: worker.client.send(session_id, "while you wait"))
        assert await worker.run() == 1
        assert (await head(worker, session_id)).status == "suspended"
        [requested] = await found(worker, session_id, ApprovalRequested)
        await worker.client.decide(str(requested.approval_id), "rejected", reviewer="ann")
        await worker.run()
        assert ran == []
        assert (await head(worker, session_id)).outcome == {"text": "ok: while you wait"}


async def test_an_interrupt_while_an_approval_is_open_makes_it_obsolete_and_is_seen(database_url):
    ran: list[int] = []
    async with local_worker(database_url, paying(ran)) as worker:
        session_id = await worker.ask("a", "early")
        await worker.client.send(session_id, "forget it", when_running="interrupt")
        await worker.run()
        assert ran == []
        assert (await head(worker, session_id)).outcome == {"text": "ok: forget it"}
        [(outcome, _)] = await results(worker, session_id)
        assert outcome in ("denied", "interrupted")
        assert len(await worker.client.pending_approvals(session_id)) == 0


async def test_a_deferred_result_just_before_the_suspension_is_taken(database_url):
    @tool(effect="once")
    async def order(ctx: ToolContext) -> str:
        """Order."""
        calls.append(ctx.call_id)
        ctx.defer()
        return ""

    calls: list[str] = []

    def script(conversation: Conversation):
        return Call("order") if conversation.turn == 0 else conversation.last_results[0].content

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[order])) as worker:
        session_id = await worker.client.create("a", "early")
        before_the_ending(worker, lambda: worker.client.complete_tool_call(session_id, calls[0], result="tea"))
        assert await worker.run() == 1
        assert (await head(worker, session_id)).outcome == {"text": "tea"}
        assert await found(worker, session_id, SessionSuspended) == []


async def test_an_interrupt_that_comes_in_with_a_gap_still_interrupts(database_url):
    """The commit of one result reads the interrupt before anybody told of it; the other tool is cut all the same."""
    async with local_worker(database_url) as outside:

        @tool(effect="read")
        async def sends(ctx: ToolContext) -> str:
            """Send."""
            await outside.client.send(ctx.session_id, "stop", when_running="interrupt")
            return "sent"

        @tool(effect="read")
        async def hangs() -> str:
            """Hang."""
            await never.wait()
            return ""

        never = asyncio.Event()

        def script(conversation: Conversation):
            return [Call("sends"), Call("hangs")] if conversation.turn == 0 else echo(conversation)

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[sends, hangs])) as worker:
            session_id = await worker.client.create("a", "begin")
            await soon(worker.run())
            assert (await head(worker, session_id)).outcome == {"text": "ok: stop"}
            assert [outcome for outcome, _ in await results(worker, session_id)] == ["ok", "interrupted"]


class SlowToRead:
    """The real store; what ``meanwhile`` does happens while the second reading of a session is on its way."""

    def __init__(self, store: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self._readings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, session_id: Any, after_seq: Any) -> Any:
        self._readings += 1
        if self._readings == 2:
            await self._meanwhile()
        return await self._store.read(session_id, after_seq)


async def test_a_result_that_is_being_written_when_the_user_interrupts_stands(database_url):
    """The call ended while the interrupt was read: its result is written, and nobody closes the call again."""
    begun, paid = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        begun.set()
        await paid.wait()
        return "paid"

    async def end_the_call() -> None:
        paid.set()
        for _ in range(50):  # its result waits for the reading to end, and is sent before the interrupt is seen
            await asyncio.sleep(0)

    def script(conversation: Conversation):
        return Call("pay") if conversation.turn == 0 else echo(conversation)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[pay])) as worker:
        worker.deps = replace(worker.deps, store=SlowToRead(worker.store, end_the_call))
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await begun.wait()
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
        assert await results(worker, session_id) == [("ok", "paid")]
        assert (await head(worker, session_id)).outcome == {"text": "ok: stop"}
        assert told(worker, SessionCrashed) == []
