"""What a call that gives no answer is mapped to, in each format: the class, the wait, the words, and what it burnt."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from agentrt.core.content import File, Image
from agentrt.ports import ModelError, ModelErrorClass, ModelLimits
from tests.models.adapters import asking, in_every_format, one_error, user
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.script import (
    Answer,
    Fault,
    Ping,
    Reply,
    Say,
    StreamError,
    Wait,
    empty_stream,
    html,
    http_error,
    out_of_credit,
    say,
    too_long,
)
from tests.strictprovider.server import Policy, StrictProvider

TRANSIENT, REJECTED = ModelErrorClass.TRANSIENT, ModelErrorClass.REJECTED
QUOTA, CONFIGURATION = ModelErrorClass.QUOTA, ModelErrorClass.CONFIGURATION


@in_every_format
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, TRANSIENT) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
        *((status, REJECTED) for status in (400, 413, 422)),
        *((status, CONFIGURATION) for status in (401, 403, 404)),
        (402, QUOTA),
    ],
)
async def test_a_status_is_of_one_class(wire_format: WireFormat, status: int, expected: ModelErrorClass) -> None:
    error = await one_error(wire_format, http_error(status, message="in the provider's words"))
    assert (error.error_class, error.status) == (expected, status)
    assert "in the provider's words" in error.message


@in_every_format
async def test_a_request_is_sent_once_whatever_the_answer(wire_format: WireFormat) -> None:
    async with StrictProvider(lambda _: http_error(503)) as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError):
            await asked.ask()
    assert len(provider.requests) == 1


@in_every_format
async def test_quota_and_the_context_window_are_told_from_the_statuses_that_they_share(
    wire_format: WireFormat,
) -> None:
    """F31."""
    assert (await one_error(wire_format, out_of_credit(wire_format))).error_class is QUOTA
    assert (await one_error(wire_format, too_long(wire_format))).error_class is REJECTED


@in_every_format
@pytest.mark.parametrize(
    ("header", "expected"),
    [("3600", 3600.0), ("0.5", 0.5), ("-5", None), ("abc", None), (None, None), ("999999999", 86_400.0)],
)
async def test_retry_after_is_read_by_our_own_rules(
    wire_format: WireFormat, header: str | None, expected: float | None
) -> None:
    """F13."""
    error = await one_error(wire_format, http_error(429, retry_after=header))
    assert (error.error_class, error.retry_after_seconds) == (TRANSIENT, expected)


async def test_retry_after_may_be_a_date() -> None:
    """F13."""
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    error = await one_error(WireFormat.OPENAI_CHAT, http_error(503, retry_after=at))
    assert error.retry_after_seconds is not None
    assert 60 < error.retry_after_seconds <= 100


@in_every_format
@pytest.mark.parametrize("kind", ["overloaded", "something nobody knows"])
async def test_an_error_inside_the_stream_is_transient(wire_format: WireFormat, kind: str) -> None:
    """F13."""
    error = await one_error(wire_format, Answer((Say("Hello"), StreamError(kind, "too many requests"))))
    assert error.error_class is TRANSIENT


@in_every_format
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CLOSE, Fault.MALFORMED])
async def test_a_broken_stream_is_transient(wire_format: WireFormat, fault: Fault) -> None:
    assert (await one_error(wire_format, Answer((Say("Hello"), fault)))).error_class is TRANSIENT


@in_every_format
async def test_an_empty_stream_is_transient(wire_format: WireFormat) -> None:
    assert (await one_error(wire_format, empty_stream())).error_class is TRANSIENT


@in_every_format
@pytest.mark.parametrize("status", [200, 404])
async def test_a_web_page_says_that_the_configuration_is_wrong(wire_format: WireFormat, status: int) -> None:
    error = await one_error(wire_format, html(status))
    assert error.error_class is CONFIGURATION
    assert "<" not in error.message
    if status == 200:
        assert "answered with a web page" in error.message
        assert "http://127.0.0.1" in error.message


@in_every_format
async def test_a_web_page_with_a_server_error_is_transient(wire_format: WireFormat) -> None:
    error = await one_error(wire_format, html(502))
    assert (error.error_class, error.message) == (TRANSIENT, "status 502")


async def test_nobody_there_is_transient() -> None:
    async with StrictProvider() as provider:
        pass
    async with asking(provider, WireFormat.OPENAI_CHAT) as asked:
        with pytest.raises(ModelError) as raised:
            await asked.ask()
    assert raised.value.error_class is TRANSIENT


@in_every_format
async def test_a_wrong_key_and_an_unknown_model_are_configuration(wire_format: WireFormat) -> None:
    async with StrictProvider(policy=Policy(keys={"another key"})) as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError) as refused:
            await asked.ask()
    async with StrictProvider(policy=Policy(models=set())) as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError) as unknown:
            await asked.ask()
    assert (refused.value.error_class, refused.value.status) == (CONFIGURATION, 401)
    assert (unknown.value.error_class, unknown.value.status) == (CONFIGURATION, 404)


@in_every_format
@pytest.mark.parametrize(
    ("reply", "limits"),
    [
        (Answer((Say("Hello"), Fault.SILENCE)), ModelLimits(idle_seconds=0.2)),
        (Answer((Ping(1000, 0.05),)), ModelLimits(first_event_seconds=0.2)),
        (Answer((Say("a" * 1000, 1000), Ping(1000, 0.05))), ModelLimits(call_seconds=0.3)),
    ],
    ids=["idle", "first event", "whole call"],
)
async def test_each_time_limit_ends_the_call(wire_format: WireFormat, reply: Reply, limits: ModelLimits) -> None:
    assert (await one_error(wire_format, reply, limits=limits)).error_class is TRANSIENT


@in_every_format
async def test_a_cancelled_call_closes_its_connection(wire_format: WireFormat) -> None:
    script = Answer((Say("Hello"), Wait("gate"), Say("there")))
    async with StrictProvider(lambda _: script) as provider, asking(provider, wire_format) as asked:
        call = asyncio.ensure_future(asked.ask())
        await provider.gate_reached("gate")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await provider.until(lambda: provider.requests[0].client_left)


async def test_a_cut_answer_says_what_it_burnt() -> None:
    """Anthropic tells the tokens of the request at the beginning of the stream."""
    error = await one_error(WireFormat.ANTHROPIC, Answer((Say("Hello"), Fault.RESET)))
    assert error.usage is not None
    assert error.usage.input_tokens > 0
    assert error.cost is not None
    assert error.cost > 0


@pytest.mark.parametrize(
    ("wire_format", "block"),
    [
        (WireFormat.OPENAI_CHAT, File(media_type="video/mp4", url="https://example.com/a.mp4")),
        (WireFormat.OPENAI_RESPONSES, File(media_type="video/mp4", base64="AAAA")),
        (WireFormat.ANTHROPIC, File(media_type="application/x-nothing", base64="AAAA")),
        (WireFormat.OPENAI_CHAT, File(media_type="application/pdf", url="http://127.0.0.1:1/a.pdf")),
    ],
)
async def test_content_that_a_provider_does_not_take_is_rejected_before_it_is_sent(
    wire_format: WireFormat, block: Image | File
) -> None:
    async with StrictProvider() as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError) as raised:
            await asked.ask(user("Look:", block))
    assert raised.value.error_class is REJECTED
    assert provider.requests == []


async def test_words_of_a_provider_are_one_line_and_not_too_long() -> None:
    error = await one_error(WireFormat.OPENAI_CHAT, http_error(400, message="so\n\nlong " + "x" * 5000))
    assert error.message.startswith("400 so long xxx")
    assert len(error.message) < 2100


@in_every_format
async def test_an_answer_after_an_error_is_whole(wire_format: WireFormat) -> None:
    def script(request: object) -> Reply:
        return http_error(503) if not len(provider.requests) > 1 else say("Hello")

    async with StrictProvider(script) as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError):
            await asked.ask()
        answer = await asked.ask()
    assert answer.stop_reason == "stop"
