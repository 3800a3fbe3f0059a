"""One model call on the real store: answers, empty answers, broken streams, errors and back-offs."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentrt.agents import Agent, tool
from agentrt.core.content import Text, Thinking, UnknownBlock
from agentrt.core.journal import AssistantMessage, ModelRetried, StopReason, Usage
from agentrt.core.messages import ModelOutput
from agentrt.settings import Settings
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from tests.looptime import let_pass
from tests.worker.models import at_once, failing, suspension, transient
from tests.worker.scenes import found, head, results, running, soon, types

pytestmark = pytest.mark.one_server

# --- answers ----------------------------------------------------------------------------------------------------------


async def test_an_answer_is_kept_with_all_that_the_provider_said(database_url):
    reply = Reply(
        text="hello",
        thinking="hm",
        usage=Usage(11, 7, 5, 3),
        cost=0.25,
        provider={"signature": "abc", "opaque": "1e2"},
    )
    async with local_worker(database_url, Agent("a", model=failing(reply))) as worker:
        session_id = await worker.ask("a", "begin")
        [answer] = await found(worker, session_id, AssistantMessage)
        assert answer.content == (Thinking("hm"), Text("hello"))
        assert (answer.usage, answer.cost, answer.seen_seq) == (Usage(11, 7, 5, 3), 0.25, 2)
        assert answer.provider == {
            "format": "scripted", "provider": "scripted", "model": "scripted", "signature": "abc", "opaque": "1e2",
        }  # fmt: skip
        session = await head(worker, session_id)
        assert (session.input_tokens, session.output_tokens, float(session.cost)) == (11, 7, 0.25)


async def test_a_refusal_ends_the_run_with_the_providers_words_and_is_not_asked_again(database_url):
    """F28, with a scripted model."""
    refusal = Reply(stop_reason=StopReason.REFUSED, message="content policy")
    async with local_worker(database_url, Agent("a", model=failing(refusal))) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.status == "completed"
        assert session.outcome is not None
        assert session.outcome["refused"] == "content policy"
        assert session.turns == 1


async def test_calls_of_a_refusal_are_neither_run_nor_approved(database_url):
    ran = []

    @tool(effect="once", requires_approval=True)
    async def act() -> str:
        """Act."""
        ran.append(True)
        return ""

    refusal = Reply(calls=[Call("act")], stop_reason=StopReason.REFUSED, message="no")
    async with local_worker(database_url, Agent("a", model=failing(refusal), tools=[act])) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).status == "completed"
        assert ran == []
        assert "approval_requested" not in await types(worker, session_id)


async def test_half_an_answer_is_continued_twice_and_then_visibly_truncated(database_url):
    """F29, with a scripted model."""
    halves = [Reply(text=f"part {number} ", stop_reason=StopReason.LENGTH) for number in range(4)]
    async with local_worker(database_url, Agent("a", model=failing(*halves))) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).outcome == {"text": "part 0 part 1 part 2 ", "truncated": True}


async def test_an_answer_paused_by_the_provider_stays_last_in_the_next_request(database_url):
    requests = []

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return Reply(text="so far", stop_reason=StopReason.PAUSED) if conversation.turn == 0 else "the end"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert isinstance(requests[1][-1], ModelOutput)
        session = await head(worker, session_id)
        assert session.status == "completed"


# --- empty answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "empty",
    [Reply(), Reply(text=" \n"), Reply(thinking="hm"), Reply(stop_reason=StopReason.LENGTH)],
    ids=["nothing", "white space", "thinking only", "length"],
)
async def test_an_empty_answer_is_asked_again_at_most_twice_and_never_sent_back(database_url, empty):
    """F7."""
    requests = []

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return replace(empty, usage=Usage(10, 1))

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.outcome is not None
        assert session.outcome["code"] == "empty_answer"
        assert requests == [requests[0]] * 3
        retried = await found(worker, session_id, ModelRetried)
        assert [entry.error_class for entry in retried] == ["empty"] * 3
        assert session.input_tokens == 30
        assert await found(worker, session_id, AssistantMessage) == []


async def test_an_answer_of_blocks_that_nobody_can_take_is_empty(database_url):
    """F7: it would complete the run with nothing to read."""

    class Newer(ScriptedModel):
        async def request(self, request, on_text):
            answer = await super().request(request, on_text)
            return answer if answer.content else replace(answer, content=(UnknownBlock({"type": "hologram"}),))

    model = Newer(lambda _: replies.pop(0))
    replies: list[Any] = [Reply(), "at last"]
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).outcome == {"text": "at last"}
        assert [entry.error_class for entry in await found(worker, session_id, ModelRetried)] == ["empty"]


async def test_an_answer_after_an_empty_one_counts(database_url):
    async with local_worker(database_url, Agent("a", model=failing(Reply(), Reply(), "at last"))) as worker:
        session_id = await worker.ask("a", "begin")
        assert (await head(worker, session_id)).outcome == {"text": "at last"}


# --- transient errors -------------------------------------------------------------------------------------------------


async def test_a_broken_stream_executes_nothing_and_is_asked_again(database_url):
    """F6, with a scripted model: the call of a broken answer is neither run nor answered."""
    ran = []

    @tool(effect="read")
    async def act(name: str) -> str:
        """Act."""
        ran.append(name)
        return name

    broken = Reply(text="I will", calls=[Call("act", {"name": "broken"})], error=transient())
    model = failing(broken, Call("act", {"name": "whole"}))
    async with local_worker(database_url, Agent("a", model=model, tools=[act])) as worker:
        session_id = await at_once(worker).ask("a", "begin")
        assert ran == ["whole"]
        assert await results(worker, session_id) == [("ok", "whole")]
        [retried] = await found(worker, session_id, ModelRetried)
        assert (retried.error_class, retried.message) == ("transient", "503 try later")
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_retry_waits_in_place_as_long_as_it_was_asked_to_and_counts_what_it_burnt(database_url):
    """F13, a short wait: the slot is kept."""
    error = transient(retry_after_seconds=0.2, usage=Usage(5, 0), cost=0.5)
    async with local_worker(database_url, Agent("a", model=failing(error))) as worker:
        begun = asyncio.get_running_loop().time()
        session_id = await at_once(worker).ask("a", "begin")
        assert asyncio.get_running_loop().time() - begun >= 0.2
        [retried] = await found(worker, session_id, ModelRetried)
        assert (retried.delay_seconds, retried.usage, retried.cost) == (0.2, Usage(5, 0), 0.5)
        assert "session_released" not in await types(worker, session_id)
        session = await head(worker, session_id)
        assert float(session.cost) == 0.5


async def test_a_long_wait_frees_the_slot_and_costs_no_attempt(database_url, connection):
    """F13: 429 with Retry-After 3600."""
    async with local_worker(database_url, Agent("a", model=failing(transient(retry_after_seconds=3600)))) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert (session.status, session.attempt) == ("queued", 1)
        waits = await connection.fetchval(
            "select extract(epoch from ready_at - now())::float from agentrt.sessions where id = $1", session_id
        )
        assert 3500 < waits <= 3601
        assert await worker.run() == 0
        await connection.execute("update agentrt.sessions set ready_at = now(), due = true")
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_after_a_long_row_of_retries_it_is_blocked_with_the_providers_words(database_url):
    settings = Settings(database_url=database_url, model_retry_seconds=0.05)
    errors = [transient(retry_after_seconds=0.03)] * 9
    async with local_worker(database_url, Agent("a", model=failing(*errors)), settings=settings) as worker:
        session_id = await at_once(worker).ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert reason == "blocked"
        assert "503 try later" in message
        assert "3 tries" in message
        await worker.client.resume(session_id)
        await worker.run()
        assert len(await found(worker, session_id, ModelRetried)) == 4


async def test_a_drain_cuts_a_back_off(database_url):
    async with local_worker(database_url, Agent("a", model=failing(transient(retry_after_seconds=9)))) as worker:
        session_id = await worker.client.create("a", "begin")
        [holding] = await worker.claim()
        holding.draining.set()
        holding.draining = _SetLater(holding.draining)
        await worker.run_one(holding)
        assert (await types(worker, session_id))[-2:] == ["model_retried", "session_released"]


class _SetLater(asyncio.Event):
    """An event that is seen only by who waits for it: the drain begins during the wait."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self.waited = False

    def is_set(self) -> bool:
        return self.waited

    async def wait(self) -> Any:
        self.waited = True
        return True


async def test_a_call_that_outlasts_its_models_own_limits_is_given_up(database_url, monkeypatch):
    asked = asyncio.Event()

    def script(conversation: Conversation):
        if asked.is_set():
            return "ok"
        asked.set()
        return Reply(text="never", delay_seconds=3600)

    settings = Settings(database_url=database_url, model_call_seconds=60)
    async with local_worker(database_url, Agent("a", model=ScriptedModel(script)), settings=settings) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(at_once(worker)):
            await soon(asked.wait())
            let_pass(monkeypatch, seconds=100)
        [retried] = await found(worker, session_id, ModelRetried)
        assert retried.error_class == "transient"
        assert "longer than 60 seconds" in retried.message
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
