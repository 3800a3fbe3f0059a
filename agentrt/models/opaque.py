"""What an answer carries that only its own model can read: the opaque ``provider`` object of the journal.

    {"format", "provider", "model",          to whom it belongs (``ModelIdentity.signed``)
     "response": "{…}",                      id, address, details of the whole answer
     "parts": ["{…}", …]}                    one for each part of the answer, in the provider's order

Each part is either ``{"at": n, …}``, what belongs to block ``n`` of the content (ids, signature, details; for a call
the provider's own call id), or ``{"native": {…}}``, a part that is no block of ours, such as the call and the result
of a tool that the provider ran itself. The texts are JSON, kept as text, since jsonb is not
byte-faithful and signatures are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never
from urllib.parse import urlsplit, urlunsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)

from agentrt.core.content import Block, Content, File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import StopReason
from agentrt.core.transcript import ModelIdentity, ModelOutput

_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_PART_FIELDS = ("id", "signature", "provider_name", "provider_details")
_SIGNED_FORMATS = ("anthropic", "openai-responses")
_RESPONSE_FIELDS = (
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_details",
    "provider_response_id",
    "model_name",
)


# --- out of an answer -----------------------------------------------------------------------------------------------


def taken_apart(response: ModelResponse, identity: ModelIdentity) -> tuple[Content, Mapping[str, Any]]:
    """The blocks of an answer, and the opaque object with all else."""
    blocks: list[Block] = []
    parts: list[str] = []
    run_by_provider = {part.tool_call_id for part in response.parts if isinstance(part, NativeToolCallPart)}
    for part in response.parts:
        if isinstance(part, NativeToolReturnPart) and part.tool_call_id not in run_by_provider:
            continue  # the layer drops the calls of tools that it was not told of, and their results are then orphans
        block = _block(part)
        if block is None:
            parts.append(_text({"native": _dumped(part)}))
            continue
        parts.append(_text({"at": len(blocks), **_fields(part)}))
        blocks.append(block)
    opaque = {
        "format": identity.format,
        "provider": identity.provider,
        "model": identity.model,
        "response": _text({**_present(response, _RESPONSE_FIELDS), **_address(response.provider_url)}),
        "parts": parts,
    }
    return tuple(blocks), opaque


def _address(url: str | None) -> dict[str, str]:
    """The address that the answer came from, by which the layer knows whose item ids these are; without a password."""
    if not url:
        return {}
    parts = urlsplit(url)
    return {"provider_url": urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))}


def _block(part: ModelResponsePart) -> Block | None:
    match part:
        case TextPart():
            return Text(_words(part.content))
        case ThinkingPart():
            return Thinking(_words(part.content))
        case ToolCallPart():
            return ToolCall(_words(part.tool_name), _arguments(part.args))
        case FilePart():
            kind = Image if part.content.is_image else File
            return kind(media_type=part.content.media_type, base64=part.content.base64)
        case _:
            return None


def _words(given: object) -> str:
    """What the layer calls a text; it hands on whatever the provider has put there.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(given, str):
        raise TypeError(f"{type(given).__name__} in place of a text")
    return given


def _arguments(args: Any) -> str:
    """The arguments as they were received; a call without any has an empty object."""
    if isinstance(args, str):
        return args if args.strip() else "{}"
    return "{}" if args is None else json.dumps(args, ensure_ascii=False)


def _fields(part: ModelResponsePart) -> dict[str, Any]:
    fields = _present(part, _PART_FIELDS)
    if isinstance(part, ToolCallPart):
        fields["call_id"] = part.tool_call_id
    return fields


def _present(value: object, fields: Sequence[str]) -> dict[str, Any]:
    return {name: found for name in fields if (found := getattr(value, name, None)) is not None}


def _text(value: Mapping[str, Any]) -> str:
    return _JSON.dump_json(value).decode()


def _dumped(part: ModelResponsePart) -> Any:
    [message] = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=[part])], mode="json")
    return message["parts"][0]


# --- back into an answer --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    """The opaque object, read; whatever cannot be read is left out."""

    response: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, provider: Mapping[str, Any]) -> _Stored:
        parts = provider.get("parts")
        read = map(_object, parts if isinstance(parts, Sequence) and not isinstance(parts, str) else ())
        return cls(_object(provider.get("response")), tuple(read))


def restored(message: ModelOutput, identity: ModelIdentity) -> ModelResponse:
    """The answer as its model gave it, with our call ids; without its opaque object, only what any model takes.

    Parts are in the provider's order, but for text behind a call, which Anthropic refuses: calls are last there.
    """
    if message.provider is None:
        return ModelResponse(parts=[part for block in message.content if (part := _plain(block)) is not None])
    stored = _Stored.of(message.provider)
    if identity.format in _SIGNED_FORMATS and _is_unsigned(message, stored):
        return restored(replace(message, provider=None), identity)
    blocks = dict(zip(message.positions or range(len(message.content)), message.content, strict=False))
    parts: list[ModelResponsePart] = []
    for fields in stored.parts:
        if "native" in fields:
            parts.extend(_loaded(fields["native"]))
        elif (block := blocks.pop(_at(fields), None)) is not None:
            parts.extend(_part(block, fields))
    for block in blocks.values():
        parts.extend(_part(block, {}))
    if identity.format == "anthropic":
        parts.sort(key=lambda part: isinstance(part, ToolCallPart))
    while parts and isinstance(parts[-1], ThinkingPart):
        parts.pop()  # nothing follows it: no provider takes that
    return ModelResponse(
        parts=parts,
        state="suspended" if message.stop_reason is StopReason.PAUSED else "complete",
        **_present_in(stored.response, _RESPONSE_FIELDS),
    )


def _is_unsigned(message: ModelOutput, stored: _Stored) -> bool:
    """Whether some thinking came without its signature: neither it nor the ids of what it belongs to can be sent."""
    signed = {_at(fields) for fields in stored.parts if _present_in(fields, ("signature",)).get("signature")}
    positions = message.positions or range(len(message.content))
    placed = zip(positions, message.content, strict=False)
    return any(isinstance(block, Thinking) and position not in signed for position, block in placed)


def _part(block: Block, fields: Mapping[str, Any]) -> list[ModelResponsePart]:
    """A block with what belongs to it."""
    own = _present_in(fields, _PART_FIELDS)
    match block:
        case Text():
            own.pop("signature", None)
            return [TextPart(block.text, **own)]
        case Thinking():
            return [ThinkingPart(block.text, **own)]
        case ToolCall():
            own.pop("signature", None)
            return [ToolCallPart(block.tool, block.arguments, block.call_id, **own)]
        case Image() | File():
            own.pop("signature", None)
            return [FilePart(_binary(block), **own)] if block.base64 is not None else []
        case UnknownBlock():
            return []
        case _:
            assert_never(block)


def _plain(block: Block) -> ModelResponsePart | None:
    match block:
        case Text():
            return TextPart(block.text)
        case ToolCall():
            return ToolCallPart(block.tool, block.arguments, block.call_id)
        case Thinking() | Image() | File() | UnknownBlock():
            return None
        case _:
            assert_never(block)


def _binary(block: Image | File) -> BinaryContent:
    return BinaryContent(base64.b64decode(block.base64 or ""), media_type=block.media_type)


def _at(fields: Mapping[str, Any]) -> int:
    at = fields.get("at")
    return at if isinstance(at, int) else -1


def _present_in(stored: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Those of the form that the layer relies on: a journal may have been imported."""
    return {
        name: stored[name]
        for name in fields
        if isinstance(stored.get(name), dict if name == "provider_details" else str)
    }


def _object(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _loaded(raw: Any) -> Sequence[ModelResponsePart]:
    try:
        [message] = ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": [raw]}])
    except ValidationError:
        return ()
    return message.parts if isinstance(message, ModelResponse) else ()
