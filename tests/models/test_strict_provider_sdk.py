"""The strict provider is what the official SDKs take it for, through pydantic-ai's own layer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelRateLimitError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from tests.models.direct import direct, renamed, results, user
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.rules import ANY_CALL_ID, Rule
from tests.strictprovider.script import (
    Answer,
    Call,
    Fault,
    ModelRequest,
    Ping,
    Reply,
    Say,
    ServerTool,
    Stop,
    StreamError,
    Think,
    empty_stream,
    html,
    http_error,
    out_of_credit,
    refuse,
    say,
    too_long,
)
from tests.strictprovider.server import Policy, StrictProvider

in_every_format = pytest.mark.parametrize("wire_format", list(WireFormat))
signed_formats = pytest.mark.parametrize("wire_format", [WireFormat.OPENAI_RESPONSES, WireFormat.ANTHROPIC])
IDS = ("AAAAAAAA1", "AAAAAAAA2")


def weather_script(*first: Say | Think) -> Callable[[ModelRequest], Reply]:
    """Two calls, then a sentence made of their results."""

    def script(request: ModelRequest) -> Reply:
        if request.tool_results:
            return say("; ".join(f"{result.call_id}={result.text}" for result in request.tool_results))
        return Answer((*first, Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"})))

    return script


async def one_answer(wire_format: WireFormat, reply: Reply) -> ModelResponse:
    async with StrictProvider(lambda _: reply) as provider, direct(provider, wire_format) as model:
        return await model.ask(user("hi"))


@in_every_format
async def test_text_arrives_whole_with_its_usage(wire_format: WireFormat) -> None:
    answer = await one_answer(wire_format, say("Hello there.", pieces=5))
    assert (answer.text, answer.finish_reason, answer.state) == ("Hello there.", "stop", "complete")
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


@in_every_format
async def test_calls_go_out_and_their_results_come_back_under_our_ids(wire_format: WireFormat) -> None:
    async with StrictProvider(weather_script()) as provider, direct(provider, wire_format) as model:
        first = renamed(await model.ask(user("weather?")), *IDS)
        assert [call.args_as_dict() for call in first.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]
        second = await model.ask(user("weather?"), first, results(first, ["rain", "sun"]))
    assert second.text == "AAAAAAAA1=rain; AAAAAAAA2=sun"
    assert provider.violations == []


@in_every_format
async def test_thinking_comes_back_signed_and_is_accepted(wire_format: WireFormat) -> None:
    script = weather_script(Think("They want the weather."), Say("Let me see."))
    async with StrictProvider(script) as provider, direct(provider, wire_format) as model:
        first = renamed(await model.ask(user("weather?")), *IDS)
        assert first.thinking == "They want the weather."
        second = await model.ask(user("weather?"), first, results(first, ["rain", "sun"]))
    assert second.text == "AAAAAAAA1=rain; AAAAAAAA2=sun"
    assert provider.violations == []


@in_every_format
async def test_thinking_of_another_model_is_refused(wire_format: WireFormat) -> None:
    """F34."""
    other = {
        WireFormat.OPENAI_CHAT: "openai-chat:gpt-5",
        WireFormat.OPENAI_RESPONSES: "openai:gpt-5",
        WireFormat.ANTHROPIC: "anthropic:claude-opus-5-5",
    }[wire_format]
    async with StrictProvider(weather_script(Think("Hm."))) as provider:
        async with direct(provider, wire_format) as model:
            first = renamed(await model.ask(user("weather?")), *IDS)
        async with direct(provider, wire_format, name=other) as model:
            with pytest.raises(ModelHTTPError) as refused:
                await model.ask(user("weather?"), first, results(first, ["rain", "sun"]))
    assert refused.value.status_code == 400
    assert {violation.rule for violation in provider.violations} == {Rule.THINKING_FOREIGN}


@signed_formats
async def test_altered_thinking_is_refused(wire_format: WireFormat) -> None:
    """F34."""
    async with StrictProvider(weather_script(Think("Hm."))) as provider, direct(provider, wire_format) as model:
        first = renamed(await model.ask(user("weather?")), *IDS)
        parts = [replace(part, content="Ha.") if isinstance(part, ThinkingPart) else part for part in first.parts]
        with pytest.raises(ModelHTTPError):
            await model.ask(user("weather?"), replace(first, parts=parts), results(first, ["rain", "sun"]))
    assert {violation.rule for violation in provider.violations} == {Rule.THINKING_FOREIGN}


async def test_anthropic_thinking_without_its_signature_arrives_as_text_and_is_refused() -> None:
    """F34."""
    async with (
        StrictProvider(weather_script(Think("Hm."))) as provider,
        direct(provider, WireFormat.ANTHROPIC) as model,
    ):
        first = renamed(await model.ask(user("weather?")), *IDS)
        parts = [replace(part, signature=None) if isinstance(part, ThinkingPart) else part for part in first.parts]
        with pytest.raises(ModelHTTPError):
            await model.ask(user("weather?"), replace(first, parts=parts), results(first, ["rain", "sun"]))
    assert Rule.THINKING_AS_TEXT in {violation.rule for violation in provider.violations}


async def test_a_call_without_the_reasoning_item_it_came_with_is_refused() -> None:
    """F34."""
    async with (
        StrictProvider(weather_script(Think("Hm."))) as provider,
        direct(provider, WireFormat.OPENAI_RESPONSES) as model,
    ):
        first = renamed(await model.ask(user("weather?")), *IDS)
        bare = replace(first, parts=[part for part in first.parts if not isinstance(part, ThinkingPart)])
        with pytest.raises(ModelHTTPError):
            await model.ask(user("weather?"), bare, results(first, ["rain", "sun"]))
        assert {violation.rule for violation in provider.violations} == {Rule.WITHOUT_REASONING_ITEM}
        cleared = [replace(part, id=None) if isinstance(part, ToolCallPart) else part for part in bare.parts]
        second = await model.ask(user("weather?"), replace(bare, parts=cleared), results(first, ["rain", "sun"]))
    assert second.finish_reason == "stop"


async def test_a_paused_answer_may_stand_last_and_only_it() -> None:
    def script(request: ModelRequest) -> Reply:
        if request.answers:
            return say("found it")
        return Answer((Say("searching"), ServerTool("oslo", finished=False)), Stop.PAUSED)

    async with StrictProvider(script) as provider, direct(provider, WireFormat.ANTHROPIC) as model:
        paused = await model.ask(user("search"))
        assert (paused.state, paused.finish_reason) == ("suspended", None)
        assert (await model.ask(user("search"), paused)).text == "found it"
        with pytest.raises(ModelHTTPError):
            await model.ask(user("search"), replace(paused, parts=[TextPart("something else")]))
    assert [violation.rule for violation in provider.violations] == [Rule.LAST_IS_ASSISTANT]


@in_every_format
@pytest.mark.parametrize("after", [None, "Well, "])
async def test_a_refusal_arrives_with_the_providers_words(wire_format: WireFormat, after: str | None) -> None:
    """F28."""
    answer = await one_answer(wire_format, refuse("I will not help.", after=after))
    assert answer.finish_reason == "content_filter"
    assert (answer.provider_details or {})["refusal"] == "I will not help."
    assert answer.text == after


@in_every_format
async def test_a_content_filter_without_words_is_a_refusal_too(wire_format: WireFormat) -> None:
    """F28."""
    answer = await one_answer(wire_format, Answer((), Stop.REFUSED))
    assert (answer.finish_reason, answer.parts) == ("content_filter", [])


@in_every_format
async def test_an_answer_cut_by_length_says_so(wire_format: WireFormat) -> None:
    """F29."""
    answer = await one_answer(wire_format, say("Once upon", stop=Stop.LENGTH))
    assert (answer.text, answer.finish_reason) == ("Once upon", "length")


@in_every_format
async def test_an_empty_answer_is_a_normal_end_without_parts(wire_format: WireFormat) -> None:
    """F7."""
    answer = await one_answer(wire_format, Answer())
    assert (answer.parts, answer.finish_reason) == ([], "stop")


@in_every_format
async def test_a_stream_that_ends_without_its_marker_names_no_reason_of_the_provider(wire_format: WireFormat) -> None:
    """F12: pydantic-ai may call it complete and even `stop`; only the provider's own word is missing in each format."""
    answer = await one_answer(wire_format, Answer((Say("Hello"), Fault.END)))
    assert answer.text == "Hello"
    assert "finish_reason" not in (answer.provider_details or {})


@in_every_format
async def test_half_a_call_followed_by_an_error_raises(wire_format: WireFormat) -> None:
    """F6."""
    with pytest.raises(ModelOverloadedError) as raised:
        await one_answer(wire_format, Answer((Call("weather", {"city": "Oslo"}, half=True), StreamError())))
    assert raised.value.in_stream


@in_every_format
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CLOSE])
async def test_a_broken_connection_raises(wire_format: WireFormat, fault: Fault) -> None:
    with pytest.raises(ModelConnectionError):
        await one_answer(wire_format, Answer((Say("Hello"), fault)))


@in_every_format
async def test_an_event_that_is_no_json_raises(wire_format: WireFormat) -> None:
    with pytest.raises(ModelAPIError):
        await one_answer(wire_format, Answer((Say("Hello"), Fault.MALFORMED)))


@in_every_format
@pytest.mark.parametrize("reply", [html(), empty_stream()])
async def test_a_body_without_events_raises(wire_format: WireFormat, reply: Reply) -> None:
    with pytest.raises(UnexpectedModelBehavior):
        await one_answer(wire_format, reply)


@in_every_format
async def test_statuses_and_their_headers_arrive(wire_format: WireFormat) -> None:
    with pytest.raises(ModelRateLimitError) as limited:
        await one_answer(wire_format, http_error(429, retry_after="7"))
    assert isinstance(limited.value, ModelHTTPError)
    assert limited.value.headers is not None
    assert limited.value.headers["retry-after"] == "7"
    with pytest.raises(ModelContextWindowExceededError):
        await one_answer(wire_format, too_long(wire_format))
    with pytest.raises(ModelHTTPError, match=r"credit|quota"):
        await one_answer(wire_format, out_of_credit(wire_format))


@in_every_format
async def test_a_prefix_that_an_earlier_request_had_is_reported_as_cached(wire_format: WireFormat) -> None:
    question = "weather? " * 50
    async with StrictProvider(weather_script()) as provider, direct(provider, wire_format) as model:
        first = await model.ask(user(question), cache=True)
        answer = renamed(first, *IDS)
        second = await model.ask(user(question), answer, results(answer, ["rain", "sun"]), cache=True)
        other = await model.ask(user("something else"), cache=True)
    assert first.usage.cache_read_tokens == 0
    assert second.usage.cache_read_tokens > 100
    assert other.usage.cache_read_tokens < second.usage.cache_read_tokens
    assert second.usage.input_tokens > second.usage.cache_read_tokens


async def test_anthropic_caches_nothing_without_a_mark() -> None:
    async with StrictProvider(weather_script()) as provider, direct(provider, WireFormat.ANTHROPIC) as model:
        answer = renamed(await model.ask(user("weather?")), *IDS)
        second = await model.ask(user("weather?"), answer, results(answer, ["rain", "sun"]))
    assert second.usage.cache_read_tokens == 0


@in_every_format
async def test_pings_are_no_content_and_do_no_harm(wire_format: WireFormat) -> None:
    answer = await one_answer(wire_format, Answer((Ping(2), Say("Hello"), Ping(2, 0.001), Say(" there"))))
    assert answer.text == "Hello there"


@in_every_format
async def test_a_tool_that_the_model_invented_may_stay_in_the_history(wire_format: WireFormat) -> None:
    """F9."""
    script: dict[int, Reply] = {0: Answer((Call("does_not_exist", "oops"),)), 1: say("sorry")}
    async with (
        StrictProvider(lambda request: script[len(request.answers)]) as provider,
        direct(provider, wire_format) as model,
    ):
        first = renamed(await model.ask(user("hi")), *IDS)
        second = await model.ask(user("hi"), first, results(first, ["no such tool"]))
    assert second.text == "sorry"
    assert provider.violations == []


@in_every_format
async def test_the_providers_own_call_ids_are_refused_on_the_way_back(wire_format: WireFormat) -> None:
    async with StrictProvider(weather_script()) as provider, direct(provider, wire_format) as model:
        answer = await model.ask(user("weather?"))
        with pytest.raises(ModelHTTPError):
            await model.ask(user("weather?"), answer, results(answer, ["rain", "sun"]))
        assert {violation.rule for violation in provider.violations} == {Rule.CALL_ID_FORM}
    async with (
        StrictProvider(weather_script(), policy=Policy(call_id=ANY_CALL_ID)) as provider,
        direct(provider, wire_format) as model,
    ):
        answer = await model.ask(user("weather?"))
        await model.ask(user("weather?"), answer, results(answer, ["rain", "sun"]))
    assert provider.violations == []
