"""Our view in the neutral form of the strict validator, as a faithful adapter would send it in each format."""

from collections.abc import Sequence

from agentrt.core.content import File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import StopReason, ToolOutcome
from agentrt.core.messages import Message, ModelIdentity, ModelOutput, ToolResults, UserInput
from tests.strictprovider import conversation as neutral
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.rules import Rule, Strictness, Violation, validate

FORMATS = {
    "openai-chat": WireFormat.OPENAI_CHAT,
    "openai-responses": WireFormat.OPENAI_RESPONSES,
    "anthropic": WireFormat.ANTHROPIC,
}


def violations(
    messages: Sequence[Message], identity: ModelIdentity, *, asked: bool = True, wire_format: WireFormat | None = None
) -> list[Violation]:
    """What a strict provider would say of this request; ``asked`` is False for a view that is no request."""
    found = validate(
        [convert(message) for message in messages],
        wire_format=wire_format or FORMATS[identity.format],
        strictness=Strictness(origin=_origin(identity)),
    )
    tolerated = () if asked else (Rule.LAST_IS_ASSISTANT, Rule.EMPTY_CONVERSATION)
    return [violation for violation in found if violation.rule not in tolerated]


def convert(message: Message) -> neutral.Message:
    match message:
        case UserInput():
            return neutral.UserMessage(tuple(_shown(block) for block in message.content))
        case ModelOutput():
            return _answer(message)
        case ToolResults():
            return neutral.ToolMessage(
                tuple(
                    neutral.ToolResult(r.call_id, (neutral.Text(r.content),), r.outcome is not ToolOutcome.OK)
                    for r in message.results
                )
            )


def _answer(output: ModelOutput) -> neutral.AssistantMessage:
    """Item ids and signatures come back from the provider's object, by the block's place in the journaled answer."""
    blocks: list[neutral.AssistantBlock] = []
    own = output.provider is not None
    reasoning: str | None = None
    assert len(output.positions) == len(output.content)
    for position, block in zip(output.positions, output.content, strict=True):
        item = f"item-{output.seq}-{position}" if own else None
        match block:
            case Thinking():
                signed = None if output.provider is None else output.provider["signatures"][position]
                reasoning = item
                blocks.append(neutral.Thinking(block.text, signed, _signer(output), item))
            case Text():
                blocks.append(neutral.Text(block.text, item, reasoning))
            case ToolCall():
                blocks.append(neutral.ToolCall(block.call_id, block.tool, block.arguments, item, reasoning))
            case Image() | File():
                blocks.append(neutral.Media(block.type, block.url or block.base64 or "", block.media_type))
            case UnknownBlock():
                raise AssertionError(f"an unknown block is sent: {block}")
    if own and not blocks:
        blocks.append(neutral.ProviderItem("server_tool_use"))
    return neutral.AssistantMessage(tuple(blocks), paused=own and output.stop_reason is StopReason.PAUSED)


def _shown(block: object) -> neutral.Text | neutral.Media:
    match block:
        case Text():
            return neutral.Text(block.text)
        case Image() | File():
            return neutral.Media(block.type, block.url or block.base64 or "", block.media_type)
        case _:
            raise AssertionError(f"a user message is sent with {block!r}")


def _origin(identity: ModelIdentity) -> str:
    return f"{identity.provider}/{identity.model}"


def _signer(output: ModelOutput) -> str | None:
    return None if output.provider is None else f"{output.provider['provider']}/{output.provider['model']}"
