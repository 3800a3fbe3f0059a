"""Tools that do not stop when they are told to, or that try to take the worker with them."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from agentrt.agents import Done, NotExecuted, ToolContext, tool
from agentrt.core.content import ToolCall
from agentrt.core.journal import ApprovalRequested, AssistantMessage, ToolResult
from agentrt.settings import Settings
from agentrt.testing import Call, LocalWorker, local_worker
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.scenes import agent_of, calls_once, found, head, results, running, soon

pytestmark = pytest.mark.one_server


class Stubborn:
    """A coroutine that swallows its cancellation until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.told = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self) -> str:
        self.begun.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.told.set()
        return "at last"


@asynccontextmanager
async def stubborn_worker(
    database_url: str, *, stop_seconds: float, timeout_seconds: float = 600
) -> AsyncIterator[tuple[LocalWorker, Stubborn]]:
    stubborn = Stubborn()

    @tool(effect="read", timeout_seconds=timeout_seconds)
    async def swallow() -> str:
        """Go on."""
        return await stubborn()

    settings = Settings(database_url=database_url, stop_seconds=stop_seconds)
    async with local_worker(
        database_url, agent_of(swallow, model=calls_once(Call("swallow"))), settings=settings
    ) as worker:
        try:
            yield worker, stubborn
        finally:
            stubborn.let_go.set()
            left = {task for task in asyncio.all_tasks() if task.get_name() == "tool"}
            if left:
                await soon(asyncio.wait(left))


async def test_a_tool_that_swallows_its_cancellation_is_given_up_and_counted(database_url):
    async with stubborn_worker(database_url, stop_seconds=0.05, timeout_seconds=0.05) as (worker, stubborn):
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "timeout"
        assert "0.05 seconds" in text
        assert stubborn.told.is_set()
        assert worker.deps.threads.running == 1
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
    assert worker.deps.threads.running == 0


async def test_a_tool_that_ends_when_it_is_told_to_keeps_its_end(database_url):
    async with stubborn_worker(database_url, stop_seconds=8, timeout_seconds=0.05) as (worker, stubborn):
        session_id = await worker.client.create("a", "begin")
        async with running(worker):
            await soon(stubborn.told.wait())
            stubborn.let_go.set()
        assert await results(worker, session_id) == [("ok", "at last")]


async def test_a_plain_tool_that_ends_when_it_is_told_to_keeps_its_end(database_url):
    @tool(effect="once", timeout_seconds=0.05)
    def patient(ctx: ToolContext) -> str:
        """Wait until told."""
        assert ctx.stopping.wait(HANGS_AFTER_SECONDS)
        return "stopped in order"

    settings = Settings(database_url=database_url, stop_seconds=8)
    async with local_worker(
        database_url, agent_of(patient, model=calls_once(Call("patient"))), settings=settings
    ) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("ok", "stopped in order")]


async def test_a_lost_session_leaves_its_slot_although_its_tool_goes_on(database_url):
    async with stubborn_worker(database_url, stop_seconds=0.05) as (worker, stubborn):
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(stubborn.begun.wait())
            await worker.client.cancel(session_id)
            holding.lose("cancelled")
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        assert worker.deps.threads.running == 1


@pytest.mark.parametrize("returns", [True, False])
async def test_a_tool_that_cancels_itself_has_an_error_result(database_url, returns):
    ran = []

    @tool(effect="read")
    async def suicidal() -> str:
        """Cancel the task that runs it."""
        ran.append(True)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if not returns:
            await asyncio.sleep(0)
        return "x"

    async with local_worker(database_url, agent_of(suicidal, model=calls_once(Call("suicidal")))) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert ran == [True]
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "cancelled by its own code" in text


async def test_tools_of_which_nothing_comes_crash_the_run_instead_of_running_for_ever(database_url, monkeypatch):
    """A guard: no plan may be made again from the same journal."""

    @tool(effect="read")
    async def reads() -> str:
        """Read."""
        return "x"

    async def nothing(*_: object) -> None:
        """No call is answered."""

    monkeypatch.setattr("agentrt.worker.runner.run_tools", nothing)
    async with local_worker(database_url, agent_of(reads, model=calls_once(Call("reads")))) as worker:
        session_id = await worker.client.create("a", "begin", max_attempts=1)
        await soon(worker.run())
        assert (await head(worker, session_id)).status == "failed"


async def test_reconcile_and_a_second_execution_are_not_told_to_stop(database_url, connection):
    told: list[tuple[str, bool]] = []

    async def ask(ctx: ToolContext) -> Done:
        told.append(("reconcile", ctx.cancelled))
        return Done("it did")

    @tool(effect="once", reconcile=ask, sequential=True)
    async def breaks(ctx: ToolContext) -> str:
        """Break."""
        raise OSError("reset")

    @tool(effect="transactional")
    async def conflicts(ctx: ToolContext) -> str:
        """Be undone once, after a deferral."""
        told.append(("conflicts", ctx.cancelled))
        if len(told) == 2:
            ctx.defer()
            await ctx.connection.execute("do $$ begin raise exception 'x' using errcode = '40001'; end $$")
        return "finished"

    model = calls_once(Call("breaks"), Call("conflicts"))
    async with local_worker(database_url, agent_of(breaks, conflicts, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert told == [("reconcile", False), ("conflicts", False), ("conflicts", False)]
        assert await results(worker, session_id) == [("ok", "it did"), ("ok", "finished")]


async def test_a_tool_that_cancels_its_own_session_in_its_transaction_has_an_error_result(database_url):
    @tool(effect="transactional")
    async def cancels(ctx: ToolContext) -> str:
        """Cancel the session that it runs in."""
        await ctx.connection.fetchval("select agentrt.cancel_session($1)", ctx.session_id)
        return "x"

    async with local_worker(database_url, agent_of(cancels, model=calls_once(Call("cancels")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "changed its own session" in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def hangs() -> bool:
    await asyncio.Event().wait()
    return False


def exits() -> bool:
    raise SystemExit(7)


@pytest.mark.parametrize("predicate", [hangs, exits])
async def test_a_predicate_that_hangs_or_exits_means_yes(database_url, predicate):
    @tool(effect="read", requires_approval=predicate, timeout_seconds=0.05)
    async def reads() -> str:
        """Read."""
        return "x"

    async with local_worker(database_url, agent_of(reads, model=calls_once(Call("reads")))) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert (await head(worker, session_id)).status == "suspended"
        [approval] = await found(worker, session_id, ApprovalRequested)
        assert approval.reason == "required"


async def test_an_interrupt_does_not_wait_for_a_predicate_and_keeps_the_answer(database_url):
    asked = asyncio.Event()

    async def hangs_once() -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    @tool(effect="read", requires_approval=hangs_once)
    async def reads() -> str:
        """Read."""
        return "x"

    async with local_worker(database_url, agent_of(reads, model=calls_once(Call("reads")))) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(asked.wait())
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        assert len(await found(worker, session_id, AssistantMessage)) >= 1


async def test_no_secret_gets_out_through_not_executed(database_url):
    @tool(effect="once")
    async def closed() -> str:
        """Find the door closed."""
        raise NotExecuted("postgresql://u:geheim@h is down")

    async with local_worker(database_url, agent_of(closed, model=calls_once(Call("closed")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("not_run", "Not executed: postgresql://[hidden]@h is down")]


async def test_complaints_about_a_call_are_cut_to_size(database_url):
    @tool(effect="read")
    async def picky(x: int) -> str:
        """Be picky."""
        return str(x)

    model = calls_once(Call("picky", {"k" * 1_000_000: 1}), Call("n" * 1_000_000))
    async with local_worker(database_url, agent_of(picky, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        ends = await results(worker, session_id)
        assert [outcome for outcome, _ in ends] == ["error", "error"]
        assert all(len(text.encode()) <= 32_768 for _, text in ends)


@pytest.mark.parametrize("name", ["n" * 1_000_000, "reads" + "s" * 60, "💥" * 1_000])
async def test_a_name_that_a_model_invents_is_kept_up_to_the_length_that_a_tools_name_may_have(database_url, name):
    """F9: it is neither stored nor shown whole, and is not taken for a tool whose name it begins with."""
    ran = []

    @tool("reads" + "s" * 59, effect="read")
    async def reads() -> str:
        """Read."""
        ran.append(True)
        return "x"

    async with local_worker(database_url, agent_of(reads, model=calls_once(Call(name)))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        [answer, _] = await found(worker, session_id, AssistantMessage)
        [call] = answer.content
        [result] = await found(worker, session_id, ToolResult)
        assert isinstance(call, ToolCall)
        assert (call.tool, result.tool, outcome) == (f"{name[:64]}…", f"{name[:64]}…", "error")
        assert text == f"There is no tool {call.tool!r}. The tools are: {reads.name}."
        assert (ran, (await head(worker, session_id)).outcome) == ([], {"text": "ok"})


async def test_a_tool_is_not_begun_after_a_predicate_that_ended_while_it_was_cut(database_url):
    """F26: what the predicate says in its last moment does not count as leave to begin."""
    ran: list[str] = []
    asked = asyncio.Event()
    times = itertools.count(1)

    async def needs(name: str) -> bool:
        if next(times) == 2:  # the first time is with the answer, the second one before the call
            with suppress(asyncio.CancelledError):
                asked.set()
                await asyncio.Event().wait()
        return False

    @tool(effect="read", requires_approval=needs)
    async def look(name: str) -> str:
        """Look."""
        ran.append(name)
        return name

    model = calls_once(Call("look", {"name": "here"}))
    async with local_worker(database_url, agent_of(look, model=model)) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(asked.wait())
            assert holding.task is not None
            holding.task.cancel()
        assert ran == []
        assert await results(worker, session_id) == []
