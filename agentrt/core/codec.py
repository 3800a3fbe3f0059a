"""The public JSON form of the journal's entries.

Decoding never raises: what cannot be taken becomes ``Unknown``, which is kept and shown, never sent to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from agentrt.core.content import Content, ToolCall, decode_content, encode_content
from agentrt.core.journal import (
    AssistantMessage,
    EntryData,
    MessageQueued,
    ModelRetried,
    StopReason,
    ToolResult,
    Unknown,
    Usage,
    UserMessage,
    call_id,
)
from agentrt.core.session import Seq

_ADAPTERS: Mapping[str, TypeAdapter[Any]] = {
    kind.type: TypeAdapter(kind)
    for kind in EntryData.__args__
    if kind not in (UserMessage, MessageQueued, AssistantMessage, Unknown)
}


def decode(type: str, data: object, *, seq: int) -> EntryData:
    """The entry of a stored ``type`` and ``data``; never raises. Tool calls get the id derived from ``seq``, unless
    one is stored."""
    if not isinstance(data, dict):
        return Unknown(type, data, "the data of an entry is a JSON object")
    try:
        return _decode(type, data, seq=seq)
    except (ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return Unknown(type, data, (str(error).splitlines() or [repr(error)])[0][:200])


def _decode(type: str, data: dict[str, Any], *, seq: int) -> EntryData:
    match type:
        case "user_message":
            return UserMessage(
                content=decode_content(data.get("content")),
                request_id=data.get("request_id"),
                message_seq=data.get("message_seq"),
                when_running=str(data.get("when_running") or "steer"),
            )
        case "message_queued":
            return MessageQueued(decode_content(data.get("content")), data.get("request_id"))
        case "assistant_message":
            return _decode_answer(data, seq=seq)
        case "model_retried":
            data = {**data, "error_class": data.get("class", "")}
            entry: EntryData = _ADAPTERS[type].validate_python(data)
            return entry
        case _ if type in _ADAPTERS:
            entry = _ADAPTERS[type].validate_python(data)
            return entry
        case _:
            return Unknown(type, data, "no such entry type in this version")


_USAGE = TypeAdapter(Usage)


def _decode_answer(data: dict[str, Any], *, seq: int) -> AssistantMessage:
    cost = data.get("cost")
    provider = data.get("provider")
    return AssistantMessage(
        content=with_call_ids(decode_content(data.get("content")), seq=seq),
        model=str(data.get("model") or ""),
        stop_reason=StopReason(data.get("stop_reason") or "stop"),
        seen_seq=Seq(int(data.get("seen_seq") or 0)),
        usage=_USAGE.validate_python(data.get("usage") or {}),
        cost=None if cost is None else float(cost),
        provider=provider if isinstance(provider, Mapping) else None,
        message=data.get("message"),
    )


def with_call_ids(content: Content, *, seq: int) -> Content:
    """``content`` of the answer at ``seq`` with an id in each tool call that has none."""
    return tuple(
        replace(block, call_id=call_id(seq, position)) if isinstance(block, ToolCall) and not block.call_id else block
        for position, block in enumerate(content)
    )


def encode(data: EntryData) -> dict[str, Any]:
    """The JSON form of an entry's ``data``; fields that are None are left out."""
    match data:
        case Unknown():
            return data.raw if isinstance(data.raw, dict) else {"raw": data.raw}
        case UserMessage() | MessageQueued() | AssistantMessage():
            encoded = _fields(data) | {"content": encode_content(data.content)}
        case ModelRetried():
            encoded = _fields(data)
            encoded["class"] = encoded.pop("error_class")
        case _:
            encoded = _fields(data)
    return {name: value for name, value in encoded.items() if value is not None}


_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in EntryData.__args__}


def _fields(data: EntryData) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for name in _NAMES[data.__class__]:
        if name == "content" and not isinstance(data, ToolResult):
            continue
        value = getattr(data, name)
        if isinstance(value, Usage):
            value = {key: getattr(value, key) for key in Usage.__slots__}
        elif isinstance(value, UUID):
            value = str(value)
        elif isinstance(value, tuple):
            value = list(value)
        encoded[name] = value
    return encoded
