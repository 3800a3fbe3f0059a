"""Models whose own code ends more than their call, or does not end when it is told to."""

import asyncio

import pytest

from agentrt.agents import Agent
from agentrt.core.errors import LeaseLost
from agentrt.core.journal import ModelRetried
from agentrt.ports import UnstorableBatch
from agentrt.settings import Settings
from agentrt.testing import Conversation, ScriptedModel, local_worker
from tests.worker.models import at_once, suspension
from tests.worker.scenes import found, head, running, soon, types

pytestmark = pytest.mark.one_server

ENDING_MORE: list[BaseException] = [
    asyncio.CancelledError("by the model"),
    KeyboardInterrupt("by the model"),
    SystemExit(3),
    GeneratorExit(),
]


def names(error: BaseException) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", ENDING_MORE, ids=names)
async def test_what_would_end_more_than_the_call_is_a_failed_call(database_url, error):
    """F5: journaled and asked again; the worker goes on, and the session is not charged."""
    asked = []

    def script(conversation: Conversation):
        asked.append(True)
        if len(asked) == 1:
            raise error
        return "ok"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await soon(at_once(worker).ask("a", "begin"))
        [retried] = await found(worker, session_id, ModelRetried)
        assert retried.error_class == "transient"
        assert "the model" in retried.message
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert len(asked) == 2
        assert (await types(worker, session_id)).count("session_claimed") == 1


@pytest.mark.parametrize("error", ENDING_MORE, ids=names)
async def test_a_model_that_never_does_anything_else_blocks_its_session(database_url, error):
    """F5: no loop."""

    def script(conversation: Conversation):
        raise error

    settings = Settings(database_url=database_url, model_retry_seconds=0)
    async with local_worker(database_url, Agent("a", model=ScriptedModel(script)), settings=settings) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert (await suspension(worker, session_id))[0] == "blocked"


@pytest.mark.parametrize("error", [LeaseLost("of another"), UnstorableBatch("of another")], ids=names)
async def test_a_models_error_is_not_taken_for_one_of_the_worker(database_url, error):
    """Case 80: a model may use a store itself; its session is charged with a crash, and neither left nor blocked."""

    def script(conversation: Conversation):
        raise error

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.client.create("a", "begin", max_attempts=1)
        await soon(worker.run())
        session = await head(worker, session_id)
        assert session.status == "failed"
        assert session.outcome is not None
        assert session.outcome["code"] == "attempts_exhausted"


async def test_an_interrupt_does_not_wait_for_a_model_that_swallows_its_cancellation(database_url):
    """It is given up after the time that stopping may take."""
    begun, let_go = asyncio.Event(), asyncio.Event()

    def script(conversation: Conversation):
        async def answer() -> str:
            begun.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        return answer() if conversation.last_user_text == "begin" else "ok"

    settings = Settings(database_url=database_url, stop_seconds=0.05)
    async with local_worker(database_url, Agent("a", model=ScriptedModel(script)), settings=settings) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            await worker.client.send(session_id, "stop", when_running="interrupt")
            holding.ahead.set()
            assert holding.task is not None
            await soon(asyncio.wait({holding.task}))
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert worker.deps.threads.running == 1
        let_go.set()
        await soon(asyncio.wait({task for task in asyncio.all_tasks() if task.get_name() == "model"}))
