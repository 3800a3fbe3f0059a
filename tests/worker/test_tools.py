"""Running tool calls on the real store: validation, order, ends, texts, and the commit of a result."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentrt.agents import NotExecuted, ToolContext, ToolError, tool
from agentrt.core import events
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.journal import ToolStarted
from agentrt.core.messages import ToolResults
from agentrt.ports import UnstorableBatch
from agentrt.settings import Settings
from agentrt.testing import Call, Conversation, ScriptedModel, local_worker
from agentrt.worker.threads import ToolThreads
from tests.looptime import let_pass
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.scenes import Flawed, agent_of, calls_once, found, head, results, running, told

pytestmark = pytest.mark.one_server


# --- what cannot be run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("does_not_exist", {}), ["no tool 'does_not_exist'", "count"]),
        (Call("count", "[]"), ["object", "amount"]),
        (Call("count", '"str"'), ["object"]),
        (Call("count", "no JSON"), ["not valid JSON"]),
        (Call("count", '{"amount": 1, "note": "abc'), ["not valid JSON"]),
        (Call("count", '{"note": "x"}'), ["amount: Field required"]),
        (Call("count", '{"amount": "1"}'), ["amount: Input should be a valid integer"]),
    ],
)
async def test_a_call_that_does_not_fit_is_not_run_and_the_model_is_told_what_is_right(database_url, call, words):
    """F8, F9: half arguments, a missing key, an invented tool, wrong shapes."""
    ran = []

    @tool(effect="once")
    async def count(amount: int, note: str = "") -> int:
        """Count."""
        ran.append(amount)
        return amount

    async with local_worker(database_url, agent_of(count, model=calls_once(call))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert all(word in text for word in words), text
        assert ran == []
        assert await found(worker, session_id, ToolStarted) == []
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        [finished] = told(worker, events.ToolFinished)
        assert finished.tool == ("count" if call.tool == "count" else "unknown"), "no label of a metric is invented"


async def test_the_same_failure_three_times_in_a_row_ends_the_run(database_url):
    """F8: a loop of identical failures ends."""

    @tool(effect="read")
    async def count(amount: int) -> int:
        """Count."""
        return amount

    model = ScriptedModel(lambda conversation: Call("count", '{"amount": "x"}'))
    async with local_worker(database_url, agent_of(count, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.outcome is not None
        assert session.outcome["code"] == "repeated_tool_failure"
        assert len(await results(worker, session_id)) == 3


# --- order ------------------------------------------------------------------------------------------------------------


async def test_at_most_eight_calls_run_at_once_and_none_beside_a_sequential_one(database_url):
    at_once: dict[str, int] = {}
    now = {"side": 0, "alone": 0}

    async def measured(kind: str) -> str:
        now[kind] += 1
        at_once[kind] = max(at_once.get(kind, 0), sum(now.values()))
        for _ in range(20):
            await asyncio.sleep(0)
        now[kind] -= 1
        return kind

    @tool(effect="read")
    async def side() -> str:
        """Run beside others."""
        return await measured("side")

    @tool(effect="read", sequential=True)
    async def alone() -> str:
        """Run alone."""
        return await measured("alone")

    model = calls_once(*[Call("side")] * 12, Call("alone"), Call("alone"), *[Call("side")] * 3)
    async with local_worker(database_url, agent_of(side, alone, model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert at_once == {"side": 8, "alone": 1}
        assert len(await results(worker, session_id)) == 17


async def test_each_result_is_committed_when_it_exists(database_url):
    first_committed = asyncio.Event()

    @tool(effect="read")
    async def quick() -> str:
        """Be quick."""
        return "quick"

    @tool(effect="read")
    async def slow() -> str:
        """Be slow."""
        await first_committed.wait()
        return "slow"

    async with local_worker(
        database_url, agent_of(quick, slow, model=calls_once(Call("slow"), Call("quick")))
    ) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker):
            while not (await results(worker, session_id)):
                pass
            assert await results(worker, session_id) == [("ok", "quick")]
            first_committed.set()
        assert await results(worker, session_id) == [("ok", "quick"), ("ok", "slow")]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (ToolError("word for word"), "error", "word for word"),
        (NotExecuted("the door is locked"), "not_run", "Not executed: the door is locked"),
        (ValueError("bad value"), "error", "ValueError: bad value"),
        (ValueError(), "error", "ValueError"),
        (SystemExit(3), "error", "SystemExit: 3"),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt"),
        (GeneratorExit("x"), "error", "GeneratorExit: x"),
        (BaseExceptionGroup("two", [SystemExit(3)]), "error", "BaseExceptionGroup: two"),
        (asyncio.CancelledError(), "error", "cancelled by its own code"),
        (TimeoutError("its own"), "error", "TimeoutError: its own"),
    ],
)
async def test_what_a_tool_raises_becomes_its_result(database_url, error, outcome, words):
    @tool(effect="read")
    async def fail() -> str:
        """Fail."""
        raise error

    async with local_worker(database_url, agent_of(fail, model=calls_once(Call("fail")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(got, text)] = await results(worker, session_id)
        assert got == outcome
        assert words in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_tool_that_takes_too_long_is_given_up_and_can_see_it(database_url, plain):
    signalled, let_go = threading.Event(), threading.Event()

    @tool(name="slow", effect="read", timeout_seconds=0.05)
    async def waits(ctx: ToolContext) -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            signalled.set()
        return ""

    @tool(name="slow", effect="read", timeout_seconds=0.05)
    def blocks(ctx: ToolContext) -> str:
        """Block."""
        assert ctx.stopping.wait(HANGS_AFTER_SECONDS)
        assert ctx.cancelled
        signalled.set()
        let_go.wait(HANGS_AFTER_SECONDS)
        return ""

    agent = agent_of(blocks if plain else waits, model=calls_once(Call("slow")))
    settings = Settings(database_url=database_url, stop_seconds=0.05)
    async with local_worker(database_url, agent, settings=settings) as worker:
        try:
            session_id = await worker.ask("a", "begin")
        finally:
            let_go.set()
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "timeout"
        assert "0.05 seconds" in text
        assert await asyncio.to_thread(signalled.wait, HANGS_AFTER_SECONDS)


async def test_waiting_for_a_thread_does_not_count_into_the_time_limit(database_url, monkeypatch):
    release = threading.Event()
    at_work = threading.Event()

    @tool(effect="read", timeout_seconds=600)
    def first() -> str:
        """Hold the only thread."""
        at_work.set()
        release.wait(HANGS_AFTER_SECONDS)
        return "first"

    @tool(effect="read", timeout_seconds=60)
    def second() -> str:
        """Be quick."""
        return "second"

    threads = ToolThreads(1)
    async with local_worker(
        database_url, agent_of(first, second, model=calls_once(Call("first"), Call("second")))
    ) as worker:
        worker.deps = replace(worker.deps, threads=threads)
        session_id = await worker.client.create("a", "begin")
        async with running(worker):
            await asyncio.to_thread(at_work.wait, HANGS_AFTER_SECONDS)
            assert threads.running == 1
            let_pass(monkeypatch, seconds=100)  # longer than the limit of the one that waits
            for _ in range(3):  # a timer that runs would go off now
                await asyncio.sleep(0)
            release.set()
        assert sorted(await results(worker, session_id)) == [("ok", "first"), ("ok", "second")]
        assert threads.running == 0


async def test_no_secret_gets_out_through_an_error(database_url):
    """F33: a database URL, a bearer token and a registered secret."""
    texts = "postgresql://admin:hunter22@db/x Authorization: Bearer abcdef0123456789 key=geheimnis-42 api_key=zzzz1111"

    @tool(effect="read")
    async def leak() -> str:
        """Leak."""
        raise RuntimeError(texts)

    seen = []

    def script(conversation: Conversation):
        seen.append(conversation.messages)
        return Call("leak") if conversation.turn == 0 else "ok"

    async with local_worker(database_url, agent_of(leak, model=ScriptedModel(script))) as worker:
        worker.deps = replace(worker.deps, secrets=("geheimnis-42",))
        session_id = await worker.ask("a", "begin")
        [(_, text)] = await results(worker, session_id)
        for place in (text, repr(seen), repr(worker.events)):
            assert not any(secret in place for secret in ("hunter22", "abcdef0123456789", "geheimnis-42", "zzzz1111"))
        assert "RuntimeError" in text
        [finished] = told(worker, events.ToolFinished)
        assert "in leak" in finished.traceback


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is \u2014 ü", "as it is \u2014 ü"),
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        (None, "null"),
        (float("nan"), '"NaN"'),
        (b"\xff\x00", '"_wA="'),
        ({1, 2}, "[1,2]"),
        ("", ""),
        ({"lone": "\ud800"}, '{"lone": "\\ud800"}'),
        ("a\x00b", "a\u2400b"),
        ({"k\x00": 1}, '{"k\\u0000":1}'),
        (r"typed \u0000", r"typed \u0000"),
    ],
)
async def test_results_are_text_or_json_and_always_storable(database_url, value, text):
    """F1: NUL in a result, in a key, and the six typed characters, which pass unchanged."""

    @tool(effect="read")
    async def give() -> Any:
        """Give."""
        return value

    seen = []

    def script(conversation: Conversation):
        seen.append(conversation.messages)
        return Call("give") if conversation.turn == 0 else "ok"

    async with local_worker(database_url, agent_of(give, model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("ok", text)]
        batch = seen[1][-1]
        assert isinstance(batch, ToolResults)
        assert batch.results[0].content == (text or "(no output)")


async def test_a_long_result_keeps_head_and_tail_and_says_so(database_url):
    @tool(effect="read")
    async def give() -> str:
        """Give."""
        return "head" + "ü" * 20_000 + "tail"

    settings = Settings(database_url=database_url, tool_result_max_bytes=1_024)
    async with local_worker(database_url, agent_of(give, model=calls_once(Call("give"))), settings=settings) as worker:
        session_id = await worker.ask("a", "begin")
        [(_, text)] = await results(worker, session_id)
        assert len(text.encode()) <= 1_024
        assert text.startswith("headü")
        assert text.endswith("ütail")
        assert "of 40008 bytes left out" in text
        assert "\ufffd" not in text


# --- the commit of a result -------------------------------------------------------------------------------------------


def _is_result(writes: Sequence[Any]) -> bool:
    return any(entry.data.type == "tool_result" for write in writes for entry in write.entries)


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
async def test_a_result_whose_commit_fails_once_is_written_from_memory_and_the_tool_not_run_again(database_url, after):
    """F5, and case 31: the same fence, once in the journal."""
    ran = []

    @tool(effect="once")
    async def act() -> str:
        """Act."""
        ran.append(True)
        return "done"

    failures: list[bool] = []

    def fails(writes: Sequence[Any]) -> tuple[bool, Exception] | None:
        if failures or not _is_result(writes):
            return None
        failures.append(True)
        return after, DatabaseUnavailable("the connection is gone")

    async with local_worker(database_url, agent_of(act, model=calls_once(Call("act")))) as worker:
        worker.deps.committer._store = Flawed(worker.store, fails)
        session_id = await worker.ask("a", "begin")
        assert failures == [True]
        assert ran == [True]
        assert await results(worker, session_id) == [("ok", "done")]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_result_that_cannot_be_stored_is_told_to_its_session_alone(database_url):
    """Case 82: forced, since everything of ours is made storable."""

    @tool(effect="read")
    async def give() -> str:
        """Give."""
        return "unstorable"

    def fails(writes: Sequence[Any]) -> tuple[bool, Exception] | None:
        unstorable = _is_result(writes) and "unstorable" in repr(writes)
        return (False, UnstorableBatch("22P05")) if unstorable else None

    async with local_worker(database_url, agent_of(give, model=calls_once(Call("give")))) as worker:
        worker.deps.committer._store = Flawed(worker.store, fails)
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert outcome == "error"
        assert "cannot be stored" in text
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
