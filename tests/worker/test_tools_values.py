"""What tools are given and what they return: values that are no values yet, that never end, that cannot be shown."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pydantic
import pytest

from agentrt.agents import Done, ToolContext, ToolError, tool
from agentrt.settings import Settings
from agentrt.testing import Call, local_worker
from agentrt.worker.wording import result_text
from tests.worker.scenes import agent_of, calls_once, head, results, soon

pytestmark = pytest.mark.one_server


async def inner() -> str:
    return "what came of it"


def future() -> Any:
    done = asyncio.get_running_loop().create_future()
    done.set_result("what came of it")
    return done


def failing() -> Iterator[int]:
    yield 1
    raise ToolError("the second page is missing")


async def pages() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("value", "end"),
    [
        (inner, ("ok", "what came of it")),
        (lambda: map(str, [1, 2]), ("ok", '["1","2"]')),
        (failing, ("error", "the second page is missing")),
        (pages, ("error", "TypeError: it returned async_generator, which is no value: return what comes of it")),
    ],
    ids=["awaitable", "iterator", "generator that fails", "async generator"],
)
async def test_what_a_tool_returns_unfinished_is_finished_or_an_error(database_url, value, end, plain):
    """A coroutine that nobody awaited was no effect, and a generator that raises has failed."""

    @tool("gives", effect="read")
    async def gives() -> object:
        """Give."""
        return value()

    @tool("gives", effect="read")
    def gives_plainly() -> object:
        """Give."""
        return value()

    agent = agent_of(gives_plainly if plain else gives, model=calls_once(Call("gives")))
    async with local_worker(database_url, agent) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert await results(worker, session_id) == [end]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_future_that_an_async_tool_returns_is_awaited(database_url):
    @tool(effect="read")
    async def gives() -> object:
        """Give."""
        return future()

    async with local_worker(database_url, agent_of(gives, model=calls_once(Call("gives")))) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert await results(worker, session_id) == [("ok", "what came of it")]


async def test_of_values_without_end_as_many_are_read_as_a_result_may_hold(database_url):
    counted = itertools.count()

    @tool(effect="read")
    async def counts() -> object:
        """Count."""
        return counted

    settings = Settings(database_url=database_url, tool_result_max_bytes=1024)
    agent = agent_of(counts, model=calls_once(Call("counts")))
    async with local_worker(database_url, agent, settings=settings) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        [(outcome, text)] = await results(worker, session_id)
        assert (outcome, text[:7]) == ("ok", "[0,1,2,")
        assert len(text) <= 1024
        assert next(counted) == 1024


class Exits(pydantic.BaseModel):
    @pydantic.computed_field
    def total(self) -> int:
        raise SystemExit(3)

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def test_a_value_that_would_end_the_worker_when_it_is_shown_has_a_text():
    assert result_text(Exits()) == "(a result of type Exits, which cannot be shown)"
    assert result_text([Exits()]) == "(a result of type list, which cannot be shown)"


async def test_a_tool_that_fails_without_words_says_so(database_url):
    @tool(effect="once")
    async def fails() -> str:
        """Fail."""
        raise ToolError

    async with local_worker(database_url, agent_of(fails, model=calls_once(Call("fails")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("error", "It failed, and gave no words.")]


# --- arguments --------------------------------------------------------------------------------------------------------


async def test_each_execution_gets_arguments_that_no_other_has_changed(database_url):
    """F26: after a conflict, and in ``reconcile``."""
    seen: list[tuple[str, list[int]]] = []

    @tool(effect="transactional")
    async def conflicts(ctx: ToolContext, numbers: list[int]) -> str:
        """Be undone once."""
        seen.append(("conflicts", numbers.copy()))
        numbers.append(99)
        if len(seen) == 1:
            await ctx.connection.execute("do $$ begin raise exception 'x' using errcode = '40001'; end $$")
        return "written"

    async def ask(ctx: ToolContext, numbers: list[int]) -> Done:
        seen.append(("ask", numbers.copy()))
        return Done("it did")

    @tool(effect="once", reconcile=ask, sequential=True)
    async def breaks(numbers: list[int]) -> str:
        """Break."""
        numbers.append(99)
        raise OSError("reset")

    @tool(effect="read")
    async def appends(numbers: list[int] = []) -> str:  # noqa: B006 - just that
        """Append."""
        numbers.append(99)
        return str(numbers)

    calls = [Call("conflicts", {"numbers": [1]}), Call("breaks", {"numbers": [1]}), Call("appends"), Call("appends")]
    async with local_worker(database_url, agent_of(conflicts, breaks, appends, model=calls_once(*calls))) as worker:
        session_id = await soon(worker.ask("a", "begin"))
        assert await results(worker, session_id) == [
            ("ok", "written"),
            ("ok", "it did"),
            ("ok", "[99]"),
            ("ok", "[99]"),
        ]
        assert seen == [("conflicts", [1]), ("conflicts", [1]), ("ask", [1])]
