"""The parts of running tools that need no database: threads, texts, the built-in question."""

import asyncio
import gc
import threading
import time

import pydantic
import pytest

from agentrt.agents import NotExecuted, ToolError
from agentrt.tools.ask_user import ask_user
from agentrt.worker.threads import ToolThreads
from agentrt.worker.wording import cut, error_text, result_text, without_secrets
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.scenes import soon

# --- threads ----------------------------------------------------------------------------------------------------------


async def test_a_thread_gives_its_result_or_its_exception():
    threads = ToolThreads()
    async with threads.thread() as start:
        assert await start(lambda: threading.current_thread().daemon) is True
    async with threads.thread() as start:
        with pytest.raises(ZeroDivisionError):
            await start(lambda: 1 // 0)
    async with threads.thread() as start:
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await start(lambda: (_ for _ in ()).throw(SystemExit(3)))


async def test_a_thread_that_was_given_up_counts_until_its_function_returns():
    threads = ToolThreads(1)
    release = threading.Event()
    async with threads.thread() as start:
        future = start(lambda: release.wait(HANGS_AFTER_SECONDS))
        future.cancel()
    assert threads.running == 1
    waiting = asyncio.ensure_future(_one(threads))
    await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert await soon(waiting) == "ran"
    assert threads.running == 0


async def _one(threads: ToolThreads) -> object:
    async with threads.thread() as start:
        return await start(lambda: "ran")


async def test_the_error_of_a_thread_that_was_given_up_is_nobodys():
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    threads = ToolThreads(1)
    release = threading.Event()
    async with threads.thread() as start:
        start(lambda: release.wait(HANGS_AFTER_SECONDS) and 1 // 0)
    release.set()
    assert await soon(_one(threads)) == "ran"
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(None)
    assert told == []


async def test_a_thread_that_was_not_used_is_free_again():
    threads = ToolThreads(1)
    for _ in range(3):
        async with threads.thread():
            pass
    assert await soon(_one(threads)) == "ran"


async def test_a_thread_that_cannot_be_started_is_an_error_and_takes_no_room(monkeypatch):
    threads = ToolThreads(1)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        async with threads.thread() as start:
            with pytest.raises(NotExecuted, match="can't start"):
                await start(lambda: "ran")
    assert threads.running == 0
    assert await soon(_one(threads)) == "ran"


# --- texts ------------------------------------------------------------------------------------------------------------


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize("value", [Odd(), {"a": Odd()}, [Odd()], {(1, 2): 3}, {"s": {"\ud800"}}])
def test_any_value_has_a_text(value):
    assert isinstance(result_text(value), str)
    assert result_text(value)


def test_a_value_that_contains_itself_has_a_text():
    circle: list[object] = []
    circle.append(circle)
    assert isinstance(result_text(circle), str)


@pytest.mark.parametrize("size", [10, 81, 100, 101, 102, 103, 200])
@pytest.mark.parametrize("text", ["x" * 300, "ü" * 150, "€" * 100, "😀" * 75])
def test_a_cut_text_keeps_whole_characters_and_the_limit(text, size):
    short = cut(text, size)
    assert len(short.encode()) <= max(size, 80)
    assert set(short) - set(text) <= set("\n[… 0123456789 of bytes left out …]")
    assert f"of {len(text.encode())} bytes left out" in short


def test_a_text_within_the_limit_is_the_same_object():
    text = "ü" * 50
    assert cut(text, 100) is text


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://user:pass@host/db", "postgresql://[hidden]@host/db"),
        ("amqp+ssl://token@host", "amqp+ssl://[hidden]@host"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [hidden]"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic [hidden]"),
        ("?api_key=12345&x=1", "?api_key=[hidden]&x=1"),
        ("sk-proj-ABCDEFGHIJKLMNOPQRST", "[hidden]"),
        ("my own words", "[hidden] words"),
        ("Unexpected token: <", "Unexpected token: <"),
        ("https://host/path?x=1 bearer of news", "https://host/path?x=1 bearer of news"),
        ("user@host.example", "user@host.example"),
        ("postgresql://u:hun/ter#2?@h/db", "postgresql://[hidden]@h/db"),
        ("http://host:8080/path?to=a@b", "http://host:8080/path?to=a@b"),
        ("connect(user='u', password='hun ter2', x=1)", "connect(user='u', password='[hidden]', x=1)"),
        ('{"user": "u", "password": "hun\\"ter2"}', '{"user": "u", "password": "[hidden]"}'),
        (r'"{\"password\": \"hunter2\"}"', r'"{\"password\": \"[hidden]\"}"'),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=[hidden] psql"),
        ("DB_PASSWORD: hunter2", "DB_PASSWORD: [hidden]"),
        ("client_secret=hunter2&x=1", "client_secret=[hidden]&x=1"),
        ("?token=hunter2", "?token=[hidden]"),
        ('{"token": "hunter2"}', '{"token": "[hidden]"}'),
        ("x-auth-token: hunter2", "x-auth-token: [hidden]"),
        ("x-api-key: hunter2hunter2", "x-api-key: [hidden]"),
        ("aws_secret_access_key = hunter2", "aws_secret_access_key = [hidden]"),
        ("Bearer hunter2", "Bearer [hidden]"),
        ("Bearer%20hunter2hunter2", "Bearer%20[hidden]"),
        ("max_tokens=100", "max_tokens=100"),
        ("no password was given", "no password was given"),
    ],
)
def test_secrets_are_taken_out_of_error_texts_and_nothing_else(text, hidden):
    assert without_secrets(text, ["my own", "abc"]) == hidden


def test_an_error_text_is_class_and_message_and_short():
    assert error_text(ValueError("x")) == "ValueError: x"
    assert error_text(ValueError()) == "ValueError"
    assert len(error_text(ValueError("x" * 100_000)).encode()) <= 2_000


@pytest.mark.parametrize(
    "bad", ["a.b-", "://", "://a:", "://:", "x:", "password=", 'token="', "bearer ", "bearer+", "sk-", "a@", '\\"', " "]
)
@pytest.mark.parametrize("secrets", [(), ("long-secret",)])
def test_the_search_for_secrets_takes_time_in_proportion_to_the_text(bad, secrets):
    """A search holds the loop and its heartbeat up. A quadratic one takes minutes of this text."""
    begun = time.thread_time()
    text = without_secrets(bad * (2_000_000 // len(bad)), secrets)
    error_text(ValueError(bad * 1_000_000))
    assert time.thread_time() - begun < 5
    assert len(text.encode()) <= 3 * 65_536 * len("[hidden]")


class Rough(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Words(str):
    __slots__ = ()

    def encode(self, *arguments: object) -> bytes:
        raise LookupError("no such encoding")

    def __str__(self) -> str:
        raise LookupError("no words")


class Computed(pydantic.BaseModel):
    @pydantic.computed_field
    def x(self) -> int:
        raise KeyError("missing")


def test_an_exception_without_a_message_has_a_text():
    assert error_text(Rough()) == "Rough: (its message cannot be shown: SystemExit)"
    assert error_text(ValueError(Words("x"))).startswith("ValueError: ")


def test_a_value_that_cannot_be_shown_has_a_text():
    assert cut(result_text(Words("words")), 100) == "words"
    assert result_text(Computed()) == "(a result of type Computed, which cannot be shown)"


# --- ask_user ---------------------------------------------------------------------------------------------------------


async def test_ask_user_shows_question_and_options_and_pauses():
    assert ask_user.pauses
    assert ask_user.parameters["required"] == ["question"]
    text = await ask_user("Which?", ["x", "y"])
    assert "Which?" in text
    assert "- x\n- y" in text


async def test_ask_user_refuses_a_blank_question():
    with pytest.raises(ToolError, match="blank"):
        await ask_user("  ")
