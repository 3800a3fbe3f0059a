"""The provider as an HTTP server on 127.0.0.1, in this process or (`python -m tests.strictprovider`) in its own.

    async with StrictProvider(script) as provider:
        ...  # OPENAI_BASE_URL=provider.openai_url, ANTHROPIC_BASE_URL=provider.anthropic_url
    assert provider.violations == []

Every request is parsed, checked, and answered with 400 in the provider's words when it breaks a rule.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, assert_never

from . import anthropic, openai_chat, openai_responses
from .anthropic import AnthropicWriter
from .connection import Connection, Gone, HttpRequest
from .conversation import Message, WireFormat
from .ledger import Ledger, Usage, origin_of
from .openai_chat import ChatWriter
from .openai_responses_writer import ResponsesWriter
from .rules import WIRE_CALL_ID, Rule, Strictness, Violation, validate
from .script import Answer, Fault, HttpReply, ModelRequest, Ping, Reply, Script, StreamError, Wait, echo
from .wire import Parsed, Writer, characters_of, dump


@dataclass(frozen=True, slots=True)
class _Format:
    path: str
    parse: Callable[[Mapping[str, Any], Ledger], Parsed]
    writer: Callable[[Parsed, Ledger, Usage], Writer]
    error_body: Callable[[int, str | None, str], dict[str, Any]]


_FORMATS = {
    WireFormat.OPENAI_CHAT: _Format("/v1/chat/completions", openai_chat.parse, ChatWriter, openai_chat.error_body),
    WireFormat.OPENAI_RESPONSES: _Format(
        "/v1/responses", openai_responses.parse, ResponsesWriter, openai_chat.error_body
    ),
    WireFormat.ANTHROPIC: _Format("/v1/messages", anthropic.parse, AnthropicWriter, anthropic.error_body),
}
_BY_PATH = {spoken.path: wire_format for wire_format, spoken in _FORMATS.items()}


@dataclass(slots=True)
class Recorded:
    """One request and what became of it. `status` is 0 until an answer was begun, `chunks` counts sent events."""

    number: int
    wire_format: WireFormat
    model: str
    messages: tuple[Message, ...]
    raw: Any
    headers: Mapping[str, str]
    violations: list[Violation] = field(default_factory=list)
    status: int = 0
    chunks: int = 0
    finished: bool = False
    client_left: bool = False

    @property
    def accepted(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "format": str(self.wire_format),
            "model": self.model,
            "accepted": self.accepted,
            "violations": [str(violation) for violation in self.violations],
            "status": self.status,
            "chunks": self.chunks,
            "finished": self.finished,
            "client_left": self.client_left,
            "messages": [{"kind": type(message).__name__, **asdict(message)} for message in self.messages],
            "raw": self.raw,
        }


@dataclass(frozen=True, slots=True)
class Policy:
    """Who and what is served. `keys` and `models` None take any; `own_arguments` lets arguments that are no JSON
    object pass when this provider wrote them itself, as OpenAI does and stricter servers do not."""

    call_id: re.Pattern[str] = WIRE_CALL_ID
    keys: Collection[str] | None = None
    models: Collection[str] | None = None
    own_arguments: bool = False
    check_tools: bool = True


class StrictProvider:
    """An async context manager; see the module's text."""

    def __init__(self, script: Script = echo, *, policy: Policy | None = None, port: int = 0) -> None:
        self.script = script
        self.policy = policy or Policy()
        self.requests: list[Recorded] = []
        self.script_errors: list[Exception] = []
        self._port = port
        self._ledger = Ledger()
        self._tries: Counter[bytes] = Counter()
        self._gates: dict[str, asyncio.Event] = {}
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The root, where its own pages are (`/requests`, `/violations`, `/gates`)."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    @property
    def violations(self) -> list[Violation]:
        """Everything that any request did wrong."""
        return [violation for recorded in self.requests for violation in recorded.violations]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        if self.script_errors and error is None:
            raise ExceptionGroup("the provider's script failed", self.script_errors)

    def open_gate(self, name: str) -> None:
        """Let every `Wait(name)` pass, now and later."""
        self._gate(name).set()

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def gate_reached(self, name: str, *, waiting: int = 1) -> None:
        """Returns once so many answers stand at `Wait(name)`."""
        await self.until(lambda: self._waiting[name] >= waiting)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once a condition on `requests` holds; it is asked again after everything that happens here."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(Connection(reader, writer)))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, connection: Connection) -> None:
        try:
            while (request := await connection.receive()) is not None:
                await self._handle(connection, request)
        except Gone:
            pass
        finally:
            await connection.close()

    async def _handle(self, connection: Connection, request: HttpRequest) -> None:
        if request.method == "POST" and request.path in _BY_PATH:
            await self._model_call(connection, request)
            return
        answer: object
        match (request.method, request.path.strip("/").split("/")):
            case ("GET", ["requests"]):
                answer = [recorded.as_json() for recorded in self.requests]
            case ("GET", ["violations"]):
                answer = [str(violation) for violation in self.violations]
            case ("GET", ["gates"]):
                answer = dict(self._waiting)
            case ("POST", ["gates", name]):
                self.open_gate(name)
                answer = {"open": name}
            case _:
                body = dump({"error": {"message": f"no such path: {request.method} {request.path}"}}).encode()
                await connection.respond(404, body, content_type="application/json")
                return
        await connection.respond(200, dump(answer).encode("utf-8", "replace"), content_type="application/json")

    async def _model_call(self, connection: Connection, request: HttpRequest) -> None:
        wire_format = _BY_PATH[request.path]
        raw, unreadable = _read(request.body)
        try:
            parsed = _FORMATS[wire_format].parse(raw, self._ledger)
        except (AttributeError, TypeError) as error:
            unreadable.append(Violation(Rule.BAD_REQUEST, -1, f"a field has the wrong type: {error}"))
            parsed = Parsed(wire_format, raw=raw)
        recorded = Recorded(
            len(self.requests) + 1, wire_format, parsed.model, parsed.messages, raw, request.headers, unreadable
        )
        self.requests.append(recorded)
        await self._note()
        try:
            reply = await self._reply(request, parsed, recorded)
            await self._play(connection, reply, parsed, recorded)
        except Gone:
            recorded.client_left = True
            raise
        except (ValueError, LookupError) as error:  # steps that the format does not have
            self.script_errors.append(error)
            connection.reset()
            raise Gone from error
        finally:
            await self._note()

    async def _reply(self, request: HttpRequest, parsed: Parsed, recorded: Recorded) -> Reply:
        """The door first (key, model), then the rules, then the script."""
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.policy.keys is not None and key not in self.policy.keys:
            return HttpReply(401, "invalid_api_key", "Incorrect API key provided.")
        if self.policy.models is not None and parsed.model not in self.policy.models:
            return HttpReply(404, None, f"The model {parsed.model!r} does not exist.")
        if not recorded.violations:
            recorded.violations = self._check(parsed)
        if recorded.violations:
            return HttpReply(400, None, "; ".join(str(violation) for violation in recorded.violations))
        key_of_try = dump([parsed.wire_format, parsed.model, [repr(message) for message in parsed.messages]]).encode()
        self._tries[key_of_try] += 1
        try:
            reply = self.script(
                ModelRequest(
                    number=recorded.number,
                    tries=self._tries[key_of_try],
                    wire_format=parsed.wire_format,
                    model=parsed.model,
                    system=parsed.system,
                    messages=parsed.messages,
                    tools=parsed.tools,
                    stream=parsed.stream,
                    thinking=parsed.thinking,
                    raw=parsed.raw,
                    headers=request.headers,
                )
            )
            return await reply if isawaitable(reply) else reply
        except Exception as error:  # noqa: BLE001 - a script is a test's code; its errors are raised at the end
            self.script_errors.append(error)
            return HttpReply(500, None, f"the script failed: {error!r}")

    def _check(self, parsed: Parsed) -> list[Violation]:
        strictness = Strictness(
            call_id=self.policy.call_id,
            tools={*parsed.tools, *self._ledger.tool_names} if self.policy.check_tools else None,
            origin=origin_of(parsed.wire_format, parsed.model),
            allowed_arguments=self._ledger.arguments if self.policy.own_arguments else (),
            thinking_required=parsed.thinking_required,
        )
        found = validate(parsed.messages, wire_format=parsed.wire_format, strictness=strictness)
        return [*parsed.violations, *found, *([] if found else characters_of(parsed.raw))]

    async def _play(self, connection: Connection, reply: Reply, parsed: Parsed, recorded: Recorded) -> None:
        if isinstance(reply, HttpReply):
            await self._respond(connection, reply, recorded)
            return
        marked_only = parsed.wire_format is WireFormat.ANTHROPIC
        usage = self._ledger.account(origin_of(parsed.wire_format, parsed.model), parsed.units, marked_only=marked_only)
        writer = _FORMATS[parsed.wire_format].writer(parsed, self._ledger, usage)
        recorded.status = 200
        if parsed.stream:
            await connection.start(headers=reply.headers)
            recorded.finished = await self._stream(connection, reply, writer, recorded)
            return
        said = tuple(step for step in reply.steps if not isinstance(step, Wait | Ping | StreamError | Fault))
        body = dump(writer.whole(said, reply.reason)).encode()
        await connection.respond(200, body, content_type="application/json", headers=reply.headers)
        recorded.finished = True

    async def _respond(self, connection: Connection, reply: HttpReply, recorded: Recorded) -> None:
        if reply.after is not None:
            await self._wait(connection, reply.after)
        body = reply.body
        if body is None:
            error_body = _FORMATS[recorded.wire_format].error_body
            body = dump(error_body(reply.status, reply.kind, reply.message))
        recorded.status = reply.status
        await connection.respond(
            reply.status, body.encode("utf-8", "replace"), content_type=reply.content_type, headers=reply.headers
        )
        recorded.finished = True

    async def _stream(self, connection: Connection, answer: Answer, writer: Writer, recorded: Recorded) -> bool:
        """Play the steps; True when the answer came to its own end."""

        async def send(events: Iterator[bytes]) -> None:
            for data in events:
                await connection.chunk(data)
                recorded.chunks += 1

        await send(writer.begin())
        for step in answer.steps:
            match step:
                case Wait():
                    await self._wait(connection, step)
                case Ping(times, every_seconds):
                    for _ in range(times):
                        await self._wait(connection, Wait(every_seconds))
                        await send(iter([writer.ping()]))
                case StreamError(kind, message):
                    await send(writer.error(kind, message))
                    await connection.end()
                    return False
                case Fault():
                    if step is Fault.MALFORMED:
                        await send(writer.malformed())
                    elif await self._fault(connection, step):
                        return False
                case _:
                    await send(writer.say(step))
                    await self._note()
        await send(writer.finish(answer.reason))
        await connection.end()
        return True

    async def _wait(self, connection: Connection, wait: Wait) -> None:
        match wait.until:
            case str(name):
                self._waiting[name] += 1
                await self._note()
                try:
                    await connection.while_connected(self._gate(name).wait())
                finally:
                    self._waiting[name] -= 1
            case asyncio.Event() as happened:
                await connection.while_connected(happened.wait())
            case seconds:
                await connection.while_connected(asyncio.sleep(float(seconds)))

    async def _fault(self, connection: Connection, fault: Fault) -> bool:
        """Do it; True when nothing can follow."""
        match fault:
            case Fault.RESET:
                connection.reset()
                raise Gone
            case Fault.CLOSE:
                await connection.close()
                raise Gone
            case Fault.END:
                await connection.end()
                return True
            case Fault.SILENCE:
                await self._note()
                await connection.while_connected(asyncio.Event().wait())
                return True
            case Fault.MALFORMED:
                return False
            case _:
                assert_never(fault)


def _read(body: bytes) -> tuple[dict[str, Any], list[Violation]]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        return {}, [Violation(Rule.BAD_REQUEST, -1, f"The request body is not valid JSON: {error}")]
    if not isinstance(raw, dict):
        return {}, [Violation(Rule.BAD_REQUEST, -1, "The request body is no JSON object")]
    return raw, []
