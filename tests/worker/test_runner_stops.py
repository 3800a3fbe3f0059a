"""A run that is stopped, on the real store: interrupts, cancels, drains, crashes, takeovers."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from agentrt.agents import Agent, tool
from agentrt.core import events
from agentrt.core.calls import NOT_BEGUN, interrupted
from agentrt.core.content import Text
from agentrt.core.journal import AssistantMessage, SessionReleased, ToolResult
from agentrt.core.messages import ModelOutput, ToolResults
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from agentrt.worker.threads import ToolThreads
from tests.worker.scenes import (
    add,
    adding,
    agent_of,
    calls_once,
    found,
    head,
    journal,
    kill,
    results,
    running,
    soon,
    told,
    types,
)

# --- interrupts and cancels -------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_an_interrupt_cancels_the_model_call_and_keeps_what_was_heard(database_url):
    speaking = asyncio.Event()
    cancelled: list[bool] = []

    def script(conversation: Conversation):
        return f"ok: {conversation.last_user_text}"

    class Stuck(ScriptedModel):
        async def request(self, request, on_text):
            if not any(isinstance(message, ModelOutput) for message in request.messages):
                on_text("first ")
                speaking.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(True)
            return await super().request(request, on_text)

    async with local_worker(database_url, Agent("a", model=Stuck(script))) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(speaking.wait())
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        answers = await found(worker, session_id, AssistantMessage)
        assert [(answer.stop_reason, answer.content) for answer in answers] == [
            ("interrupted", (Text("first "),)),
            ("stop", (Text("ok: stop"),)),
        ]
        assert cancelled == [True]


@pytest.mark.one_server
async def test_an_interrupt_cancels_tools_and_closes_each_call_once(database_url):
    begun = asyncio.Semaphore(0)
    now = 0.0

    @tool(effect="read")
    async def reads() -> str:
        """Read for ever."""
        begun.release()
        await asyncio.Event().wait()
        return ""

    @tool(effect="once")
    async def acts() -> str:
        """Act for ever."""
        begun.release()
        await asyncio.Event().wait()
        return ""

    def script(conversation: Conversation):
        return [Call("reads"), Call("acts")] if conversation.turn == 0 else f"ok: {conversation.last_user_text}"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[reads, acts])) as worker:
        worker.deps = replace(worker.deps, clock=lambda: now)
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.acquire())
            await soon(begun.acquire())
            now = 7.0
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        ends = {result.tool: result for result in await found(worker, session_id, ToolResult)}
        assert (ends["reads"].outcome, ends["acts"].outcome) == ("interrupted", "unknown")
        assert ends["reads"].content == interrupted(begun=True, harmless=True), "it is not said to be not run"
        assert (ends["reads"].seconds, ends["acts"].seconds) == (7.0, 7.0)
        assert len(await results(worker, session_id)) == 2
        assert (await head(worker, session_id)).outcome == {"text": "ok: stop"}
        assert holding.once_running == 0


@pytest.mark.one_server
async def test_after_a_cancel_between_two_calls_a_message_runs_with_a_valid_view(database_url, connection):
    """Case 36: the finished result is kept, the other call is closed by one result, and not run."""
    ran = []
    begun = asyncio.Event()

    @tool(effect="read")
    async def quick() -> str:
        """Be quick."""
        ran.append("quick")
        return "quick result"

    @tool(effect="once")
    async def long() -> str:
        """Be long."""
        ran.append("long")
        begun.set()
        await asyncio.Event().wait()
        return "never"

    seen = []

    def script(conversation: Conversation):
        seen.append(conversation.messages)
        return [Call("quick"), Call("long")] if conversation.turn == 0 else "ok"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[quick, long])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            while "tool_result" not in await types(worker, session_id):
                pass
            await worker.client.cancel(session_id, reason="enough")
            holding.lose("cancelled")
        assert (await types(worker, session_id))[-1] == "session_cancelled"
        assert len(told(worker, events.SessionLost)) == 1

        await worker.client.send(session_id, "go on")
        await connection.execute("update agentrt.sessions set ready_at = now(), due = true where id = $1", session_id)
        await worker.run()
        assert [outcome for outcome, _ in await results(worker, session_id)] == ["ok", "unknown"]
        assert ran == ["quick", "long"]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        batch = seen[-1][2]
        assert isinstance(batch, ToolResults)
        assert batch.results[0].content == "quick result"


@pytest.mark.one_server
async def test_a_lost_session_does_not_wait_for_its_model_and_writes_nothing(database_url):
    speaking = asyncio.Event()

    async def script(conversation: Conversation):
        speaking.set()
        return Reply(text="too late", delay_seconds=3600)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(speaking.wait())
            await worker.client.cancel(session_id)
            before = await types(worker, session_id)
            holding.lose("cancelled")
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        assert await types(worker, session_id) == before
        assert len(told(worker, events.SessionLost)) == 1


@pytest.mark.one_server
async def test_a_write_after_a_cancel_that_was_not_noticed_is_refused_and_ends_quietly(database_url):
    async with local_worker(database_url) as outside:

        async def script(conversation: Conversation):
            await outside.client.cancel(session_id)
            return "too late"

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
            session_id = await worker.client.create("a", "begin")
            assert await worker.run() == 1
            assert (await types(worker, session_id))[-1] == "session_cancelled"
            assert len(told(worker, events.SessionLost)) == 1
            assert told(worker, events.SessionCrashed) == []


# --- drain ------------------------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_a_drain_releases_at_the_next_committed_boundary_without_an_attempt(database_url):
    """Case 22, one of the six."""
    speaking, go_on = asyncio.Event(), asyncio.Event()

    async def script(conversation: Conversation):
        speaking.set()
        await go_on.wait()
        return adding(conversation)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[add])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(speaking.wait())
            holding.draining.set()
            go_on.set()
        session = await head(worker, session_id)
        assert (session.status, session.attempt) == ("queued", 1)
        assert (await types(worker, session_id))[-2:] == ["assistant_message", "session_released"]
        assert [event.reason for event in told(worker, events.SessionReleased)] == ["drain"]
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "The sum is 10."}


@pytest.mark.one_server
async def test_a_drain_begins_no_further_tool_and_lets_the_running_one_end(database_url):
    """F35: the tool ends within the drain, and nothing is unknown."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    ran = []

    @tool(effect="once", sequential=True)
    async def act(name: str) -> str:
        """Act."""
        ran.append(name)
        begun.set()
        await go_on.wait()
        return name

    def script(conversation: Conversation):
        return [Call("act", {"name": "one"}), Call("act", {"name": "two"})] if conversation.turn == 0 else "ok"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[act])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            assert holding.once_running == 1
            holding.draining.set()
            go_on.set()
        assert ran == ["one"]
        assert (await types(worker, session_id))[-2:] == ["tool_result", "session_released"]
        await worker.run()
        assert ran == ["one", "two"]
        assert await results(worker, session_id) == [("ok", "one"), ("ok", "two")]


@pytest.mark.one_server
async def test_a_cut_by_the_drain_journals_what_is_unknown_and_releases(database_url):
    """F26: a once tool that is cut is unknown; a read is simply run again by the next owner."""
    begun = asyncio.Semaphore(0)
    reads = []

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        reads.append(True)
        begun.release()
        if len(reads) == 1:
            await asyncio.Event().wait()
        return "seen"

    @tool(effect="once")
    async def act() -> str:
        """Act for ever."""
        begun.release()
        await asyncio.Event().wait()
        return ""

    def script(conversation: Conversation):
        return [Call("look"), Call("act")] if conversation.turn == 0 else "ok"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[look, act])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.acquire())
            await soon(begun.acquire())
            assert holding.task is not None
            holding.task.cancel()
        assert (await types(worker, session_id))[-2:] == ["tool_result", "session_released"]
        assert (await head(worker, session_id)).attempt == 1
        await worker.run()
        assert [outcome for outcome, _ in await results(worker, session_id)] == ["unknown", "ok"]
        assert len(reads) == 2


@pytest.mark.one_server
async def test_a_once_tool_that_waits_for_a_thread_when_it_is_cut_is_known_not_to_have_begun(database_url):
    """F26: all threads are taken by other tools."""
    asked = asyncio.Event()

    class Asked(ToolThreads):
        @asynccontextmanager
        async def thread(self):
            asked.set()
            async with super().thread() as start:
                yield start

    @tool(effect="once")
    def act() -> str:
        """Act."""
        return "acted"

    threads = Asked(1)
    async with local_worker(database_url, agent_of(act, model=calls_once(Call("act")))) as worker, threads.thread():
        asked.clear()
        worker.deps = replace(worker.deps, threads=threads)
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(asked.wait())
            assert holding.task is not None
            holding.task.cancel()
        assert await results(worker, session_id) == [("interrupted", NOT_BEGUN)]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_a_bug_is_charged_until_the_attempts_are_exhausted(database_url, connection):
    """Case 21, in one process: the traceback is for the log, the journal has one line without secrets."""

    def script(conversation: Conversation):
        raise LookupError("no such thing at postgresql://user:geheim@host/db")

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.client.create("a", "begin", max_attempts=3)
        for _ in range(3):
            await worker.run()
            await connection.execute("update agentrt.sessions set ready_at = now(), due = true where status = 'queued'")
        session = await head(worker, session_id)
        assert session.status == "failed"
        assert session.outcome is not None
        assert session.outcome["code"] == "attempts_exhausted"
        released = await found(worker, session_id, SessionReleased)
        assert [entry.reason for entry in released] == ["crash"] * 3
        assert released[0].message == "LookupError: no such thing at postgresql://[hidden]@host/db"
        crashed = told(worker, events.SessionCrashed)
        assert "LookupError" in crashed[0].traceback
        assert "geheim" not in repr(crashed)


@pytest.mark.one_server
async def test_a_takeover_goes_on_where_the_dead_worker_stood(database_url, connection):
    """F2: the finished result is kept, the other read is run again, and the dead worker can write nothing."""
    first = asyncio.Event()
    ran = []

    @tool(effect="read")
    async def read(name: str) -> str:
        """Read."""
        ran.append(name)
        if name == "t2" and ran.count("t2") == 1:
            first.set()
            await asyncio.Event().wait()
        return name

    def script(conversation: Conversation):
        return [Call("read", {"name": "t1"}), Call("read", {"name": "t2"})] if conversation.turn == 0 else "ok"

    agent = Agent("a", model=ScriptedModel(script), tools=[read])
    async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
        session_id = await a.client.create("a", "begin")
        async with running(a) as holding:
            await soon(first.wait())
            while "tool_result" not in await types(a, session_id):
                pass
            await kill(a, connection, b)
            assert await b.run() == 1
            holding.lose("killed")
        assert ran == ["t1", "t2", "t2"]
        assert await results(b, session_id) == [("ok", "t1"), ("ok", "t2")]
        tokens = [entry.fencing_token for entry in await journal(b, session_id)]
        assert tokens == sorted(tokens)
        assert (await head(b, session_id)).outcome == {"text": "ok"}
