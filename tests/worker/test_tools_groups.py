"""Tools that raise groups of exceptions, as ``asyncio.TaskGroup`` does: what is in a group decides how a call ended."""

import asyncio
import gc
from typing import Any

import pytest

from agentrt.agents import NotExecuted, ToolContext, ToolError, tool
from agentrt.core.journal import ApprovalRequested
from agentrt.testing import Call, local_worker
from agentrt.worker.wording import error_text
from tests.worker.scenes import agent_of, calls_once, found, head, results

pytestmark = pytest.mark.one_server

A, B, SHUT = ToolError("no such file: a"), ToolError("no such file: b"), NotExecuted("postgresql://u:geheim@h is shut")


@pytest.mark.parametrize(
    ("group", "end"),
    [
        (ExceptionGroup("one", [A]), ("error", "no such file: a")),
        (ExceptionGroup("nested", [A, ExceptionGroup("in", [B, A])]), ("error", "no such file: a\nno such file: b")),
        (ExceptionGroup("shut", [SHUT]), ("not_run", "Not executed: postgresql://[hidden]@h is shut")),
        (
            ExceptionGroup("both", [A, SHUT]),
            ("error", "no such file: a\nNot executed: postgresql://[hidden]@h is shut"),
        ),
        (ExceptionGroup("mixed", [A, OSError("reset")]), None),
        (BaseExceptionGroup("cancelled", [A, asyncio.CancelledError()]), None),
    ],
    ids=lambda value: value.message if isinstance(value, BaseExceptionGroup) else "",
)
async def test_a_group_is_a_known_end_only_when_all_that_is_in_it_is_one(database_url, group, end):
    """F15: the end of a ``once`` call is unknown unless everything in it says what it was."""

    @tool(effect="once")
    async def act() -> str:
        """Act."""
        raise group

    async with local_worker(database_url, agent_of(act, model=calls_once(Call("act")))) as worker:
        session_id = await worker.ask("a", "begin")
        [got] = await results(worker, session_id)
        assert got == end if end else got[0] == "unknown"
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert await found(worker, session_id, ApprovalRequested) == []


async def test_a_task_group_that_fails_tells_the_model_what_failed_in_it(database_url):
    async def look(name: str) -> None:
        raise FileNotFoundError(name)

    @tool(effect="read")
    async def search() -> str:
        """Search in two places."""
        async with asyncio.TaskGroup() as group:
            group.create_task(look("a"))
            group.create_task(look("b"))
        return ""

    async with local_worker(database_url, agent_of(search, model=calls_once(Call("search")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("error", "FileNotFoundError: a; FileNotFoundError: b")]


async def together(*coroutines: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("gathered", [asyncio.gather, together], ids=["gather", "task group"])
async def test_what_would_end_the_process_in_a_task_of_a_tool_is_an_error_of_the_tool(database_url, gathered, error):
    """Case 80: asyncio gives it to the loop, and the worker would end, whoever waits for that task."""

    async def exits() -> None:
        raise error

    async def waits() -> None:
        await asyncio.Event().wait()

    @tool(effect="read")
    async def search() -> str:
        """Search in two places at once."""
        await gathered(exits(), waits())
        return ""

    async with local_worker(database_url, agent_of(search, model=calls_once(Call("search")))) as worker:
        session_id = await worker.ask("a", "begin")
        [(outcome, text)] = await results(worker, session_id)
        assert (outcome, type(error).__name__ in text) == ("error", True)
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_a_task_of_a_tool_is_otherwise_as_any_other(database_url, recwarn):
    """Its name, its context, its cancellation before it began, and what is not a coroutine."""
    seen: list[str] = []

    async def begins() -> str:
        seen.append("begun")
        return "x"

    @tool(effect="read")
    async def starts() -> str:
        """Start tasks."""
        early = asyncio.create_task(begins(), name="early")
        early.cancel()
        late = asyncio.get_running_loop().create_task(begins(), name="late")
        await asyncio.wait({early, late})
        no_coroutine: Any = late
        with pytest.raises(TypeError, match="coroutine was expected"):
            await asyncio.create_task(no_coroutine)
        return f"{early.get_name()} {early.cancelled()} {late.get_name()} {late.result()}"

    async with local_worker(database_url, agent_of(starts, model=calls_once(Call("starts")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("ok", "early True late x")]
        gc.collect()
        assert (seen, [str(warning.message) for warning in recwarn]) == (["begun"], [])


def test_the_words_of_a_group_are_few_and_without_secrets():
    many = ExceptionGroup("many", [ValueError(f"{n} Bearer abcdef0123456789") for n in range(10_000)])
    words = error_text(many)
    assert words.startswith("ValueError: 0 Bearer [hidden]; ValueError: 1 ")
    assert len(words.encode()) <= 2_000
    deep: Exception = ToolError("at the bottom")
    for _ in range(5_000):
        deep = ExceptionGroup("deep", [deep])
    assert error_text(deep) == "ToolError: at the bottom"


async def test_a_conflict_inside_a_task_group_runs_a_transactional_tool_again(database_url, connection):
    await connection.execute("create table public.report (line text)")
    ran = []

    @tool(effect="transactional")
    async def write(ctx: ToolContext) -> str:
        """Write a row, and be undone once."""
        ran.append(True)
        await ctx.connection.execute("insert into public.report values ('x')")
        if len(ran) == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    ctx.connection.execute("do $$ begin raise exception 'x' using errcode = '40001'; end $$")
                )
        return "written"

    async with local_worker(database_url, agent_of(write, model=calls_once(Call("write")))) as worker:
        session_id = await worker.ask("a", "begin")
        assert await results(worker, session_id) == [("ok", "written")]
        assert len(ran) == 2
        assert await connection.fetchval("select count(*) from public.report") == 1
