"""A model that is a function: for demos, for tests, and for trying agents without a provider.

The function sees the conversation and says what the model answers. Since it is a function of the transcript and not a
list of lines, it answers the same after a crash, a takeover or a replay.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from agentrt.core.content import Block, Content, Text, Thinking, ToolCall
from agentrt.core.journal import StopReason, Usage
from agentrt.core.transcript import Message, ModelIdentity, ModelOutput, Result, ToolResults, UserInput
from agentrt.ports import ModelAnswer, ModelError, ModelRequest

_PIECE: Final = re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments`` is an object, or the text as a model would write it, right or wrong."""

    tool: str
    arguments: Mapping[str, Any] | str = ""

    def block(self) -> ToolCall:
        """The block of this call."""
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return ToolCall(self.tool, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. What it does not say is what a model would do: stop, or call tools; tokens are counted by words.

    ``error`` is raised after the text was streamed, as when a stream breaks. ``delay_seconds`` passes before the first
    piece, ``piece_seconds`` before each further one.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""
    stop_reason: StopReason | None = None
    message: str | None = None
    delay_seconds: float = 0.0
    piece_seconds: float = 0.0
    error: ModelError | None = None
    usage: Usage | None = None
    cost: float | None = None
    provider: Mapping[str, Any] | None = None

    def content(self) -> Content:
        """The blocks of this answer: thinking, text, calls."""
        blocks: list[Block] = [Thinking(self.thinking)] if self.thinking else []
        blocks += [Text(self.text)] if self.text else []
        return (*blocks, *(call.block() for call in self.calls))


class Conversation:
    """What a script sees: the request, and the usual questions about it."""

    def __init__(self, request: ModelRequest) -> None:
        """``request`` is the request as a provider would get it."""
        self.request = request

    @property
    def messages(self) -> tuple[Message, ...]:
        """The view: user inputs, answers, and results of tools."""
        return self.request.messages

    @property
    def turn(self) -> int:
        """The number of answers so far, in all runs of the session."""
        return sum(isinstance(message, ModelOutput) for message in self.messages)

    @property
    def user_texts(self) -> tuple[str, ...]:
        """The text of each user message, in order."""
        return tuple(text_of(message.content) for message in self.messages if isinstance(message, UserInput))

    @property
    def last_user_text(self) -> str:
        """The text of the last user message."""
        return self.user_texts[-1] if self.user_texts else ""

    @property
    def answers(self) -> tuple[str, ...]:
        """The text of each answer, in order."""
        return tuple(text_of(message.content) for message in self.messages if isinstance(message, ModelOutput))

    @property
    def results(self) -> tuple[Result, ...]:
        """The results of all tool calls, in order."""
        batches = (message.results for message in self.messages if isinstance(message, ToolResults))
        return tuple(result for batch in batches for result in batch)

    @property
    def last_results(self) -> tuple[Result, ...]:
        """The results that came after the last answer."""
        for message in reversed(self.messages):
            if isinstance(message, ModelOutput):
                break
            if isinstance(message, ToolResults):
                return message.results
        return ()


Scripted = str | Call | Reply | Sequence[Call]
"""What a script may return: a text, a call, several calls, or a whole ``Reply``."""

Script = Callable[[Conversation], "Scripted | Awaitable[Scripted]"]


class ScriptedModel:
    """A model whose answers come from ``script(conversation)``, which may be async, and may raise ``ModelError``.

    Args:
        script: called once for each request.
        name: the model's name.
        piece_seconds: pause between streamed pieces (words), unless the reply says otherwise.
        context_window: in tokens.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        piece_seconds: float = 0.0,
        context_window: int | None = None,
    ) -> None:
        self._script = script
        self._piece_seconds = piece_seconds
        self._context_window = context_window
        self._identity = ModelIdentity("scripted", "scripted", name)

    @property
    def identity(self) -> ModelIdentity:
        return self._identity

    @property
    def context_window(self) -> int | None:
        return self._context_window

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        scripted = self._script(Conversation(request))
        reply = as_reply(await scripted if inspect.isawaitable(scripted) else scripted)
        if self._piece_seconds and not reply.piece_seconds:
            reply = replace(reply, piece_seconds=self._piece_seconds)
        await _stream(reply, on_text)
        if reply.error is not None:
            raise reply.error
        identity = {"format": "scripted", "provider": "scripted", "model": self._identity.model}
        return ModelAnswer(
            content=reply.content(),
            stop_reason=reply.stop_reason or (StopReason.TOOL_CALLS if reply.calls else StopReason.STOP),
            model=f"scripted:{self._identity.model}",
            usage=reply.usage or Usage(_words(request.messages), len(reply.text.split()) + len(reply.calls)),
            cost=reply.cost,
            provider={**identity, **(reply.provider or {})},
            message=reply.message,
        )


def as_reply(scripted: Scripted) -> Reply:
    """The whole reply of what a script returned.

    Raises:
        TypeError: the script returned something else.
    """
    match scripted:
        case Reply():
            return scripted
        case str():
            return Reply(text=scripted)
        case Call():
            return Reply(calls=(scripted,))
        case [*calls] if calls and all(isinstance(call, Call) for call in calls):
            return Reply(calls=tuple(calls))
        case _:
            raise TypeError(f"a script returns a text, a Call, a list of Calls or a Reply, not {scripted!r}")


def text_of(content: Content) -> str:
    """The visible text of some content."""
    return "".join(block.text for block in content if isinstance(block, Text))


async def _stream(reply: Reply, on_text: Callable[[str], None]) -> None:
    if reply.delay_seconds:
        await asyncio.sleep(reply.delay_seconds)
    pieces = _PIECE.findall(reply.text) or ([reply.text] if reply.text else [])
    for number, piece in enumerate(pieces):
        if number and reply.piece_seconds:
            await asyncio.sleep(reply.piece_seconds)
        on_text(piece)


def _words(messages: tuple[Message, ...]) -> int:
    count = 0
    for message in messages:
        match message:
            case UserInput() | ModelOutput():
                count += len(text_of(message.content).split())
            case ToolResults():
                count += sum(len(result.content.split()) for result in message.results)
            case _:
                assert_never(message)
    return count
