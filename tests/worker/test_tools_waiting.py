"""Calls that wait for somebody on the real store: approvals and deferrals."""

import asyncio
import json
from typing import Any

import pytest

from agentrt.agents import ToolContext, tool
from agentrt.core.events import UserCodeFailed
from agentrt.core.journal import ApprovalRequested, AssistantMessage, ToolStarted
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from agentrt.worker import approvals
from tests.postgres.stage import statement
from tests.worker.scenes import agent_of, calls_once, found, head, results, running, soon, told, types

pytestmark = pytest.mark.one_server

# --- approvals --------------------------------------------------------------------------------------------------------


def paying(ran: list[Any], **options: Any) -> Any:
    @tool(name="pay", effect="once", **options)
    async def pay(amount: int, to: str = "ann") -> str:
        """Pay."""
        ran.append((amount, to))
        return f"paid {amount}"

    return pay


async def test_approvals_are_requested_with_the_answer_and_the_other_calls_run_meanwhile(database_url):
    """Case 45: the third runs and commits, two approval rows, suspended once, woken by the last decision."""
    ran: list[Any] = []
    pay = paying(ran, requires_approval=lambda amount, to: amount > 10)
    model = calls_once(*(Call("pay", {"amount": amount}) for amount in (5, 50, 500)))
    async with local_worker(database_url, agent_of(pay, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert ran == [(5, "ann")]
        assert session.status == "suspended"
        assert session.suspension is not None
        assert session.suspension["reason"] == "approval"
        kinds = await types(worker, session_id)
        assert kinds[3:6] == ["assistant_message", "approval_requested", "approval_requested"]
        pending = await worker.client.pending_approvals(session_id)
        assert len(pending) == 2
        requested = await found(worker, session_id, ApprovalRequested)
        assert session.suspension["waits_for"] == [entry.call_id for entry in requested]

        [small, large] = requested
        await worker.client.decide(str(small.approval_id), "approved", reviewer="ann")
        assert await worker.run() == 0
        await worker.client.decide(str(large.approval_id), "rejected", reviewer="ann", comment="too much")
        await worker.run()
        assert ran == [(5, "ann"), (50, "ann")]
        assert sorted(await results(worker, session_id)) == sorted(
            [("ok", "paid 5"), ("ok", "paid 50"), ("denied", "Not run: a person rejected this call. too much")]
        )
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert len(await worker.client.pending_approvals(session_id)) == 0


async def test_approved_runs_once_with_exactly_the_reviewed_arguments(database_url):
    """Case 47."""
    ran: list[Any] = []
    arguments = '{ "to": "bob",  "amount": 7 }'
    async with local_worker(
        database_url, agent_of(paying(ran, requires_approval=True), model=calls_once(Call("pay", arguments)))
    ) as worker:
        session_id = await worker.ask("a", "begin")
        [approval] = await worker.client.pending_approvals(session_id)
        assert approval["arguments"] == arguments
        await worker.client.decide(
            approval["id"], "approved", reviewer="ann", arguments_hash=approval["arguments_hash"]
        )
        await worker.run()
        assert ran == [(7, "bob")]
        assert len(await found(worker, session_id, ApprovalRequested)) == 1
        assert await results(worker, session_id) == [("ok", "paid 7")]


@pytest.mark.parametrize(("given", "ran_with"), [("\ud83d" + "\ude00", "😀"), ("\ud83d", "\ufffd")])
async def test_arguments_with_half_characters_are_approved_as_they_are_stored(database_url, given, ran_with):
    """Cases 47 and 82: a pair that a stream has cut in two is whole again, and the hash is of what a reviewer sees."""
    ran: list[Any] = []
    model = calls_once(Call("pay", f'{{"amount": 7, "to": "{given}"}}'))
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=True), model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        [approval] = await worker.client.pending_approvals(session_id)
        assert approval["arguments"] == f'{{"amount": 7, "to": "{ran_with}"}}'
        await worker.client.decide(
            approval["id"], "approved", reviewer="ann", arguments_hash=approval["arguments_hash"]
        )
        await worker.run()
        assert ran == [(7, ran_with)]


async def test_an_approval_of_other_arguments_runs_nothing(database_url, monkeypatch):
    """Case 47, forced: the journal says that other arguments were reviewed."""
    ran: list[Any] = []
    model = calls_once(Call("pay", {"amount": 7}))
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=True), model=model)) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(approvals, "arguments_hash", lambda arguments: "0" * 64)
            session_id = await worker.ask("a", "begin")
        [approval] = await worker.client.pending_approvals(session_id)
        await worker.client.decide(approval["id"], "approved", reviewer="ann")
        await worker.run()
        [(outcome, text)] = await results(worker, session_id)
        assert (outcome, "other arguments" in text) == ("denied", True)
        assert ran == []


async def test_reviewed_arguments_that_no_longer_fit_are_not_run(database_url):
    """Case 48: the tool's schema changed meanwhile."""
    ran: list[Any] = []
    model = calls_once(Call("pay", {"amount": 7}))
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=True), model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        [approval] = await worker.client.pending_approvals(session_id)
        await worker.client.decide(approval["id"], "approved", reviewer="ann")

    @tool(effect="once", requires_approval=True)
    async def pay(amount: int, currency: str) -> str:
        """Pay."""
        ran.append(currency)
        return "paid"

    async with local_worker(database_url, agent_of(pay, model=model)) as worker:
        await worker.run()
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "currency: Field required" in text
        assert ran == []


async def test_a_predicate_that_raises_means_yes(database_url):
    ran: list[Any] = []

    def broken(amount: int, to: str) -> bool:
        raise LookupError(amount)

    model = calls_once(Call("pay", {"amount": 7}))
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=broken), model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).status == "suspended"
        assert ran == []
        [failed] = told(worker, UserCodeFailed)
        assert (failed.tool, failed.what, failed.error) == ("pay", "requires_approval", "LookupError: 7")
        assert "in broken" in failed.traceback


async def test_a_call_that_does_not_fit_needs_no_approval(database_url):
    ran: list[Any] = []
    model = calls_once(Call("pay", '{"amount": "seven"}'))
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=True), model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert [outcome for outcome, _ in await results(worker, session_id)] == ["error"]
        assert await found(worker, session_id, ApprovalRequested) == []


async def test_a_tool_that_came_to_need_approval_while_its_call_waited_is_not_run_without(database_url):
    """The new version of an agent asks before it runs what an older one left open."""
    ran: list[Any] = []
    model = calls_once(Call("pay", {"amount": 7}))
    begun = asyncio.Event()

    @tool(effect="read")
    async def pay(amount: int) -> str:
        """Pay."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with local_worker(database_url, agent_of(pay, model=model)) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            assert holding.task is not None
            holding.task.cancel()
    async with local_worker(database_url, agent_of(paying(ran, requires_approval=True), model=model)) as worker:
        await worker.run()
        assert ran == []
        [approval] = await worker.client.pending_approvals(session_id)
        await worker.client.decide(approval["id"], "approved", reviewer="ann")
        await worker.run()
        assert ran == [(7, "ann")]


# --- deferrals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "once", "transactional"])
async def test_a_deferred_call_waits_for_its_result_from_outside(database_url, effect):
    ran = []

    @tool(effect=effect)
    async def order(ctx: ToolContext, what: str) -> str:
        """Order."""
        ran.append(what)
        ctx.defer(expires_seconds=3600)
        return "not used"

    def script(conversation: Conversation):
        return Call("order", {"what": "tea"}) if conversation.turn == 0 else conversation.last_results[0].content

    async with local_worker(database_url, agent_of(order, model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.suspension is not None
        assert session.suspension["reason"] == "external"
        assert await results(worker, session_id) == []
        [call_id] = session.suspension["waits_for"]
        await worker.client.complete_tool_call(session_id, call_id, result="tea has come")
        await worker.run()
        assert ran == ["tea"]
        assert await results(worker, session_id) == [("ok", "tea has come")]
        assert (await head(worker, session_id)).outcome == {"text": "tea has come"}


async def test_a_deferred_call_without_a_result_in_time_ends_and_the_model_reads_so(database_url, connection):
    """Case 49: a wait with a limit ends by itself, whoever was to answer."""

    @tool(effect="read")
    async def order(ctx: ToolContext) -> None:
        """Order."""
        ctx.defer(expires_seconds=0.001)

    def script(conversation: Conversation):
        return Call("order", {}) if conversation.turn == 0 else conversation.last_results[0].content

    async with local_worker(database_url, agent_of(order, model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).status == "suspended"
        await connection.fetch(statement("sweep"), session_id, 500)
        await worker.run()
        assert await results(worker, session_id) == [("timeout", "No result came within 0.001 s.")]
        assert (await head(worker, session_id)).outcome == {"text": "No result came within 0.001 s."}


async def test_a_result_from_outside_may_come_before_the_session_has_suspended(database_url):
    async with local_worker(database_url) as outside:

        @tool(effect="once")
        async def order(ctx: ToolContext) -> str:
            """Order."""
            ctx.defer()
            return ""

        @tool(effect="read")
        async def deliver(ctx: ToolContext) -> str:
            """Deliver what was ordered in the same answer."""
            deferred: list[ToolStarted] = []
            while not any(entry.deferred for entry in deferred):
                deferred = await found(outside, ctx.session_id, ToolStarted)
            await outside.client.complete_tool_call(ctx.session_id, str(deferred[0].call_id), result="early")
            return "delivered"

        model = calls_once(Call("order"), Call("deliver"))
        async with local_worker(database_url, agent_of(order, deliver, model=model)) as worker:
            session_id = await worker.ask("a", "begin")
            assert await results(worker, session_id) == [("ok", "early"), ("ok", "delivered")]
            assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_answers_name_the_calls_that_their_results_answer(database_url):
    @tool(effect="read")
    async def give(name: str) -> str:
        """Give."""
        return name

    def script(conversation: Conversation):
        if conversation.turn == 0:
            return Reply(text="both", calls=[Call("give", {"name": "x"}), Call("give", {"name": "y"})])
        return json.dumps([result.content for result in conversation.last_results])

    async with local_worker(database_url, agent_of(give, model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).outcome == {"text": '["x", "y"]'}
        [answer, _] = await found(worker, session_id, AssistantMessage)
        assert [getattr(block, "call_id", None) for block in answer.content] == [None, "000004001", "000004002"]
