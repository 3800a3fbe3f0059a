"""Each format's own JSON is read into the neutral form as it is meant, and its own mistakes are found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strictprovider import anthropic, openai_chat, openai_responses
from tests.strictprovider.conversation import (
    AssistantMessage,
    Media,
    ProviderItem,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    WireFormat,
)
from tests.strictprovider.ledger import Ledger, Unit, origin_of, sign, signer
from tests.strictprovider.rules import Rule, validate
from tests.strictprovider.wire import Parsed

ONE, TWO = "AAAAAAAA1", "AAAAAAAA2"
PARSERS = {
    WireFormat.OPENAI_CHAT: openai_chat.parse,
    WireFormat.OPENAI_RESPONSES: openai_responses.parse,
    WireFormat.ANTHROPIC: anthropic.parse,
}


def read(wire_format: WireFormat, messages: list[dict[str, Any]], **more: Any) -> Parsed:
    held = "input" if wire_format is WireFormat.OPENAI_RESPONSES else "messages"
    return PARSERS[wire_format]({"model": "m", "max_tokens": 9, held: messages, **more}, Ledger())


def rules_of(parsed: Parsed) -> set[Rule]:
    found = validate(parsed.messages, wire_format=parsed.wire_format)
    return {violation.rule for violation in [*parsed.violations, *found]}


CHAT_CALL = {"id": ONE, "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
CHAT_CALL_TWO = {"id": TWO, "type": "function", "function": {"name": "look", "arguments": "{}"}}
CONVERSATIONS: dict[WireFormat, list[dict[str, Any]]] = {
    WireFormat.OPENAI_CHAT: [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "https://e/cat"}}],
        },
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CHAT_CALL, CHAT_CALL_TWO]},
        {"role": "tool", "tool_call_id": ONE, "content": "a cat"},
        {"role": "tool", "tool_call_id": TWO, "content": ""},
        {"role": "user", "content": "and?"},
    ],
    WireFormat.OPENAI_RESPONSES: [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "https://e/cat"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": ONE, "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call", "call_id": TWO, "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": ONE, "output": "a cat"},
        {"type": "function_call_output", "call_id": TWO, "output": ""},
        {"role": "user", "content": "and?"},
    ],
    WireFormat.ANTHROPIC: [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "image", "source": {"url": "https://e/cat"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": ONE, "name": "look", "input": {"at": 1}},
                {"type": "tool_use", "id": TWO, "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": ONE, "content": [{"type": "text", "text": "a cat"}]},
                {"type": "tool_result", "tool_use_id": TWO, "content": ""},
                {"type": "text", "text": "and?"},
            ],
        },
    ],
}


@pytest.mark.parametrize("wire_format", list(WireFormat))
def test_the_same_conversation_reads_the_same_in_every_format(wire_format: WireFormat) -> None:
    more = {"system": "Be brief."} if wire_format is WireFormat.ANTHROPIC else {}
    parsed = read(wire_format, CONVERSATIONS[wire_format], **more)
    assert parsed.system == "Be brief."
    assert parsed.messages == (
        UserMessage((Text("hi"), Media("image", "https://e/cat"))),
        AssistantMessage((Text("Let me see."), ToolCall(ONE, "look", '{"at": 1}'), ToolCall(TWO, "look", "{}"))),
        ToolMessage((ToolResult(ONE, (Text("a cat"),)), ToolResult(TWO))),
        UserMessage((Text("and?"),)),
    )
    assert rules_of(parsed) == set()


def test_anthropic_text_before_the_results_is_refused() -> None:
    conversation = [dict(message) for message in CONVERSATIONS[WireFormat.ANTHROPIC]]
    conversation[2]["content"] = [{"type": "text", "text": "and?"}, *conversation[2]["content"][:2]]
    assert Rule.CALL_WITHOUT_RESULT in rules_of(read(WireFormat.ANTHROPIC, conversation))


def test_anthropic_results_in_two_user_messages_are_refused() -> None:
    conversation = [dict(message) for message in CONVERSATIONS[WireFormat.ANTHROPIC]]
    first, second, text = conversation[2]["content"]
    conversation[2:] = [{"role": "user", "content": [first]}, {"role": "user", "content": [second, text]}]
    assert Rule.RESULTS_SPLIT in rules_of(read(WireFormat.ANTHROPIC, conversation))


@pytest.mark.parametrize("wire_format", [WireFormat.OPENAI_CHAT, WireFormat.OPENAI_RESPONSES])
def test_openai_user_text_between_two_results_is_refused(wire_format: WireFormat) -> None:
    conversation = list(CONVERSATIONS[wire_format])
    conversation.insert(len(conversation) - 2, {"role": "user", "content": "wait"})
    found = rules_of(read(wire_format, conversation))
    assert {Rule.CALL_WITHOUT_RESULT, Rule.RESULT_WITHOUT_CALL} <= found


BAD: list[tuple[WireFormat, dict[str, Any], str]] = [
    (WireFormat.OPENAI_CHAT, {"tools": []}, "too short"),
    (WireFormat.OPENAI_CHAT, {"model": ""}, "model"),
    (WireFormat.OPENAI_RESPONSES, {"previous_response_id": "resp_1"}, "not found"),
    (WireFormat.ANTHROPIC, {"max_tokens": None}, "max_tokens"),
    (WireFormat.ANTHROPIC, {"system": " "}, "non-whitespace"),
    (WireFormat.ANTHROPIC, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "budget_tokens"),
    (
        WireFormat.ANTHROPIC,
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5},
        "Found 5",
    ),
]


@pytest.mark.parametrize(("wire_format", "more", "words"), BAD)
def test_a_formats_own_mistakes_are_found(wire_format: WireFormat, more: dict[str, Any], words: str) -> None:
    parsed = read(wire_format, [{"role": "user", "content": "hi"}], **more)
    assert [violation.rule for violation in parsed.violations] == [Rule.BAD_REQUEST]
    assert words in parsed.violations[0].detail


@pytest.mark.parametrize(
    ("wire_format", "message"),
    [
        (WireFormat.OPENAI_CHAT, {"role": "bot", "content": "hi"}),
        (WireFormat.OPENAI_CHAT, {"role": "user", "content": [{"type": "video"}]}),
        (WireFormat.OPENAI_CHAT, {"role": "system", "content": "hi"}),
        (WireFormat.OPENAI_CHAT, {"role": "assistant", "content": "x", "tool_calls": []}),
        (WireFormat.OPENAI_RESPONSES, {"type": "item_reference", "id": "msg_1"}),
        (WireFormat.OPENAI_RESPONSES, {"type": "reasoning", "id": "rs_unknown", "summary": []}),
        (WireFormat.OPENAI_RESPONSES, {"role": "user", "content": [{"type": "text", "text": "x"}]}),
        (WireFormat.ANTHROPIC, {"role": "system", "content": "hi"}),
        (WireFormat.ANTHROPIC, {"role": "user", "content": [{"type": "tool_use"}]}),
        (WireFormat.ANTHROPIC, {"role": "user", "content": [{"type": "image"}]}),
    ],
)
def test_a_message_that_the_format_does_not_know_is_found(wire_format: WireFormat, message: dict[str, Any]) -> None:
    parsed = read(wire_format, [{"role": "user", "content": "hi"}, message])
    assert Rule.BAD_REQUEST in {violation.rule for violation in parsed.violations}


def test_what_a_provider_ran_itself_is_passed_through() -> None:
    content = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "cats"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Cats."},
    ]
    said = {"role": "user", "content": "hi"}
    parsed = read(WireFormat.ANTHROPIC, [said, {"role": "assistant", "content": content}, said])
    assert parsed.messages[1] == AssistantMessage(
        (ProviderItem("server_tool_use", "cats"), ProviderItem("web_search_tool_result"), Text("Cats."))
    )
    assert rules_of(parsed) == set()


def test_a_signature_names_its_model_and_fits_one_text_only() -> None:
    signature = sign(origin_of(WireFormat.ANTHROPIC, "m"), "hm")
    assert signer(signature, "hm") == "anthropic/m"
    assert signer(signature, "ha") is None
    assert signer("made up", "hm") is None
    block = {"type": "thinking", "thinking": "hm", "signature": signature}
    parsed = read(WireFormat.ANTHROPIC, [{"role": "assistant", "content": [block]}])
    assert parsed.messages == (AssistantMessage((Thinking("hm", signature, "anthropic/m"),)),)


PREFIX = st.lists(st.binary(min_size=1, max_size=8), max_size=6)


@given(PREFIX, PREFIX, PREFIX)
def test_without_marks_the_longest_common_prefix_counts(head: list[bytes], one: list[bytes], two: list[bytes]) -> None:
    ledger = Ledger()
    first, second = (b"".join(head + tail) for tail in (one, two))
    ledger.account("m", tuple(map(Unit, head + one)), marked_only=False)
    common = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    shared = min(len(first), len(second)) if common is None else common
    usage = ledger.account("m", tuple(map(Unit, head + two)), marked_only=False)
    assert usage.cached == shared // 4
    assert ledger.account("another", tuple(map(Unit, head)), marked_only=False).cached == 0


def test_with_marks_only_a_marked_prefix_is_written_and_read() -> None:
    ledger = Ledger()
    head, tail, other = Unit(b"h" * 40), Unit(b"t" * 40), Unit(b"o" * 40)
    marked = Unit(head.data, marked=True)
    assert ledger.account("m", (head, tail), marked_only=True).written == 0
    first = ledger.account("m", (marked, tail), marked_only=True)
    second = ledger.account("m", (marked, other), marked_only=True)
    unmarked = ledger.account("m", (head, other), marked_only=True)
    assert (first.cached, first.written) == (0, 10)
    assert (second.cached, second.written) == (10, 0)
    assert (unmarked.total, unmarked.cached) == (20, 0)
