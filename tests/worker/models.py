"""Models that fail as they are told, for the tests of one model call."""

from dataclasses import replace
from typing import Any

from agentrt.ports import ModelError, ModelErrorClass
from agentrt.testing import Conversation, LocalWorker, ScriptedModel
from tests.worker.scenes import head


def failing(*replies: Any) -> ScriptedModel:
    """A model that gives these replies, or raises them, one for each request, and then says ok."""
    left = list(replies)

    def script(conversation: Conversation):
        reply = left.pop(0) if left else "ok"
        if isinstance(reply, Exception):
            raise reply
        return reply

    return ScriptedModel(script)


def transient(**more: Any) -> ModelError:
    return ModelError(ModelErrorClass.TRANSIENT, "503 try later", **more)


def unreadable(words: str) -> ModelError:
    return ModelError(ModelErrorClass.TRANSIENT, words, unreadable=True)


async def suspension(worker: LocalWorker, session_id: Any) -> tuple[str, str]:
    session = await head(worker, session_id)
    assert session.suspension is not None, session.status
    return session.suspension["reason"], session.suspension["message"]


def at_once(worker: LocalWorker) -> LocalWorker:
    """The dice always show zero: no back-off of our own takes any time."""
    worker.deps = replace(worker.deps, random=lambda: 0.0)
    return worker
