"""What the provider shall do, as a function of the request.

A script is `Callable[[ModelRequest], Reply]` (or an async function). It sees the conversation, not a counter, so
that a repeated or taken-over request gets the answer that belongs to it:

    def script(request: ModelRequest) -> Reply:
        if request.tool_results:
            return say(f"It is {request.tool_results[-1].text}.")
        if request.tries == 1:
            return Answer((Say("It "), Fault.RESET))
        return call("weather", city="Oslo")

Steps are played in order; a fault among them happens exactly there.
"""

from __future__ import annotations

import importlib
import json
from asyncio import Event
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias, cast

from .conversation import AssistantMessage, Message, ToolMessage, ToolResult, UserMessage, WireFormat


class Stop(StrEnum):
    """Why the model stopped; each format has its own word for it."""

    END = "end"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"
    PAUSED = "paused"


class Fault(StrEnum):
    """What happens to the stream at this place; nothing after it is sent."""

    RESET = "reset"  # TCP reset
    CLOSE = "close"  # connection closed in the middle of the body
    END = "end"  # the body ends as it should, but without the format's finish marker
    SILENCE = "silence"  # nothing more, the socket stays open
    MALFORMED = "malformed"  # an event whose data is not JSON, then the rest as if nothing had been


@dataclass(frozen=True, slots=True)
class Say:
    """Text, sent in `pieces` deltas."""

    text: str
    pieces: int = 2


@dataclass(frozen=True, slots=True)
class Think:
    """Reasoning; this provider signs it for the model that was asked. `signed=False` leaves the signature out."""

    text: str
    signed: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is sent as it is when it is text. `half` stops in the middle of the arguments."""

    name: str
    arguments: str | Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None
    half: bool = False

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The provider's own words of refusal, in the place that the format has for them."""

    text: str


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the provider ran itself (Anthropic's web search): its call and, unless paused there, its result."""

    query: str
    finished: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing for a while: seconds, an event of the same loop, or a gate by name (`StrictProvider.open_gate`)."""

    until: float | Event | str


@dataclass(frozen=True, slots=True)
class Ping:
    """Signs of life without content: `times` pings, each after so many seconds."""

    times: int = 1
    every_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error as an event inside the stream, after which the stream ends."""

    kind: str = "overloaded"
    message: str = "Overloaded"


Step: TypeAlias = Say | Think | Call | Refuse | ServerTool | Wait | Ping | StreamError | Fault


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer. `stop` None means: by the steps (calls, a refusal, else a normal end)."""

    steps: tuple[Step, ...] = ()
    stop: Stop | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> Stop:
        if self.stop is not None:
            return self.stop
        if any(isinstance(step, Refuse) for step in self.steps):
            return Stop.REFUSED
        return Stop.TOOL_CALLS if any(isinstance(step, Call) for step in self.steps) else Stop.END


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer that is no stream. `body` None means the provider's own error body for this status and kind."""

    status: int
    kind: str | None = None
    message: str = "scripted error"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    content_type: str = "application/json"
    after: Wait | None = None


Reply: TypeAlias = Answer | HttpReply


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request as the script sees it. `number` counts all requests from 1, `tries` those with these messages."""

    number: int
    tries: int
    wire_format: WireFormat
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    stream: bool
    thinking: bool
    raw: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def first_text(self) -> str:
        """The first user message, which tells sessions apart."""
        return next((message.text for message in self.messages if isinstance(message, UserMessage)), "")

    @property
    def last_text(self) -> str:
        """The last user message."""
        return next((message.text for message in reversed(self.messages) if isinstance(message, UserMessage)), "")

    @property
    def answers(self) -> tuple[AssistantMessage, ...]:
        """The model's answers so far."""
        return tuple(message for message in self.messages if isinstance(message, AssistantMessage))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results with which the conversation ends, if it ends with results; else none."""
        for message in reversed(self.messages):
            if isinstance(message, ToolMessage):
                return message.results
            if isinstance(message, AssistantMessage):
                break
        return ()


Script: TypeAlias = Callable[[ModelRequest], Reply | Awaitable[Reply]]


def say(text: str, *, stop: Stop | None = None, pieces: int = 2) -> Answer:
    return Answer((Say(text, pieces),), stop)


def call(tool: str, **arguments: Any) -> Answer:
    return Answer((Call(tool, arguments),))


def calls(*wanted: Call) -> Answer:
    return Answer(wanted)


def refuse(text: str, *, after: str | None = None) -> Answer:
    """A refusal, with `after` as text that came before it."""
    return Answer(((Say(after),) if after else ()) + (Refuse(text),))


def http_error(status: int, *, retry_after: str | None = None, kind: str | None = None, message: str = "") -> HttpReply:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return HttpReply(status, kind, message or f"scripted {status}", headers)


def out_of_credit(wire_format: WireFormat) -> HttpReply:
    """Quota used up: OpenAI says it with 429, Anthropic with 400."""
    if wire_format is WireFormat.ANTHROPIC:
        words = "Your credit balance is too low to access the API. Please go to Plans & Billing to purchase credits."
        return HttpReply(400, None, words)
    words = "You exceeded your current quota, please check your plan and billing details."
    return HttpReply(429, "insufficient_quota", words)


def too_long(wire_format: WireFormat) -> HttpReply:
    """The context window is exceeded."""
    if wire_format is WireFormat.ANTHROPIC:
        return HttpReply(400, None, "prompt is too long: 210000 tokens > 200000 maximum")
    words = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return HttpReply(400, "context_length_exceeded", words)


def html(status: int = 200) -> HttpReply:
    """What a wrong base URL or a proxy answers."""
    body = "<!doctype html><html><body><h1>Not an API</h1></body></html>"
    return HttpReply(status, body=body, content_type="text/html; charset=utf-8")


def empty_stream() -> HttpReply:
    """Status 200, an event stream, not one event."""
    return HttpReply(200, body="", content_type="text/event-stream; charset=utf-8")


def fault_after(answer: Answer, chunks: int, fault: Fault | StreamError) -> Answer:
    """The answer, cut by a fault after so many pieces of its text have been sent."""
    steps: list[Step] = []
    left = chunks
    for step in answer.steps:
        if not isinstance(step, Say):
            steps.append(step)
            continue
        pieces = split(step.text, step.pieces)
        steps.extend(Say(piece, 1) for piece in pieces[:left])
        if left <= len(pieces):
            return replace(answer, steps=(*steps, fault))
        left -= len(pieces)
    return replace(answer, steps=(*steps, fault))


def split(text: str, pieces: int) -> list[str]:
    """The text in at most so many non-empty parts."""
    if not text:
        return []
    size = -(-len(text) // max(1, pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]


def by_turn(*replies: Reply) -> Callable[[ModelRequest], Reply]:
    """The n-th answer of a conversation, by how many answers it holds already; the last one for all that follow."""
    return lambda request: replies[min(len(request.answers), len(replies) - 1)]


def first_fails(
    fault: Reply, then: Callable[[ModelRequest], Reply], *, times: int = 1
) -> Callable[[ModelRequest], Reply]:
    """Each distinct request fails so often before it is answered."""
    return lambda request: fault if request.tries <= times else then(request)


def echo(request: ModelRequest) -> Reply:
    """Says what was asked, or the last result."""
    if request.tool_results:
        return say("Results: " + "; ".join(result.text for result in request.tool_results))
    return say(f"You said: {request.last_text}")


def load(name: str) -> Script:
    """A script by the name of a function in this module or as `package.module:function`."""
    module, _, function = name.rpartition(":")
    found = getattr(importlib.import_module(module), function, None) if module else globals().get(name)
    if found is None:
        raise LookupError(f"no script {name!r}: use `echo` or `package.module:function`")
    return cast(Script, found)
