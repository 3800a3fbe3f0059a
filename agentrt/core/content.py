"""Content blocks: what user messages and answers are made of, and their public JSON form.

Decoding never raises: a block that cannot be taken becomes ``UnknownBlock``, which is kept and counts as content but
is not sent to a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from pydantic import TypeAdapter, ValidationError

from agentrt.core.session import CallId


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class Image:
    """Exactly one of ``url`` and ``base64`` is set."""

    media_type: str = "image/png"
    url: str | None = None
    base64: str | None = None
    type: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class File:
    """Exactly one of ``url`` and ``base64`` is set."""

    media_type: str = "application/octet-stream"
    url: str | None = None
    base64: str | None = None
    type: Literal["file"] = "file"


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the model thought, as text; its signature is in the answer's opaque ``provider`` object."""

    text: str
    type: Literal["thinking"] = "thinking"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the string as received. ``call_id`` is empty until the answer is committed."""

    tool: str
    arguments: str
    call_id: CallId = CallId("")
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True)
class UnknownBlock:
    """A block that this version cannot take: kept, counted as content, not sent."""

    raw: Any
    type: Literal["unknown"] = "unknown"


Block = Text | Image | File | Thinking | ToolCall | UnknownBlock
Content = tuple[Block, ...]

_MEDIA: Mapping[str, TypeAdapter[Any]] = {"image": TypeAdapter(Image), "file": TypeAdapter(File)}


def in_words(content: Content) -> str:
    """``content`` for people: its texts and calls, and the names of its other blocks."""
    words = []
    for block in content:
        match block:
            case Text(text=text):
                words.append(text)
            case ToolCall(tool=tool, arguments=arguments):
                words.append(f"{tool}({arguments})")
            case _:
                words.append(f"[{block.type}]")
    return " ".join(words)


def decode_content(raw: object) -> Content:
    """The blocks of a stored ``content``; a plain string (older imports) is one text block."""
    if isinstance(raw, str):
        return (Text(raw),)
    if not isinstance(raw, Sequence):
        return () if raw is None else (UnknownBlock(raw),)
    return tuple(decode_block(block) for block in raw)


def decode_block(raw: object) -> Block:
    """One block of any kind; never raises."""
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "thinking", "text": str(text)}:
            return Thinking(text)
        case {"type": "tool_call", "tool": str(tool), "arguments": str(arguments)}:
            return ToolCall(tool, arguments, _stored_call_id(raw))
        case {"type": "image" | "file" as kind}:
            try:
                media: Image | File = _MEDIA[kind].validate_python(raw)
            except ValidationError:
                return UnknownBlock(raw)
            return media if (media.url is None) != (media.base64 is None) else UnknownBlock(raw)
        case _:
            return UnknownBlock(raw)


def _stored_call_id(raw: Any) -> CallId:
    stored = raw.get("call_id")
    return CallId(stored if isinstance(stored, str) else "")


def encode_content(content: Content) -> list[Any]:
    """The JSON form of ``content``; an unknown block is given back as it was read."""
    return [_encode_block(block) for block in content]


def _encode_block(block: Block) -> Any:
    match block:
        case Text() | Thinking():
            return {"type": block.type, "text": block.text}
        case ToolCall():
            encoded = {"type": "tool_call", "tool": block.tool, "arguments": block.arguments}
            return encoded | ({"call_id": block.call_id} if block.call_id else {})
        case Image() | File():
            source = {"url": block.url} if block.url is not None else {"base64": block.base64}
            return {"type": block.type, "media_type": block.media_type, **source}
        case UnknownBlock():
            return block.raw
        case _:
            assert_never(block)
