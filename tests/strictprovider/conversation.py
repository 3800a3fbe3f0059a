"""The neutral form of a conversation: what a request says, whichever wire format it came in.

Three kinds of message, in the order of the wire:

* `UserMessage`: what people said.
* `AssistantMessage`: one answer (or several in a row) of the model.
* `ToolMessage`: the results that stand together in one place. In Anthropic's format that is the run of
  `tool_result` blocks of one user message; in OpenAI's formats the run of `tool` messages or of
  `function_call_output` items.

Nothing here knows HTTP, so that property tests of the core can build these values from their own view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never


class WireFormat(StrEnum):
    """The three formats, by the names under which pydantic-ai offers them."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Text:
    """Text. `item_id` and `requires` are OpenAI Responses' (see `ToolCall`)."""

    text: str
    item_id: str | None = None
    requires: str | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a file; `source` is the URL or the base64 text."""

    kind: str
    source: str
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that the model wrote and its provider signed.

    `origin` names who signed it, in any notation that the caller of `validate` uses throughout, for example
    `"anthropic/claude"`; None when the signature is nobody's, or does not fit the text.
    """

    text: str
    signature: str | None = None
    origin: str | None = None
    item_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` is the JSON text. `requires` is the id of the reasoning item it came with."""

    call_id: str
    name: str
    arguments: str
    item_id: str | None = None
    requires: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderItem:
    """Something that the provider ran or wrote itself (a server tool's call or result, a refusal): passed through."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    blocks: tuple[Text | Media, ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))


AssistantBlock: TypeAlias = Text | Media | Thinking | ToolCall | ProviderItem


@dataclass(frozen=True, slots=True)
class UserMessage:
    blocks: tuple[Text | Media, ...]

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One answer. `paused` says that the provider itself stopped in the middle of it and waits to go on."""

    blocks: tuple[AssistantBlock, ...]
    paused: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(block for block in self.blocks if isinstance(block, ToolCall))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    results: tuple[ToolResult, ...]


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


def strings_of(message: Message) -> Iterator[str]:
    """Every string that the message carries, for checks that concern any text."""
    match message:
        case UserMessage():
            yield from _block_strings(message.blocks)
        case AssistantMessage():
            yield from _block_strings(message.blocks)
        case ToolMessage():
            for result in message.results:
                yield result.call_id
                yield from _block_strings(result.blocks)
        case _:
            assert_never(message)


def _block_strings(blocks: Sequence[AssistantBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Text():
                yield block.text
            case Media():
                yield block.source
            case Thinking():
                yield block.text
                if block.signature is not None:
                    yield block.signature
            case ToolCall():
                yield block.call_id
                yield block.name
                yield block.arguments
            case ProviderItem():
                yield block.text
            case _:
                assert_never(block)
