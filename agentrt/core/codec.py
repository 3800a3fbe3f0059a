"""The public JSON form of the journal's entries.

Decoding never raises: what cannot be taken becomes ``Unknown``, which is kept and shown, never sent to a model. What
guards against running a tool twice is taken more leniently: a ``tool_started`` or ``tool_result`` with a word that this
version does not know still counts, in its most careful reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from agentrt.core.content import Content, ToolCall, decode_content, encode_content
from agentrt.core.journal import (
    SCHEMA_VERSION,
    AssistantMessage,
    Effect,
    EntryData,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionCompleted,
    SessionFailed,
    StopReason,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    Unknown,
    Usage,
    UserMessage,
    call_id,
)
from agentrt.core.session import CallId, Seq

_ADAPTERS: Mapping[str, TypeAdapter[Any]] = {
    kind.type: TypeAdapter(kind) for kind in EntryData.__args__ if kind is not Unknown
}


def decode(type: str, data: object, *, seq: int) -> EntryData:
    """The entry of a stored ``type`` and ``data``; never raises. Tool calls stored without an id get the one that is
    derived from ``seq``."""
    if not isinstance(data, dict):
        return Unknown(type, data, "the data of an entry is a JSON object")
    try:
        return _decode(type, data, seq=seq)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Unknown(type, data, (str(error).splitlines() or [repr(error)])[0][:200])


def _decode(type: str, data: dict[str, Any], *, seq: int) -> EntryData:
    if type in _CAREFUL:
        return _CAREFUL[type](data)
    if _schema_version(data) > SCHEMA_VERSION:
        return Unknown(type, data, f"schema_version {data['schema_version']!r} is not {SCHEMA_VERSION}")
    if type == AssistantMessage.type:
        return _decode_answer(data, seq=seq)
    if type in _LENIENT:
        return _LENIENT[type](data)
    if type in _ADAPTERS:
        entry: EntryData = _ADAPTERS[type].validate_python(data)
        return entry
    return Unknown(type, data, "no such entry type in this version")


def _schema_version(data: Mapping[str, Any]) -> float:
    version = data.get("schema_version", SCHEMA_VERSION)
    return version if isinstance(version, int | float) else float("inf")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _call_id(data: Mapping[str, Any]) -> CallId:
    if not isinstance(data.get("call_id"), str):
        raise TypeError(f"call_id is {data.get('call_id')!r}, not a string")
    return CallId(data["call_id"])


def _number(value: object) -> Seq | None:
    return Seq(value) if isinstance(value, int) else None


def _decode_started(data: Mapping[str, Any]) -> ToolStarted:
    """An effect that this version does not know is taken for ``once``."""
    return ToolStarted(
        call_id=_call_id(data),
        tool=_text(data.get("tool")) or "",
        effect=_EFFECTS.get(_text(data.get("effect")), Effect.ONCE),
        deferred=True if data.get("deferred") is True else None,
        expires_seconds=_seconds(data.get("expires_seconds")),
    )


def _decode_result(data: Mapping[str, Any]) -> ToolResult:
    """An outcome that this version does not know is taken for ``unknown``."""
    content = data.get("content")
    return ToolResult(
        call_id=_call_id(data),
        tool=_text(data.get("tool")) or "",
        content=content if isinstance(content, str) else "" if content is None else json.dumps(content),
        outcome=_OUTCOMES.get(_text(data.get("outcome")), ToolOutcome.UNKNOWN),
        seconds=_seconds(data.get("seconds")) or 0.0,
    )


_EFFECTS: Mapping[str | None, Effect] = {effect.value: effect for effect in Effect}
_OUTCOMES: Mapping[str | None, ToolOutcome] = {outcome.value: outcome for outcome in ToolOutcome}


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < _LONG else None


_LONG = 1e15


def _decode_completed(data: Mapping[str, Any]) -> SessionCompleted:
    """The end of a run is one, whatever else stands in it: nothing of the run may go on."""
    return SessionCompleted(_object(data.get("outcome")))


def _decode_failed(data: Mapping[str, Any]) -> SessionFailed:
    return SessionFailed(_object(data.get("outcome")))


def _decode_cancelled(data: Mapping[str, Any]) -> SessionCancelled:
    dropped = data.get("dropped")
    seqs = dropped if isinstance(dropped, list) else []
    return SessionCancelled(_text(data.get("reason")), tuple(seq for seq in seqs if isinstance(seq, int)))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _decode_user_message(data: Mapping[str, Any]) -> UserMessage:
    return UserMessage(
        content=decode_content(data.get("content")),
        request_id=_text(data.get("request_id")),
        message_seq=_number(data.get("message_seq")),
        when_running=_text(data.get("when_running")) or "steer",
    )


def _decode_queued(data: Mapping[str, Any]) -> MessageQueued:
    return MessageQueued(decode_content(data.get("content")), _text(data.get("request_id")))


def _decode_retried(data: Mapping[str, Any]) -> ModelRetried:
    return ModelRetried(
        error_class=_text(data.get("class")) or "",
        message=_text(data.get("message")) or "",
        delay_seconds=_seconds(data.get("delay_seconds")) or 0.0,
        usage=None if data.get("usage") is None else _usage(data["usage"]),
        cost=_seconds(data.get("cost")),
    )


_CAREFUL: Mapping[str, Callable[[dict[str, Any]], EntryData]] = {
    ToolStarted.type: _decode_started,
    ToolResult.type: _decode_result,
    SessionCompleted.type: _decode_completed,
    SessionFailed.type: _decode_failed,
    SessionCancelled.type: _decode_cancelled,
}
"""Taken whatever their ``schema_version``: to overlook one could run a tool twice."""

_LENIENT: Mapping[str, Callable[[dict[str, Any]], EntryData]] = {
    UserMessage.type: _decode_user_message,
    MessageQueued.type: _decode_queued,
    ModelRetried.type: _decode_retried,
}
"""Taken field by field: a wrong one is left out, the message stays."""


_USAGE = TypeAdapter(Usage)


def _decode_answer(data: dict[str, Any], *, seq: int) -> AssistantMessage:
    """Without ``seen_seq`` an answer has seen everything before it; a stop reason that this version does not know is a
    normal one."""
    content = with_call_ids(decode_content(data.get("content")), seq=seq)
    calls = any(isinstance(block, ToolCall) for block in content)
    seen = _number(data.get("seen_seq"))
    return AssistantMessage(
        content=content,
        model=_text(data.get("model")) or "",
        stop_reason=_STOP_REASONS.get(
            _text(data.get("stop_reason")), StopReason.TOOL_CALLS if calls else StopReason.STOP
        ),
        seen_seq=Seq(seq - 1) if seen is None else seen,
        usage=_usage(data.get("usage")),
        cost=_seconds(data.get("cost")),
        provider=data["provider"] if isinstance(data.get("provider"), dict) else None,
        message=_text(data.get("message")),
    )


_STOP_REASONS: Mapping[str | None, StopReason] = {reason.value: reason for reason in StopReason}


def _usage(raw: object) -> Usage:
    try:
        usage: Usage = _USAGE.validate_python(raw or {})
    except ValidationError:
        return Usage()
    return usage


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
