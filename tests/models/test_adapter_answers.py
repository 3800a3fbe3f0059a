"""Which answers count, in each format: those that the provider itself ended, paused or refused."""

import pytest

from agentrt.core.content import Text, ToolCall
from agentrt.core.journal import StopReason
from agentrt.ports import ModelErrorClass
from tests.models.adapters import in_every_format, one_answer, one_error
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.script import (
    Answer,
    Call,
    Fault,
    Refuse,
    Reply,
    Say,
    ServerTool,
    Stop,
    StreamError,
    Think,
    refuse,
    say,
)

CUTS: list[Reply] = [
    Answer((Fault.END,)),
    Answer((Say("Hello"), Fault.END)),
    Answer((Think("Hm."), Fault.END)),
    Answer((Think("Hm."), Say("Hello"), Fault.END)),
    Answer((Call("weather", {"city": "Oslo"}, half=True), Fault.END)),
    Answer((Say("Let me see."), Call("weather", {"city": "Oslo"}), Fault.END)),
]


@in_every_format
async def test_a_whole_text_counts(wire_format: WireFormat) -> None:
    answer = await one_answer(wire_format, say("Hello there.", pieces=4))
    assert (answer.content, answer.stop_reason) == ((Text("Hello there."),), StopReason.STOP)
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert answer.cost is not None
    assert answer.cost > 0


@in_every_format
async def test_whole_calls_count_with_their_arguments_as_they_were_received(wire_format: WireFormat) -> None:
    arguments = '{ "city" : "Oslo",  "n": 1e2 }'
    reply = Answer((Say("Let me see."), Call("weather", arguments), Call("weather", {"city": "Rome"})))
    answer = await one_answer(wire_format, reply)
    assert answer.stop_reason is StopReason.TOOL_CALLS
    assert answer.content[0] == Text("Let me see.")
    calls = [block for block in answer.content if isinstance(block, ToolCall)]
    assert [(call.tool, call.arguments, call.call_id) for call in calls] == [
        ("weather", arguments, ""),
        ("weather", '{"city": "Rome"}', ""),
    ]


@in_every_format
async def test_a_call_without_any_arguments_has_an_empty_object(wire_format: WireFormat) -> None:
    answer = await one_answer(wire_format, Answer((Call("weather", ""),)))
    assert answer.content == (ToolCall("weather", "{}"),)


async def test_an_answer_that_the_provider_paused_counts() -> None:
    reply = Answer((Say("searching"), ServerTool("oslo", finished=False)), Stop.PAUSED)
    answer = await one_answer(WireFormat.ANTHROPIC, reply)
    assert (answer.stop_reason, answer.content) == (StopReason.PAUSED, (Text("searching"),))


@in_every_format
@pytest.mark.parametrize("before", [None, "Well, "])
async def test_a_refusal_counts_and_brings_the_providers_words(wire_format: WireFormat, before: str | None) -> None:
    """F28."""
    answer = await one_answer(wire_format, refuse("I will not help.", after=before))
    assert (answer.stop_reason, answer.message) == (StopReason.REFUSED, "I will not help.")
    assert answer.content == ((Text(before),) if before else ())


@in_every_format
@pytest.mark.parametrize("steps", [(), (Say("Well, "),)])
async def test_a_content_filter_counts_as_a_refusal(wire_format: WireFormat, steps: tuple[Say, ...]) -> None:
    """F28."""
    answer = await one_answer(wire_format, Answer(steps, Stop.REFUSED))
    assert (answer.stop_reason, len(answer.content)) == (StopReason.REFUSED, len(steps))
    assert answer.message


@in_every_format
async def test_calls_of_a_refused_answer_stay_marked_as_refused(wire_format: WireFormat) -> None:
    """F28."""
    answer = await one_answer(wire_format, Answer((Call("weather", {"city": "Oslo"}), Refuse("No."))))
    assert answer.stop_reason is StopReason.REFUSED


@in_every_format
@pytest.mark.parametrize("steps", [(Say("Once upon"),), (), (Think("Hm."),), (Call("weather", '{"ci', half=True),)])
async def test_an_answer_cut_by_length_counts_and_says_so(
    wire_format: WireFormat, steps: tuple[Say | Think | Call, ...]
) -> None:
    """F29."""
    answer = await one_answer(wire_format, Answer(steps, Stop.LENGTH))
    assert answer.stop_reason is StopReason.LENGTH


@in_every_format
@pytest.mark.parametrize("steps", [(), (Say(" \n"),), (Think("Hm."),)])
async def test_an_empty_answer_is_whole_and_empty(wire_format: WireFormat, steps: tuple[Say | Think, ...]) -> None:
    """F7."""
    answer = await one_answer(wire_format, Answer(steps))
    assert answer.stop_reason is StopReason.STOP
    assert [block for block in answer.content if isinstance(block, Text) and block.text.strip()] == []


@in_every_format
@pytest.mark.parametrize("reply", CUTS, ids=range(len(CUTS)))
async def test_a_stream_that_ends_cleanly_without_the_finish_marker_is_no_answer(
    wire_format: WireFormat, reply: Reply
) -> None:
    """F12."""
    error = await one_error(wire_format, reply)
    assert error.error_class is ModelErrorClass.TRANSIENT


@in_every_format
@pytest.mark.parametrize("end", [Fault.RESET, Fault.CLOSE, Fault.MALFORMED, StreamError()])
async def test_a_stream_that_breaks_within_a_call_is_no_answer(
    wire_format: WireFormat, end: Fault | StreamError
) -> None:
    """F6."""
    error = await one_error(wire_format, Answer((Call("weather", {"city": "Oslo"}, half=True), end)))
    assert error.error_class is ModelErrorClass.TRANSIENT
