"""Each rule refuses what it names, and a lawful conversation passes in every format."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strictprovider.conversation import (
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
from tests.strictprovider.rules import ANY_CALL_ID, Rule, Strictness, validate

in_every_format = pytest.mark.parametrize("wire_format", list(WireFormat))
ORIGIN = "here/model"
STRICT = Strictness(tools={"look"}, origin=ORIGIN)
ONE, TWO = "AAAAAAAA1", "AAAAAAAA2"


def user(text: str = "hello") -> UserMessage:
    return UserMessage((Text(text),))


def answer(*blocks: Text | Thinking | ToolCall | ProviderItem, paused: bool = False) -> AssistantMessage:
    return AssistantMessage(blocks, paused)


def call(call_id: str = ONE, *, arguments: str = "{}", name: str = "look") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def results(*call_ids: str, text: str = "seen") -> ToolMessage:
    return ToolMessage(tuple(ToolResult(call_id, (Text(text),)) for call_id in call_ids))


def thinking(text: str = "hm", *, origin: str | None = ORIGIN, signature: str | None = "signed") -> Thinking:
    return Thinking(text, signature, origin)


LAWFUL: list[Message] = [
    UserMessage((Text("hello"), Media("image", "https://example.org/cat.png"))),
    answer(thinking(), Text("Let me see."), call(ONE, arguments='{"at": [1, 2]}'), call(TWO)),
    ToolMessage((ToolResult(ONE, (Text("a cat"),)), ToolResult(TWO, (), is_error=True))),
    user("and?"),
    answer(Text("A cat.")),
    user("thank you"),
    user("very much"),
]


def broken(messages: list[Message], wire_format: WireFormat, strictness: Strictness = STRICT) -> set[Rule]:
    return {violation.rule for violation in validate(messages, wire_format=wire_format, strictness=strictness)}


@in_every_format
def test_a_lawful_conversation_passes(wire_format: WireFormat) -> None:
    assert validate(LAWFUL, wire_format=wire_format, strictness=STRICT) == []


CASES: list[tuple[Rule, list[Message]]] = [
    (Rule.EMPTY_CONVERSATION, []),
    (Rule.FIRST_NOT_USER, [answer(Text("hello")), user()]),
    (Rule.LAST_IS_ASSISTANT, [user(), answer(Text("hello"))]),
    (Rule.EMPTY_MESSAGE, [UserMessage(())]),
    (Rule.EMPTY_MESSAGE, [user(), answer(), user()]),
    (Rule.EMPTY_MESSAGE, [user(), answer(thinking()), user()]),
    (Rule.BLANK_TEXT, [user(" \n\t")]),
    (Rule.BLANK_TEXT, [user(), answer(Text(""), call()), results(ONE)]),
    (Rule.BLANK_TEXT, [user(), answer(call()), results(ONE, text=" ")]),
    (Rule.CALL_WITHOUT_RESULT, [user(), answer(call()), user("and?")]),
    (Rule.CALL_WITHOUT_RESULT, [user(), answer(call(ONE), call(TWO)), results(ONE)]),
    (Rule.CALL_WITHOUT_RESULT, [user(), answer(call()), user("and?"), results(ONE)]),
    (Rule.CALL_WITHOUT_RESULT, [user(), answer(call()), answer(Text("done")), user("and?")]),
    (Rule.RESULT_WITHOUT_CALL, [user(), results(ONE)]),
    (Rule.RESULT_WITHOUT_CALL, [user(), answer(Text("hello")), results(ONE)]),
    (Rule.RESULT_WITHOUT_CALL, [user(), answer(call()), user("and?"), results(ONE)]),
    (Rule.RESULTS_SPLIT, [user(), answer(call(ONE), call(TWO)), results(ONE), results(TWO)]),
    (Rule.RESULT_ORDER, [user(), answer(call(ONE), call(TWO)), results(TWO, ONE)]),
    (Rule.REPEATED_RESULT, [user(), answer(call()), results(ONE, ONE)]),
    (Rule.REPEATED_CALL_ID, [user(), answer(call(ONE), call(ONE)), results(ONE)]),
    (Rule.REPEATED_CALL_ID, [user(), answer(call()), results(ONE), answer(call()), results(ONE)]),
    (Rule.CALL_ID_FORM, [user(), answer(call("")), results("")]),
    (Rule.CALL_ID_FORM, [user(), answer(call("call_1234")), results("call_1234")]),
    (Rule.CALL_ID_FORM, [user(), answer(call("AAAAAAAA12")), results("AAAAAAAA12")]),
    (Rule.CALL_WITHOUT_NAME, [user(), answer(call(name="")), results(ONE)]),
    (Rule.UNKNOWN_TOOL, [user(), answer(call(name="leap")), results(ONE)]),
    (Rule.ARGUMENTS_NOT_OBJECT, [user(), answer(call(arguments="")), results(ONE)]),
    (Rule.ARGUMENTS_NOT_OBJECT, [user(), answer(call(arguments="[]")), results(ONE)]),
    (Rule.ARGUMENTS_NOT_OBJECT, [user(), answer(call(arguments='{"at": "x')), results(ONE)]),
    (Rule.ARGUMENTS_NOT_OBJECT, [user(), answer(call(arguments="[" * 100_000)), results(ONE)]),
    (Rule.THINKING_LAST, [user(), answer(Text("hello"), thinking()), user()]),
    (Rule.THINKING_FOREIGN, [user(), answer(thinking(origin="there/model"), Text("hello")), user()]),
    (Rule.THINKING_FOREIGN, [user(), answer(thinking(origin=None), Text("hello")), user()]),
    (Rule.THINKING_AS_TEXT, [user(), answer(Text("<think>\nhm\n</think>")), user()]),
    (Rule.THINKING_AS_TEXT, [user("<assistant_thinking>hm</assistant_thinking>")]),
    (Rule.BAD_CHARACTER, [user("a\x00b")]),
    (Rule.BAD_CHARACTER, [user("a\ud800b")]),
    (Rule.BAD_CHARACTER, [user(), answer(call(arguments='{"a": "\udfff"}')), results(ONE)]),
    (Rule.BAD_CHARACTER, [user(), answer(call()), results(ONE, text="a\x00b")]),
]


@in_every_format
@pytest.mark.parametrize(("rule", "messages"), CASES, ids=lambda value: value.name if isinstance(value, Rule) else "")
def test_each_rule_refuses_what_it_names(rule: Rule, messages: list[Message], wire_format: WireFormat) -> None:
    assert rule in broken(messages, wire_format)


@in_every_format
def test_a_paused_answer_may_be_last(wire_format: WireFormat) -> None:
    assert broken([user(), answer(Text("searching"), paused=True)], wire_format) == set()


def test_unsigned_thinking_passes_only_where_signatures_are_unknown() -> None:
    messages: list[Message] = [user(), answer(thinking(signature=None), Text("hello")), user()]
    assert broken(messages, WireFormat.ANTHROPIC) == {Rule.THINKING_UNSIGNED}
    assert broken(messages, WireFormat.OPENAI_RESPONSES) == {Rule.THINKING_UNSIGNED}
    assert broken(messages, WireFormat.OPENAI_CHAT) == set()


def test_anthropic_alone_refuses_text_behind_a_call() -> None:
    messages: list[Message] = [user(), answer(call(), Text("looking")), results(ONE)]
    assert broken(messages, WireFormat.ANTHROPIC) == {Rule.TEXT_AFTER_CALL}
    assert broken(messages, WireFormat.OPENAI_CHAT) == set()


@pytest.mark.parametrize("block", [ToolCall(ONE, "look", "{}", "fc_1", "rs_1"), Text("hello", "msg_1", "rs_1")])
def test_an_item_needs_the_reasoning_item_it_came_with(block: ToolCall | Text) -> None:
    after: list[Message] = [results(ONE)] if isinstance(block, ToolCall) else [user()]
    reasoning = replace(thinking(), item_id="rs_1")
    assert broken([user(), answer(block), *after], WireFormat.OPENAI_RESPONSES) == {Rule.WITHOUT_REASONING_ITEM}
    assert broken([user(), answer(reasoning, block), *after], WireFormat.OPENAI_RESPONSES) == set()


def test_an_item_id_is_used_once() -> None:
    first, second = (answer(Text("hello", "msg_1")) for _ in range(2))
    assert broken([user(), first, user(), second, user()], WireFormat.OPENAI_RESPONSES) == {Rule.REPEATED_ITEM_ID}


def test_an_open_tool_loop_must_start_with_thinking_when_thinking_has_a_budget() -> None:
    demanding = replace(STRICT, thinking_required=True)
    bare: list[Message] = [user(), answer(Text("hm"), call()), results(ONE)]
    assert broken(bare, WireFormat.ANTHROPIC, demanding) == {Rule.THINKING_MISSING}
    assert broken([*bare, user("and?")], WireFormat.ANTHROPIC, demanding) == set()
    thoughtful: list[Message] = [user(), answer(thinking(), call()), results(ONE)]
    assert broken(thoughtful, WireFormat.ANTHROPIC, demanding) == set()


def test_the_form_of_ids_the_tools_and_own_arguments_can_be_relaxed() -> None:
    messages: list[Message] = [user(), answer(call("call_1", name="leap", arguments="oops")), results("call_1")]
    relaxed = Strictness(call_id=ANY_CALL_ID, allowed_arguments={"oops"})
    assert broken(messages, WireFormat.OPENAI_CHAT, relaxed) == set()


def test_a_violation_says_where_and_what() -> None:
    (found,) = validate([user(), user(" ")], wire_format=WireFormat.ANTHROPIC)
    assert (found.at, str(found)) == (1, "messages[1]: text of white space only: ' '")


ANY_BLOCK = (
    st.builds(Text, st.text(max_size=5))
    | st.builds(call, st.sampled_from([ONE, TWO, ""]), arguments=st.sampled_from(["{}", "[]", ""]))
    | st.builds(thinking, st.text(max_size=3), origin=st.sampled_from([ORIGIN, None]))
)
ANY_MESSAGE = (
    st.builds(user, st.text(max_size=5))
    | st.lists(ANY_BLOCK, max_size=3).map(lambda blocks: answer(*blocks))
    | st.lists(st.sampled_from([ONE, TWO, ""]), max_size=3).map(lambda ids: results(*ids))
)


@given(st.lists(ANY_MESSAGE, max_size=6), st.sampled_from(list(WireFormat)))
def test_any_conversation_gets_the_same_verdict_twice_and_what_passes_has_every_pair(
    messages: list[Message], wire_format: WireFormat
) -> None:
    found = validate(messages, wire_format=wire_format, strictness=STRICT)
    assert found == validate(messages, wire_format=wire_format, strictness=STRICT)
    if found:
        return
    calls = [block.call_id for message in messages if isinstance(message, AssistantMessage) for block in message.calls]
    answered = [r.call_id for message in messages if isinstance(message, ToolMessage) for r in message.results]
    assert calls == answered
