"""OpenAI's Chat Completions: platform.openai.com/docs/api-reference/chat, .../chat-streaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from .ledger import Ledger, Usage, origin_of
from .script import Call, Refuse, Say, Stop, Think, split
from .wire import Parsed, Said, event, tokens, unit

_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
CREATED = 1_700_000_000


def error_body(status: int, kind: str | None, message: str) -> dict[str, Any]:
    """`kind` is OpenAI's `code`: `insufficient_quota`, `context_length_exceeded`, `model_not_found`, …"""
    name = kind if kind == "insufficient_quota" else _ERROR_KINDS.get(status, "server_error" if status >= 500 else None)
    return {"error": {"message": message, "type": name or "invalid_request_error", "param": None, "code": kind}}


def parse(raw: Mapping[str, Any], ledger: Ledger) -> Parsed:
    """The request in neutral form. Raises: AttributeError, TypeError, when a field has the wrong type."""
    parsed = Parsed(WireFormat.OPENAI_CHAT, raw=raw)
    parsed.model = str(raw.get("model") or "")
    parsed.stream = bool(raw.get("stream"))
    if not parsed.model:
        parsed.wrong("you must provide a model parameter")
    tools = raw.get("tools") or ()
    parsed.tools = tuple(str((tool.get("function") or {}).get("name")) for tool in tools)
    if raw.get("tools") == []:
        parsed.wrong("[] is too short - 'tools'")
    parsed.thinking = raw.get("reasoning_effort") not in (None, "none")
    wire = list(raw.get("messages") or ())
    parsed.units = tuple(unit(["tool", tool]) for tool in tools) + tuple(unit(message) for message in wire)
    parsed.messages = tuple(_messages(wire, parsed, ledger))
    return parsed


def _messages(wire: list[Mapping[str, Any]], parsed: Parsed, ledger: Ledger) -> list[Message]:
    messages: list[Message] = []
    results: list[ToolResult] = []
    for at, message in enumerate(wire):
        role = message.get("role")
        if role == "tool":
            results.append(ToolResult(str(message.get("tool_call_id", "")), _result(at, message, parsed)))
            continue
        if results:
            messages.append(ToolMessage(tuple(results)))
            results = []
        if role in ("system", "developer"):
            if messages:
                parsed.wrong(f"messages[{at}]: a {role} message after the conversation began", at)
            parsed.system += _text(message.get("content"))
        elif role == "user":
            messages.append(UserMessage(_content(at, message.get("content"), parsed)))
        elif role == "assistant":
            messages.append(_answer(at, message, parsed, ledger))
        else:
            parsed.wrong(f"messages[{at}].role: {role!r} is not one of system, developer, user, assistant, tool", at)
    if results:
        messages.append(ToolMessage(tuple(results)))
    return messages


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _result(at: int, message: Mapping[str, Any], parsed: Parsed) -> tuple[Text | Media, ...]:
    content = message.get("content")
    if content is None:
        parsed.wrong(f"messages[{at}].content: a tool message needs content", at)
    return () if not content else _content(at, content, parsed)


def _content(at: int, content: Any, parsed: Parsed) -> tuple[Text | Media, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    blocks: list[Text | Media] = []
    for part in content:
        match part.get("type"):
            case "text":
                blocks.append(Text(str(part.get("text", ""))))
            case "image_url":
                blocks.append(Media("image", str((part.get("image_url") or {}).get("url", ""))))
            case "file":
                held = part.get("file") or {}
                blocks.append(Media("file", str(held.get("file_data") or held.get("file_id") or "")))
            case "input_audio":
                blocks.append(Media("audio", str((part.get("input_audio") or {}).get("data", ""))))
            case other:
                parsed.wrong(f"messages[{at}]: content part of type {other!r}", at)
    return tuple(blocks)


def _answer(at: int, message: Mapping[str, Any], parsed: Parsed, ledger: Ledger) -> AssistantMessage:
    blocks: list[AssistantBlock] = []
    thoughts = [str(message[name]) for name in ("reasoning_content", "reasoning") if message.get(name)]
    blocks.extend(Thinking(thought, origin=ledger.thoughts.get(thought)) for thought in thoughts)
    blocks.extend(_content(at, message.get("content"), parsed))
    if message.get("refusal"):
        blocks.append(ProviderItem("refusal", str(message["refusal"])))
    if message.get("tool_calls") == []:
        parsed.wrong(f"messages[{at}].tool_calls: [] is too short", at)
    for call in message.get("tool_calls") or ():
        if call.get("type") != "function":
            parsed.wrong(f"messages[{at}].tool_calls: type {call.get('type')!r}", at)
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            parsed.wrong(f"messages[{at}].tool_calls: arguments must be a string", at)
        blocks.append(ToolCall(str(call.get("id", "")), str(function.get("name", "")), str(arguments)))
    return AssistantMessage(tuple(blocks))


class ChatWriter:
    """Chunks, a chunk with usage if it was asked for, `[DONE]`."""

    STOPS: ClassVar[dict[Stop, str]] = {
        Stop.END: "stop",
        Stop.TOOL_CALLS: "tool_calls",
        Stop.LENGTH: "length",
        Stop.REFUSED: "content_filter",
    }

    def __init__(self, parsed: Parsed, ledger: Ledger, usage: Usage) -> None:
        self.model = parsed.model
        self.ledger = ledger
        self.usage = usage
        self.origin = origin_of(WireFormat.OPENAI_CHAT, parsed.model)
        self.completion_id = ledger.mint("chatcmpl-")
        self.with_usage = bool((parsed.raw.get("stream_options") or {}).get("include_usage"))
        self.calls = 0
        self.output = 0
        self.reasoning = 0
        self.refused = False

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(self._envelope([choice], "chat.completion.chunk"))

    def _envelope(self, choices: list[Any], kind: str) -> dict[str, Any]:
        head = {"id": self.completion_id, "object": kind, "created": CREATED, "model": self.model}
        return {**head, "service_tier": "default", "system_fingerprint": "fp_strict", "choices": choices}

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.usage.total,
            "completion_tokens": self.output,
            "total_tokens": self.usage.total + self.output,
            "prompt_tokens_details": {"cached_tokens": self.usage.cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning, "audio_tokens": 0},
        }

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def say(self, step: Said) -> Iterator[bytes]:
        match step:
            case Say(text, pieces):
                self.output += tokens(text)
                yield from (self._chunk({"content": piece}) for piece in split(text, pieces))
            case Think(text):
                self._think(text)
                yield from (self._chunk({"reasoning_content": piece}) for piece in split(text, 2))
            case Call():
                call = self._call(step, "")
                yield self._chunk({"tool_calls": [{"index": self.calls - 1, **call}]})
                parts = split(step.arguments_text, 3)
                for piece in parts[:1] if step.half else parts:
                    yield self._chunk({"tool_calls": [{"index": self.calls - 1, "function": {"arguments": piece}}]})
            case Refuse(text):
                self.refused = True
                self.output += tokens(text)
                yield from (self._chunk({"refusal": piece}) for piece in split(text, 2))
            case _:
                raise ValueError(f"{type(step).__name__}: this format has no such thing")

    def _think(self, text: str) -> None:
        self.ledger.thoughts[text] = self.origin
        self.output += tokens(text)
        self.reasoning += tokens(text)

    def _call(self, step: Call, arguments: str) -> dict[str, Any]:
        self.calls += 1
        self.output += tokens(step.arguments_text)
        self.ledger.tool_names.add(step.name)
        self.ledger.arguments.add(step.arguments_text)
        call_id = self.ledger.mint("call_") if step.call_id is None else step.call_id
        return {"id": call_id, "type": "function", "function": {"name": step.name, "arguments": arguments}}

    def finish(self, stop: Stop) -> Iterator[bytes]:
        yield self._chunk({}, self._reason(stop))
        if self.with_usage:
            yield event({**self._envelope([], "chat.completion.chunk"), "usage": self._usage()})
        yield event("[DONE]")

    def _reason(self, stop: Stop) -> str:
        """A refusal in words ends like any answer; one of the content filter has a reason of its own."""
        return "stop" if stop is Stop.REFUSED and self.refused else self.STOPS[stop]

    def ping(self) -> bytes:
        return b": ping\n\n"

    def error(self, kind: str, message: str) -> Iterator[bytes]:
        code = {"overloaded": "server_is_overloaded", "server": "internal_error"}.get(kind, kind)
        yield event({"error": {"message": message, "type": "server_error", "param": None, "code": code}})

    def malformed(self) -> Iterator[bytes]:
        """Data that is no JSON."""
        yield event('{"type": "broken')

    def whole(self, steps: tuple[Said, ...], stop: Stop) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for step in steps:
            if isinstance(step, Say):
                message["content"] = (message["content"] or "") + step.text
                self.output += tokens(step.text)
            elif isinstance(step, Think):
                message["reasoning_content"] = step.text
                self._think(step.text)
            elif isinstance(step, Call):
                message.setdefault("tool_calls", []).append(self._call(step, step.arguments_text))
            elif isinstance(step, Refuse):
                message["refusal"] = step.text
                self.refused = True
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason(stop)}
        return {**self._envelope([choice], "chat.completion"), "usage": self._usage()}
