"""The model that is a function."""

import pytest

from agentrt.core.content import Text, Thinking, ToolCall
from agentrt.core.journal import StopReason, Usage
from agentrt.core.messages import ModelOutput, Result, ToolResults, UserInput
from agentrt.core.session import CallId
from agentrt.ports import Model, ModelAnswer, ModelError, ModelErrorClass, ModelRequest
from agentrt.testing import Call, Conversation, Reply, ScriptedModel

MESSAGES = (
    UserInput((Text("first"),)),
    ModelOutput((Text("let me see"), ToolCall("look", "{}", CallId("a")))),
    ToolResults((Result(CallId("a"), "look", "seen"),)),
    UserInput((Text("second "), Text("message"))),
)


async def ask(model: Model, *messages: UserInput) -> tuple[ModelAnswer, list[str]]:
    heard: list[str] = []
    answer = await model.request(ModelRequest(instructions="", messages=messages or MESSAGES), heard.append)
    return answer, heard


async def test_a_script_sees_the_conversation():
    seen: list[Conversation] = []

    def script(conversation: Conversation) -> str:
        seen.append(conversation)
        return "ok"

    await ask(ScriptedModel(script))
    [conversation] = seen
    assert conversation.turn == 1
    assert conversation.user_texts == ("first", "second message")
    assert conversation.last_user_text == "second message"
    assert conversation.answers == ("let me see",)
    assert [result.content for result in conversation.results] == ["seen"]
    assert conversation.last_results == conversation.results
    assert Conversation(ModelRequest(instructions="", messages=())).last_user_text == ""


@pytest.mark.parametrize(
    ("scripted", "content", "reason"),
    [
        ("text", (Text("text"),), "stop"),
        (Call("t", {"ü": 1}), (ToolCall("t", '{"ü": 1}'),), "tool_calls"),
        ([Call("t", "{bad"), Call("u")], (ToolCall("t", "{bad"), ToolCall("u", "")), "tool_calls"),
        (Reply(thinking="hm", text="so"), (Thinking("hm"), Text("so")), "stop"),
        (Reply(text="so", stop_reason=StopReason.LENGTH), (Text("so"),), "length"),
        (Reply(), (), "stop"),
        (Reply(text=" \n"), (Text(" \n"),), "stop"),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
async def test_what_a_script_returns_becomes_an_answer(scripted, content, reason, later):
    async def script_later(conversation: Conversation):
        return scripted

    answer, heard = await ask(ScriptedModel(script_later if later else lambda conversation: scripted))
    assert (answer.content, answer.stop_reason) == (content, reason)
    assert (
        "".join(heard) == "".join(block.text for block in content if isinstance(block, Text)).rstrip() or not heard[1:]
    )


async def test_text_is_streamed_in_pieces_that_add_up():
    _, heard = await ask(ScriptedModel(lambda conversation: "one two\n  three", piece_seconds=0.001))
    assert heard == ["one", " two", "\n  three"]


async def test_an_error_comes_after_the_text_that_was_streamed():
    error = ModelError(ModelErrorClass.TRANSIENT, "cut")
    heard: list[str] = []
    model = ScriptedModel(lambda conversation: Reply(text="so far", error=error))
    with pytest.raises(ModelError) as caught:
        await model.request(ModelRequest(instructions="", messages=MESSAGES), heard.append)
    assert caught.value is error
    assert "".join(heard) == "so far"


async def test_usage_is_counted_in_words_unless_it_is_given():
    answer, _ = await ask(ScriptedModel(lambda conversation: "one two three"))
    assert answer.usage == Usage(7, 3)
    answer, _ = await ask(ScriptedModel(lambda conversation: Reply(text="x", usage=Usage(1, 2), cost=0.5)))
    assert (answer.usage, answer.cost) == (Usage(1, 2), 0.5)


async def test_answers_bear_the_models_identity():
    model = ScriptedModel(lambda conversation: Reply(text="x", provider={"signature": "s"}), name="tiny")
    answer, _ = await ask(model)
    assert answer.model == "scripted:tiny"
    assert model.identity.signed(answer.provider)
    assert answer.provider is not None
    assert answer.provider["signature"] == "s"


@pytest.mark.parametrize("scripted", [None, 5, [], ["text"], {"text": "x"}])
async def test_anything_else_is_refused_with_what_a_script_may_return(scripted):
    with pytest.raises(TypeError, match="a script returns"):
        await ask(ScriptedModel(lambda conversation: scripted))
