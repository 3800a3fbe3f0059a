"""From our view to the messages of the providers' layer: one request for each stretch between two answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)

from agentrt.core.content import Block, Content, File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import ToolOutcome
from agentrt.core.transcript import Message, ModelIdentity, ModelOutput, Result, ToolResults, UserInput
from agentrt.models.opaque import restored

UNREADABLE: Final = "(A file that cannot be read: its base64 is broken.)"


def layer_messages(messages: Sequence[Message], identity: ModelIdentity, *, instructions: str) -> list[ModelMessage]:
    """The view as the providers' layer wants it.

    The results of a batch and the user messages behind them share one request, results first: split over two they
    would become two messages, which one provider refuses.
    """
    given = instructions or None
    out: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelOutput):
            out.append(restored(message, identity))
            continue
        if not (out and isinstance(out[-1], ModelRequest)):
            out.append(ModelRequest(parts=[], instructions=given))
        request = out[-1]
        if isinstance(request, ModelRequest):
            request.parts = [*request.parts, *_request_parts(message)]
    return out


def _request_parts(message: UserInput | ToolResults) -> Iterator[UserPromptPart | ToolReturnPart]:
    match message:
        case UserInput():
            yield UserPromptPart(_user_content(message.content))
        case ToolResults():
            yield from map(_result, message.results)
        case _:
            assert_never(message)


def _result(result: Result) -> ToolReturnPart:
    return ToolReturnPart(
        result.tool,
        result.content,
        result.call_id,
        outcome="success" if result.outcome is ToolOutcome.OK else "failed",
    )


# --- what users send ------------------------------------------------------------------------------------------------


def _user_content(content: Content) -> str | list[UserContent]:
    items = [item for block in content if (item := _user_item(block)) is not None]
    return items[0] if len(items) == 1 and isinstance(items[0], str) else items


def _user_item(block: Block) -> UserContent | None:
    match block:
        case Text():
            return block.text
        case Image() | File():
            return media(block)
        case Thinking() | ToolCall() | UnknownBlock():
            return None
        case _:
            assert_never(block)


def media(block: Image | File) -> UserContent:
    """An image or file; its bytes when it has them, its URL else, which the provider or the layer fetches."""
    if block.base64 is not None:
        try:
            return BinaryContent(base64.b64decode(block.base64, validate=True), media_type=block.media_type)
        except (binascii.Error, ValueError):
            return UNREADABLE
    url = block.url or ""
    if url.startswith("data:"):
        try:
            return BinaryContent.from_data_uri(url)
        except ValueError:
            return UNREADABLE
    return _linked(block, url)


def _linked(block: Image | File, url: str) -> UserContent:
    kind = "image" if isinstance(block, Image) else block.media_type.partition("/")[0]
    media_type = block.media_type
    match kind:
        case "image":
            return ImageUrl(url, media_type=media_type)
        case "audio":
            return AudioUrl(url, media_type=media_type)
        case "video":
            return VideoUrl(url, media_type=media_type)
        case _:
            return DocumentUrl(url, media_type=media_type)
