"""Anthropic's Messages API: platform.claude.com/docs/en/api/messages, .../build-with-claude/streaming."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .conversation import (
    AssistantBlock,
    AssistantMessage,
    Media,
    Message,
    ProviderItem,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    WireFormat,
)
from .ledger import Ledger, Unit, Usage, origin_of, sign, signer
from .script import Call, Refuse, Say, ServerTool, Stop, Think, split
from .wire import Parsed, Said, event, tokens, unit

_MAX_MARKS = 4
_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, kind: str | None, message: str) -> dict[str, Any]:
    kind = kind or _ERROR_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_strict"}


def parse(raw: Mapping[str, Any], ledger: Ledger) -> Parsed:
    """The request in neutral form. Raises: AttributeError, TypeError, when a field has the wrong type."""
    return _Parser(raw, ledger).parse()


class _Parser:
    def __init__(self, raw: Mapping[str, Any], ledger: Ledger) -> None:
        self.raw = raw
        self.ledger = ledger
        self.parsed = Parsed(WireFormat.ANTHROPIC, raw=raw)
        self.units: list[Unit] = []
        self.marks = 0

    def parse(self) -> Parsed:
        raw, parsed = self.raw, self.parsed
        parsed.model = str(raw.get("model") or "")
        parsed.stream = bool(raw.get("stream"))
        if not parsed.model:
            parsed.wrong("model: Field required")
        max_tokens = raw.get("max_tokens")
        if not isinstance(max_tokens, int) or max_tokens < 1:
            parsed.wrong("max_tokens: Field required")
        thinking = raw.get("thinking") or {}
        parsed.thinking = thinking.get("type") in ("enabled", "adaptive")
        parsed.thinking_required = thinking.get("type") == "enabled"
        if parsed.thinking_required and isinstance(max_tokens, int) and thinking.get("budget_tokens", 0) >= max_tokens:
            parsed.wrong("max_tokens must be greater than thinking.budget_tokens")
        parsed.tools = tuple(str(tool.get("name")) for tool in raw.get("tools") or ())
        for tool in raw.get("tools") or ():
            self._unit(tool)
        self._system(raw.get("system") or ())
        messages: list[Message] = []
        for at, message in enumerate(raw.get("messages") or ()):
            self._message(at, message, messages)
        parsed.messages = tuple(messages)
        if raw.get("cache_control"):
            self._automatic_mark()
        if self.marks > _MAX_MARKS:
            parsed.wrong(f"A maximum of 4 blocks with cache_control may be provided. Found {self.marks}.")
        parsed.units = tuple(self.units)
        return parsed

    def _unit(self, block: Mapping[str, Any], *head: object) -> None:
        marked = bool(block.get("cache_control"))
        self.marks += marked
        content = {key: value for key, value in block.items() if key != "cache_control"}
        self.units.append(unit([*head, content], marked=marked))

    def _automatic_mark(self) -> None:
        """A mark on the request as a whole stands for one on its last block."""
        self.marks += 1
        if self.units:
            self.units[-1] = Unit(self.units[-1].data, marked=True)

    def _system(self, system: str | Sequence[Mapping[str, Any]]) -> None:
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
        for block in blocks:
            if not str(block.get("text", "")).strip():
                self.parsed.wrong("system: text content blocks must contain non-whitespace text")
            self._unit(block, "system")
        self.parsed.system = "\n".join(str(block.get("text", "")) for block in blocks)

    def _message(self, at: int, message: Mapping[str, Any], messages: list[Message]) -> None:
        role, content = message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        for block in blocks:
            self._unit(block, role)
            if block.get("cache_control") and not str(block.get("text", "x")).strip():
                self.parsed.wrong("cache_control cannot be set for empty text blocks", at)
        if role == "user":
            self._user(at, blocks, messages)
        elif role == "assistant":
            answer = AssistantMessage(tuple(found for block in blocks if (found := self._answer_block(at, block))))
            messages.append(AssistantMessage(answer.blocks, self.ledger.was_paused(answer)))
        else:
            self.parsed.wrong(f"messages.{at}.role: {role!r}, expected 'user' or 'assistant'", at)

    def _user(self, at: int, blocks: list[Mapping[str, Any]], messages: list[Message]) -> None:
        """A wire message becomes its runs of results and of other content, in its own order."""
        said: list[Text | Media] = []
        results: list[ToolResult] = []
        runs: list[Message] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                if said:
                    runs.append(UserMessage(tuple(said)))
                    said = []
                results.append(self._result(at, block))
            elif found := self._content(at, block):
                if results:
                    runs.append(ToolMessage(tuple(results)))
                    results = []
                said.append(found)
        if results:
            runs.append(ToolMessage(tuple(results)))
        if said or not runs:
            runs.append(UserMessage(tuple(said)))
        messages.extend(runs)

    def _result(self, at: int, block: Mapping[str, Any]) -> ToolResult:
        content = block.get("content")
        if content is None or content == "":
            blocks: tuple[Text | Media, ...] = ()
        elif isinstance(content, str):
            blocks = (Text(content),)
        else:
            blocks = tuple(found for inner in content if (found := self._content(at, inner)))
        return ToolResult(str(block.get("tool_use_id", "")), blocks, bool(block.get("is_error")))

    def _content(self, at: int, block: Mapping[str, Any]) -> Text | Media | None:
        match block.get("type"):
            case "text":
                return Text(str(block.get("text", "")))
            case "image" | "document" as kind:
                source = block.get("source") or {}
                held = source.get("url") or source.get("data")
                if not held:
                    self.parsed.wrong(f"messages.{at}: {kind} without a source", at)
                return Media(str(kind), str(held or ""), source.get("media_type"))
            case other:
                self.parsed.wrong(f"messages.{at}: content block of type {other!r} in a user message", at)
                return None

    def _answer_block(self, at: int, block: Mapping[str, Any]) -> AssistantBlock | None:
        match block.get("type"):
            case "text":
                return Text(str(block.get("text", "")))
            case "thinking":
                text, signature = str(block.get("thinking", "")), block.get("signature")
                origin = signer(signature, text) if signature else None
                return Thinking(text, signature, origin)
            case "redacted_thinking":
                data = str(block.get("data", ""))
                return Thinking("", data, signer(data, ""))
            case "tool_use":
                arguments = block.get("input")
                return ToolCall(str(block.get("id", "")), str(block.get("name", "")), json.dumps(arguments))
            case str(kind) if kind.startswith("server_tool_use") or kind.endswith("_tool_result"):
                return ProviderItem(kind, str((block.get("input") or {}).get("query", "")))
            case other:
                self.parsed.wrong(f"messages.{at}: content block of type {other!r} in an assistant message", at)
                return None


class AnthropicWriter:
    """Events from `message_start` to `message_stop`."""

    STOPS: ClassVar[dict[Stop, str]] = {
        Stop.END: "end_turn",
        Stop.TOOL_CALLS: "tool_use",
        Stop.LENGTH: "max_tokens",
        Stop.REFUSED: "refusal",
        Stop.PAUSED: "pause_turn",
    }

    def __init__(self, parsed: Parsed, ledger: Ledger, usage: Usage) -> None:
        self.model = parsed.model
        self.ledger = ledger
        self.usage = usage
        self.origin = origin_of(WireFormat.ANTHROPIC, parsed.model)
        self.message_id = ledger.mint("msg_")
        self.index = 0
        self.output = 1
        self.refusal: str | None = None
        self.shown: list[tuple[str, str]] = []

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.usage.total - self.usage.cached - self.usage.written,
            "cache_creation_input_tokens": self.usage.written,
            "cache_read_input_tokens": self.usage.cached,
            "output_tokens": self.output,
        }

    def _message(self, content: list[Any]) -> dict[str, Any]:
        head = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": self._usage()}

    def begin(self) -> Iterator[bytes]:
        yield event({"type": "message_start", "message": self._message([])}, "message_start")
        yield self.ping()

    def say(self, step: Said) -> Iterator[bytes]:
        match step:
            case Say(text, pieces):
                self.shown.append(("Text", text))
                deltas = [{"type": "text_delta", "text": piece} for piece in split(text, pieces)]
                yield from self._block({"type": "text", "text": ""}, deltas)
            case Think(text, signed):
                self.shown.append(("Thinking", text))
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split(text, 2)]
                if signed:
                    deltas.append({"type": "signature_delta", "signature": sign(self.origin, text)})
                yield from self._block({"type": "thinking", "thinking": "", "signature": ""}, deltas)
            case Call():
                self.ledger.tool_names.add(step.name)
                self.ledger.arguments.add(step.arguments_text)
                parts = split(step.arguments_text, 3)
                sent = ["", *(parts[:1] if step.half else parts)]
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in sent]
                yield from self._block(self._tool_use(step, {}), deltas, closed=not step.half)
            case ServerTool(query, finished):
                call_id = self.ledger.mint("srvtoolu_")
                start = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}
                yield from self._block(
                    start, [{"type": "input_json_delta", "partial_json": json.dumps({"query": query})}]
                )
                if finished:
                    yield from self._block(
                        {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []}, []
                    )
            case Refuse(text):
                self.refusal = text

    def _tool_use(self, step: Call, arguments: Any) -> dict[str, Any]:
        call_id = self.ledger.mint("toolu_") if step.call_id is None else step.call_id
        return {"type": "tool_use", "id": call_id, "name": step.name, "input": arguments}

    def _block(self, start: dict[str, Any], deltas: list[dict[str, str]], *, closed: bool = True) -> Iterator[bytes]:
        index, self.index = self.index, self.index + 1
        yield event({"type": "content_block_start", "index": index, "content_block": start}, "content_block_start")
        for delta in deltas:
            self.output += tokens("".join(value for key, value in delta.items() if key != "type"))
            yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        if closed:
            yield event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _ending(self, stop: Stop) -> dict[str, Any]:
        if stop is Stop.PAUSED:
            self.ledger.pause(tuple(self.shown))
        details = None
        if stop is Stop.REFUSED:
            details = {"type": "refusal", "category": None, "explanation": self.refusal}
        return {"stop_reason": self.STOPS[stop], "stop_sequence": None, "stop_details": details}

    def finish(self, stop: Stop) -> Iterator[bytes]:
        delta = {"type": "message_delta", "delta": self._ending(stop), "usage": self._usage()}
        yield event(delta, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def ping(self) -> bytes:
        return event({"type": "ping"}, "ping")

    def error(self, kind: str, message: str) -> Iterator[bytes]:
        kind = {"overloaded": "overloaded_error", "server": "api_error"}.get(kind, kind)
        yield event({"type": "error", "error": {"type": kind, "message": message}}, "error")

    def malformed(self) -> Iterator[bytes]:
        """Data that is no JSON under a name that clients read."""
        yield event('{"type": "broken', "content_block_delta")

    def whole(self, steps: tuple[Said, ...], stop: Stop) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for step in steps:
            for _ in self.say(step):
                pass
            if isinstance(step, Say):
                content.append({"type": "text", "text": step.text})
            elif isinstance(step, Think):
                content.append({"type": "thinking", "thinking": step.text, "signature": sign(self.origin, step.text)})
            elif isinstance(step, Call):
                content.append(self._tool_use(step, json.loads(step.arguments_text)))
        return {**self._message(content), **self._ending(stop)}
