"""What becomes of an effect when a call's end is not seen: by a crash, a time limit, an exception; and transactions."""

import asyncio
from typing import Any

import pytest

from agentrt.agents import Done, NotDone, NotExecuted, ToolContext, ToolError, Unknown, tool
from agentrt.core import events
from agentrt.core.journal import ApprovalRequested, ToolStarted
from agentrt.settings import Settings
from agentrt.testing import Call, Conversation, LocalWorker, ScriptedModel, local_worker
from agentrt.worker.holding import Holding
from tests.looptime import let_pass
from tests.worker.scenes import agent_of, calls_once, found, head, kill, results, running, soon, told, types

pytestmark = pytest.mark.one_server


async def killed_inside(worker: LocalWorker, message: str = "begin") -> Any:
    """Create a session and run it; its tool kills the worker by way of ``doomed``. Returns the session's id."""
    session_id = await worker.client.create("a", message)
    [holding] = await worker.claim()
    doomed.append(holding)
    await worker.run_one(holding)
    doomed.clear()
    return session_id


doomed: list[Holding] = []


def die() -> None:
    """Nothing is written from here on, as after a SIGKILL between a tool's return and its commit."""
    for holding in doomed:
        holding.lose("killed")


# --- crashes between return and commit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "times", "outcome"), [("read", 2, "ok"), ("idempotent", 2, "ok"), ("once", 1, "unknown")]
)
async def test_a_kill_between_return_and_commit_repeats_only_what_may_be_repeated(
    database_url, connection, effect, times, outcome
):
    """F15: once is not run again, idempotent is, with the same key."""
    keys: list[str] = []

    @tool(effect=effect)
    async def bump(ctx: ToolContext) -> str:
        """Bump a counter elsewhere."""
        keys.append(ctx.idempotency_key)
        die()
        return "bumped"

    agent = agent_of(bump, model=calls_once(Call("bump")))
    async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
        session_id = await killed_inside(a)
        assert await results(a, session_id) == []
        await kill(a, connection, b)
        await b.run()
        assert len(keys) == times
        assert len(set(keys)) == 1
        assert [end for end, _ in await results(b, session_id)] == [outcome]
        assert (await head(b, session_id)).outcome == {"text": "ok"}
        assert ("session_resumed" in await types(b, session_id)) == (effect == "once")


async def test_a_transactional_tool_that_is_killed_wrote_exactly_once(database_url, connection):
    """F15: without any unique constraint."""
    await connection.execute("create table public.report (line text)")
    ran = []

    @tool(effect="transactional")
    async def write(ctx: ToolContext, line: str) -> str:
        """Write a row."""
        ran.append(line)
        await ctx.connection.execute("insert into public.report values ($1)", line)
        die()
        return "written"

    agent = agent_of(write, model=calls_once(Call("write", {"line": "x"})))
    async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
        session_id = await killed_inside(a)
        assert await connection.fetchval("select count(*) from public.report") == 0
        await kill(a, connection, b)
        await b.run()
        assert ran == ["x", "x"]
        assert await connection.fetchval("select count(*) from public.report") == 1
        assert await results(b, session_id) == [("ok", "written")]


@pytest.mark.parametrize(
    ("answer", "times", "end"),
    [
        (Done("found it"), 1, ("ok", "found it")),
        (NotDone(), 2, ("ok", "sent")),
        (Unknown(), 1, None),
        ("nonsense", 1, None),
        (LookupError("the other side is away"), 1, None),
    ],
)
async def test_after_a_kill_reconcile_says_what_became_of_a_once_call(database_url, connection, answer, times, end):
    asked: list[Any] = []

    def answered(ctx: ToolContext, to: str) -> Any:
        asked.append((ctx.idempotency_key, to))
        if isinstance(answer, Exception):
            raise answer
        return answer

    ran = []

    @tool(effect="once", reconcile=answered)
    async def send(ctx: ToolContext, to: str) -> str:
        """Send."""
        ran.append(ctx.idempotency_key)
        die()
        return "sent"

    agent = agent_of(send, model=calls_once(Call("send", {"to": "ann"})))
    async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
        session_id = await killed_inside(a)
        await kill(a, connection, b)
        await b.run()
        assert len(ran) == times
        assert asked == [(ran[0], "ann")]
        [got] = await results(b, session_id)
        assert got == end if end else got[0] == "unknown"
        assert len(await found(b, session_id, ToolStarted)) == 1
        failed = [(event.tool, event.what, event.error) for event in told(b, events.UserCodeFailed)]
        words = {
            "nonsense": "TypeError: it returned str, not Done, NotDone or Unknown",
            "the other side is away": "LookupError: the other side is away",
        }.get(str(answer))
        assert failed == ([("send", "reconcile", words)] if words else [])


# --- "unknown" outside crashes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "unknown"),  # the time limit
        (ConnectionResetError("by peer"), "unknown"),
        (ValueError("ordinary"), "unknown"),
        (ToolError("known"), "error"),
        (NotExecuted("known too"), "not_run"),
    ],
    ids=["time limit", "connection", "exception", "ToolError", "NotExecuted"],
)
async def test_only_a_return_and_two_exceptions_are_known_ends_of_a_once_call(database_url, error, outcome):
    """F26: never a plain "failed"."""

    @tool(effect="once", timeout_seconds=0.05 if error is None else 600)
    async def act() -> str:
        """Act."""
        if error is None:
            await asyncio.Event().wait()
        raise error

    async with local_worker(database_url, agent_of(act, model=calls_once(Call("act")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(got, text)] = await results(worker, session_id)
        assert got == outcome
        assert str(error or "time limit") in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        [told_end] = told(worker, events.ToolFinished)
        assert told_end.outcome == outcome
        surprise = error is not None and outcome == "unknown"
        assert ("in act" in told_end.traceback) == surprise, "the log has what nobody expected"


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (Done({"id": 7}), ("ok", '{"id":7}')),
        (NotDone(), ("error", "ConnectionResetError: by peer It had no effect.")),
        (Unknown(), None),
    ],
)
async def test_reconcile_is_asked_at_once_when_the_worker_lives(database_url, answer, end):
    ran = []

    async def ask(ctx: ToolContext) -> Any:
        return answer

    @tool(effect="once", reconcile=ask)
    async def act() -> str:
        """Act."""
        ran.append(True)
        raise ConnectionResetError("by peer")

    async with local_worker(database_url, agent_of(act, model=calls_once(Call("act")))) as worker:
        session_id = await worker.ask("a", "begin")
        [got] = await results(worker, session_id)
        assert got == end if end else got[0] == "unknown"
        assert ran == [True]


async def test_a_model_that_repeats_what_is_unknown_needs_an_approval(database_url):
    """F27: the same tool and arguments under a new id are not simply executed again."""
    ran = []

    @tool(effect="once")
    async def send(to: str) -> str:
        """Send."""
        ran.append(to)
        if len(ran) == 1:
            raise ConnectionResetError("by peer")
        return "sent"

    def script(conversation: Conversation):
        if conversation.turn < 2:
            return Call("send", {"to": "ann"})
        return conversation.results[-1].content

    async with local_worker(database_url, agent_of(send, model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert ran == ["ann"]
        [requested] = await found(worker, session_id, ApprovalRequested)
        assert requested.reason == "may_repeat"
        assert (await head(worker, session_id)).status == "suspended"
        await worker.client.decide(str(requested.approval_id), "approved", reviewer="bob")
        await worker.run()
        assert ran == ["ann", "ann"]
        assert (await head(worker, session_id)).outcome == {"text": "sent"}


async def test_a_tool_may_say_that_repeating_what_is_unknown_is_allowed(database_url):
    ran = []

    @tool(effect="once", on_unknown="retry_allowed")
    async def send(to: str) -> str:
        """Send."""
        ran.append(to)
        if len(ran) == 1:
            raise ConnectionResetError("by peer")
        return "sent"

    model = ScriptedModel(lambda conversation: Call("send", {"to": "ann"}) if conversation.turn < 2 else "ok")
    async with local_worker(database_url, agent_of(send, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert [end for end, _ in await results(worker, session_id)] == ["unknown", "ok"]


# --- transactional ----------------------------------------------------------------------------------------------------


async def test_what_a_transactional_tool_wrote_commits_with_its_result_and_only_then(database_url, connection):
    await connection.execute("create table public.report (line text)")
    seen_inside = []

    @tool(effect="transactional", sequential=True)
    async def write(ctx: ToolContext, line: str) -> int:
        """Write a row."""
        await ctx.connection.execute("insert into public.report values ($1)", line)
        seen_inside.append(await connection.fetchval("select count(*) from public.report"))
        if line == "bad":
            raise ToolError("not this one")
        return int(await ctx.connection.fetchval("select count(*) from public.report"))

    model = calls_once(Call("write", {"line": "good"}), Call("write", {"line": "bad"}))
    async with local_worker(database_url, agent_of(write, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("ok", "1"), ("error", "not this one")]
        assert await connection.fetchval("select array_agg(line) from public.report") == ["good"]
        assert await found(worker, session_id, ToolStarted) == []


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
async def test_a_conflict_runs_the_tool_again(database_url, connection, sqlstate):
    await connection.execute("create table public.report (line text)")
    ran = []

    @tool(effect="transactional")
    async def write(ctx: ToolContext) -> str:
        """Write a row."""
        ran.append(True)
        await ctx.connection.execute("insert into public.report values ('x')")
        if len(ran) < 3:
            await ctx.connection.execute(f"do $$ begin raise exception using errcode = '{sqlstate}'; end $$")
        return "written"

    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert len(ran) == 3
        assert await results(worker, session_id) == [("ok", "written")]
        assert await connection.fetchval("select count(*) from public.report") == 1


async def test_a_connection_that_is_cut_inside_runs_the_tool_again(database_url, connection):
    """F26: a lost connection undid everything, so that a transactional tool is not unknown."""
    await connection.execute("create table public.report (line text)")
    ran = []

    @tool(effect="transactional")
    async def write(ctx: ToolContext) -> str:
        """Write a row."""
        ran.append(True)
        await ctx.connection.execute("insert into public.report values ('x')")
        if len(ran) == 1:
            pid = await ctx.connection.fetchval("select pg_backend_pid()")
            await connection.execute("select pg_terminate_backend($1, 5000)", pid)
            await ctx.connection.execute("select 1")
        return "written"

    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert len(ran) == 2
        assert await results(worker, session_id) == [("ok", "written")]
        assert await connection.fetchval("select count(*) from public.report") == 1


@pytest.mark.parametrize("statement", ["commit", "rollback", "commit and chain"])
async def test_a_tool_that_ends_the_transaction_itself_fails_with_that_message(database_url, connection, statement):
    @tool(effect="transactional")
    async def write(ctx: ToolContext) -> str:
        """Write."""
        raw = await ctx.connection()
        await raw.execute(statement)
        return "written"

    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "transaction" in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_transaction_that_takes_too_long_is_rolled_back(database_url, connection):
    await connection.execute("create table public.report (line text)")

    @tool(effect="transactional")
    async def write(ctx: ToolContext) -> str:
        """Write a row, and wait."""
        await ctx.connection.execute("insert into public.report values ('x')")
        await asyncio.Event().wait()
        return "written"

    settings = Settings(database_url=database_url, transactional_seconds=0.2)
    async with local_worker(
        database_url, agent_of(write, model=calls_once(Call("write"))), settings=settings
    ) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "timeout"
        assert "0.2 seconds" in text
        assert await connection.fetchval("select count(*) from public.report") == 0


async def test_waiting_for_a_connection_does_not_count_into_the_time_limit(database_url, connection, monkeypatch):
    await connection.execute("create table public.report (line text)")
    holds = asyncio.Event()

    @tool(effect="transactional")
    async def write(ctx: ToolContext, line: str) -> str:
        """Write a row; the first one is never done."""
        await ctx.connection.execute("insert into public.report values ($1)", line)
        if not holds.is_set():
            holds.set()
            await asyncio.Event().wait()
        return "written"

    settings = Settings(database_url=database_url, transactional_seconds=60, transactional_connections=1)
    model = calls_once(Call("write", {"line": "first"}), Call("write", {"line": "second"}))
    async with local_worker(database_url, agent_of(write, model=model), settings=settings) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker):
            await soon(holds.wait())
            let_pass(monkeypatch, seconds=100)
        assert sorted(outcome for outcome, _ in await results(worker, session_id)) == ["ok", "timeout"]
        assert await connection.fetchval("select array_agg(line) from public.report") == ["second"]


async def test_a_transactional_tool_of_a_lost_session_leaves_nothing(database_url, connection):
    """F16 for a tool: the fence is in the tool's own last statement."""
    await connection.execute("create table public.report (line text)")

    async with local_worker(database_url) as outside:

        @tool(effect="transactional")
        async def write(ctx: ToolContext) -> str:
            """Write a row."""
            await ctx.connection.execute("insert into public.report values ('x')")
            await outside.client.cancel(ctx.session_id)
            return "written"

        async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
            session_id = await worker.client.create("a", "begin")
            await worker.run()
            assert await connection.fetchval("select count(*) from public.report") == 0
            assert await results(worker, session_id) == []
            assert len(told(worker, events.SessionLost)) == 1
