"""OpenAI's Responses: what a request says. platform.openai.com/docs/api-reference/responses, .../guides/reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from .ledger import Ledger, signer
from .wire import Parsed, unit


def parse(raw: Mapping[str, Any], ledger: Ledger) -> Parsed:
    """The request in neutral form. Raises: AttributeError, TypeError, when a field has the wrong type."""
    parsed = Parsed(WireFormat.OPENAI_RESPONSES, raw=raw)
    parsed.model = str(raw.get("model") or "")
    parsed.stream = bool(raw.get("stream"))
    if not parsed.model:
        parsed.wrong("Missing required parameter: 'model'.")
    if raw.get("previous_response_id"):
        parsed.wrong(f"Previous response with id {raw['previous_response_id']!r} not found.")
    parsed.system = str(raw.get("instructions") or "")
    parsed.thinking = (raw.get("reasoning") or {}).get("effort") not in (None, "none")
    tools = raw.get("tools") or ()
    parsed.tools = tuple(str(tool.get("name")) for tool in tools if tool.get("type") == "function")
    held = raw.get("input") or ()
    items = [{"role": "user", "content": held}] if isinstance(held, str) else list(held)
    head = [unit(["tool", tool]) for tool in tools] + [unit(["instructions", parsed.system])]
    parsed.units = tuple(head + [unit(item) for item in items])
    parsed.messages = tuple(_Grouper(parsed, ledger).group(items))
    return parsed


class _Grouper:
    """The flat list of items as messages: runs of the assistant's items, runs of outputs, and user messages."""

    def __init__(self, parsed: Parsed, ledger: Ledger) -> None:
        self.parsed = parsed
        self.ledger = ledger
        self.messages: list[Message] = []
        self.answer: list[AssistantBlock] = []
        self.outputs: list[ToolResult] = []

    def group(self, items: list[Mapping[str, Any]]) -> list[Message]:
        for at, item in enumerate(items):
            self._item(at, item)
        self._close()
        return self.messages

    def _close(self) -> None:
        if self.answer:
            self.messages.append(AssistantMessage(tuple(self.answer)))
            self.answer = []
        if self.outputs:
            self.messages.append(ToolMessage(tuple(self.outputs)))
            self.outputs = []

    def _item(self, at: int, item: Mapping[str, Any]) -> None:
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            if self.answer:
                self._close()
            self.outputs.append(self._output(at, item))
        elif kind == "message" and item.get("role") != "assistant":
            self._close()
            self._said(at, item)
        else:
            if self.outputs:
                self._close()
            self.answer.extend(self._answered(at, kind, item))

    def _output(self, at: int, item: Mapping[str, Any]) -> ToolResult:
        output = item.get("output")
        blocks = (Text(output),) if isinstance(output, str) and output else self._content(at, output or ())
        return ToolResult(str(item.get("call_id", "")), blocks)

    def _said(self, at: int, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if role in ("system", "developer"):
            if self.messages:
                self.parsed.wrong(f"input[{at}]: a {role} message after the conversation began", at)
            self.parsed.system += "".join(
                block.text for block in self._content(at, item.get("content") or ()) if isinstance(block, Text)
            )
        elif role == "user":
            self.messages.append(UserMessage(self._content(at, item.get("content") or ())))
        else:
            self.parsed.wrong(f"input[{at}].role: {role!r}", at)

    def _content(self, at: int, content: Any) -> tuple[Text | Media, ...]:
        if isinstance(content, str):
            return (Text(content),)
        blocks: list[Text | Media] = []
        for part in content:
            match part.get("type"):
                case "input_text":
                    blocks.append(Text(str(part.get("text", ""))))
                case "input_image":
                    blocks.append(Media("image", str(part.get("image_url") or part.get("file_id") or "")))
                case "input_file":
                    blocks.append(Media("file", str(part.get("file_url") or part.get("file_data") or "")))
                case other:
                    self.parsed.wrong(f"input[{at}]: content part of type {other!r}", at)
        return tuple(blocks)

    def _answered(self, at: int, kind: str, item: Mapping[str, Any]) -> list[AssistantBlock]:
        match kind:
            case "message":
                return self._answer_text(at, item)
            case "function_call":
                return [self._call(item)]
            case "reasoning":
                return [self._reasoning(at, item)]
            case "item_reference":
                self.parsed.wrong(f"Item with id {item.get('id')!r} not found.", at)
                return []
            case _:
                return [ProviderItem(kind, "")]

    def _answer_text(self, at: int, item: Mapping[str, Any]) -> list[AssistantBlock]:
        content = item.get("content")
        item_id = str(item["id"]) if item.get("id") else None
        requires = self.ledger.requires.get(item_id) if item_id else None
        if isinstance(content, str):
            return [Text(content, item_id, requires)]
        blocks: list[AssistantBlock] = []
        for part in content or ():
            match part.get("type"):
                case "output_text":
                    blocks.append(Text(str(part.get("text", "")), None if blocks else item_id, requires))
                case "refusal":
                    blocks.append(ProviderItem("refusal", str(part.get("refusal", ""))))
                case other:
                    self.parsed.wrong(f"input[{at}]: content part of type {other!r} of the assistant", at)
        return blocks

    def _call(self, item: Mapping[str, Any]) -> ToolCall:
        item_id = str(item["id"]) if item.get("id") else None
        requires = self.ledger.requires.get(item_id) if item_id else None
        arguments = item.get("arguments")
        return ToolCall(str(item.get("call_id", "")), str(item.get("name", "")), str(arguments), item_id, requires)

    def _reasoning(self, at: int, item: Mapping[str, Any]) -> Thinking:
        """Encrypted content must be ours; without it, the item must be one that this provider stored."""
        item_id = str(item.get("id", ""))
        text = "".join(str(part.get("text", "")) for part in item.get("summary") or ())
        signature = item.get("encrypted_content")
        if signature:
            return Thinking(text, str(signature), signer(str(signature), text, item_id), item_id)
        stored = self.ledger.thoughts.get(item_id)
        if stored is None or self.parsed.raw.get("store") is False:
            self.parsed.wrong(f"Item with id {item_id!r} not found. Items are not persisted when `store` is false.", at)
        return Thinking(text, "stored", stored, item_id)
