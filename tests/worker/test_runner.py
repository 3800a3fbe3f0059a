"""run_session against the real store, with models that are functions."""

import asyncio
import itertools

import pytest

from agentrt.agents import Agent, tool
from agentrt.core import events
from agentrt.core.budget import Limits
from agentrt.core.content import Text
from agentrt.core.journal import AssistantMessage, SessionReleased, SessionSuspended
from agentrt.core.messages import ModelOutput, ToolResults, UserInput
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from agentrt.tools.ask_user import ask_user
from tests.worker.scenes import found, head, journal, kill, results, running, soon, told, types


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


async def test_a_session_of_three_turns_with_parallel_calls_completes(database_url):
    agent = Agent("adder", model=ScriptedModel(adding), tools=[add])
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("adder", "add them")
        session = await head(worker, session_id)
        assert await types(worker, session_id) == [
            "session_created",
            "user_message",
            "session_claimed",
            "assistant_message",
            "tool_result",
            "tool_result",
            "assistant_message",
            "tool_result",
            "assistant_message",
            "session_completed",
        ]
        assert session.status == "completed"
        assert session.outcome == {"text": "The sum is 10."}
        assert (session.turns, session.attempt) == (3, 1)
        assert [event.outcome for event in told(worker, events.ToolFinished)] == ["ok"] * 3
        assert len(told(worker, events.TurnFinished)) == 3
        [ended] = told(worker, events.SessionEnded)
        assert (ended.status, ended.session_id, ended.agent) == ("completed", session_id, "adder")


@pytest.mark.one_server
async def test_a_second_run_sees_the_first(database_url):
    agent = Agent("echo", model=ScriptedModel(echo))
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("echo", "one")
        await worker.client.send(session_id, "two")
        await worker.run()
        session = await head(worker, session_id)
        assert (session.run, session.outcome) == (2, {"text": "You said: two"})
        assert [answer.content for answer in await found(worker, session_id, AssistantMessage)] == [
            (Text("You said: one"),),
            (Text("You said: two"),),
        ]


# --- messages while it runs -------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_a_message_during_a_tool_is_seen_at_the_next_turn(database_url):
    """Case 83: it stands after the results of the tool, and no request ends with an answer."""
    requests = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def slow() -> str:
        """Take long."""
        begun.set()
        await go_on.wait()
        return "done"

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return Call("slow") if conversation.turn == 0 else f"ok: {conversation.last_user_text}"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[slow])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            steered = await worker.client.send(session_id, "steered")
            holding.ahead.set()
            go_on.set()
        assert (await head(worker, session_id)).outcome == {"text": "ok: steered"}
        assert [type(message) for message in requests[1]] == [UserInput, ModelOutput, ToolResults, UserInput]
        answers = await found(worker, session_id, AssistantMessage)
        assert [answer.seen_seq for answer in answers] == [2, steered]


@pytest.mark.one_server
@pytest.mark.parametrize("hint", [True, False], ids=["with a notification", "without a notification"])
async def test_a_message_while_the_model_speaks_is_answered_once_and_not_finished_over(database_url, hint):
    """Case 30: the ending planned before the message is stale, written nowhere, and planned again."""
    requests = []

    async with local_worker(database_url) as outside:

        async def script(conversation: Conversation):
            requests.append(conversation.messages)
            if conversation.turn == 0:
                await outside.client.send(session_id, "late")
                if hint:
                    holding.ahead.set()
            return f"{conversation.turn}: {conversation.last_user_text}"

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
            session_id = await worker.client.create("a", "early")
            async with running(worker) as holding:
                pass
            assert (await types(worker, session_id))[3:] == [
                "user_message",
                "assistant_message",
                "assistant_message",
                "session_completed",
            ]
            assert (await head(worker, session_id)).outcome == {"text": "1: late"}
            assert [type(message) for message in requests[1]] == [UserInput, ModelOutput, UserInput]


@pytest.mark.one_server
async def test_each_request_begins_with_the_request_before_it(database_url):
    """Case 84, along a real run with steering."""
    requests = []

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return adding(conversation)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[add])) as worker:
        session_id = await worker.ask("a", "begin")
        await worker.client.send(session_id, "again")
        await worker.run()
        assert len(requests) == 4
        for before, after in itertools.pairwise(requests):
            assert after[: len(before)] == before


@pytest.mark.one_server
async def test_a_queued_message_begins_the_next_run(database_url):
    """Case 86, the part of the owner: a steered message is seen in this run, a queued one begins the next."""

    async with local_worker(database_url) as outside:

        async def script(conversation: Conversation):
            if conversation.turn == 0:
                await outside.client.send(session_id, "queued", when_running="queue")
                await outside.client.send(session_id, "steered")
            return f"ok: {conversation.last_user_text}"

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
            session_id = await worker.client.create("a", "begin")
            await worker.run()
            session = await head(worker, session_id)
            answers = [text for answer in await found(worker, session_id, AssistantMessage) for text in answer.content]
            assert answers == [Text("ok: begin"), Text("ok: steered"), Text("ok: queued")]
            assert (session.run, session.status) == (2, "completed")


# --- questions --------------------------------------------------------------------------------------------------------


def asking(conversation: Conversation):
    match conversation.turn:
        case 0:
            return [Call("add", {"a": 1, "b": 1}), Call("ask_user", {"question": "Which?", "options": ["x", "y"]})]
        case 1:
            return Call("add", {"a": 2, "b": 2})
        case _:
            return f"chosen: {conversation.last_user_text}"


@pytest.mark.one_server
async def test_a_question_suspends_and_the_answer_is_seen_next(database_url):
    """Cases 42, 43, 44: the other call of the batch is committed first; later work does not stop at the question."""
    agent = Agent("a", model=ScriptedModel(asking), tools=[add, ask_user])
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.status == "suspended"
        assert session.suspension is not None
        assert session.suspension["reason"] == "input"
        outcomes = await results(worker, session_id)
        assert [outcome for outcome, _ in outcomes] == ["ok", "ok"]
        assert "- x" in outcomes[1][1]

        await worker.client.send(session_id, "y")
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "chosen: y"}
        assert len(await found(worker, session_id, SessionSuspended)) == 1


@pytest.mark.one_server
async def test_a_message_that_arrives_with_the_question_is_its_answer(database_url):
    """Case 85: suspend(input) planned before a message arrived is stale, the run goes on."""

    async with local_worker(database_url) as outside:

        @tool(effect="read", pauses=True)
        async def ask() -> str:
            """Ask."""
            await outside.client.send(session_id, "answered already")
            return "asked"

        def script(conversation: Conversation):
            return Call("ask") if conversation.turn == 0 else conversation.last_user_text

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[ask])) as worker:
            session_id = await worker.client.create("a", "begin")
            await worker.run()
            assert (await head(worker, session_id)).outcome == {"text": "answered already"}
            assert await found(worker, session_id, SessionSuspended) == []


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
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.acquire())
            await soon(begun.acquire())
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        assert sorted(outcome for outcome, _ in await results(worker, session_id)) == ["interrupted", "unknown"]
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
async def test_a_lost_session_stops_within_a_second_and_writes_nothing(database_url):
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
            async with asyncio.timeout(1):
                await asyncio.wait({holding.task})
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
        assert "LookupError" in told(worker, events.SessionCrashed)[0].traceback


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


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_over_the_limit_it_waits_with_the_figures_and_goes_on_with_a_higher_one(database_url):
    agent = Agent("a", model=ScriptedModel(adding), tools=[add], limits=Limits(turns=2))
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.suspension is not None
        assert session.suspension["reason"] == "budget"
        assert "2 turns of 2" in session.suspension["message"]
        await worker.client.resume(session_id, limits={"turns": 3})
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "The sum is 10."}


@pytest.mark.one_server
@pytest.mark.parametrize(("allowed", "status"), [(["limits"], "suspended"), ([], "completed")])
async def test_a_session_overrides_the_limits_as_far_as_the_agent_allows(database_url, allowed, status):
    agent = Agent("a", model=ScriptedModel(adding), tools=[add], allow_overrides=allowed)
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.client.create("a", "begin", config={"limits": {"turns": 1}})
        await worker.run()
        assert (await head(worker, session_id)).status == status


@pytest.mark.one_server
@pytest.mark.parametrize("limits", ['{"turns": "many"}', "5", "[]"])
async def test_limits_that_were_put_there_by_force_fail_the_run(database_url, connection, limits):
    async with local_worker(database_url, Agent("a", model=ScriptedModel(adding), tools=[add])) as worker:
        session_id = await worker.client.create("a", "begin")
        await connection.execute("update agentrt.sessions set config = jsonb_build_object('limits', $1::jsonb)", limits)
        await worker.run()
        session = await head(worker, session_id)
        assert session.outcome is not None
        assert session.outcome["code"] == "agent_error"
        assert "config.limits" in session.outcome["message"]
