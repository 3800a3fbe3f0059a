"""Writes whose answer is lost, and the order of what is written at once."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.journal import (
    ToolStarted,
)
from agentrt.core.session import CallId
from agentrt.ports import Answer
from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import HireOwner, answer, hiring
from tests.postgres.proxy import proxied
from tests.postgres.stage import Stage, until_waiting

Connect = Callable[[], Awaitable[asyncpg.Connection]]


# --- lost answers ---------------------------------------------------------------------------------------------------


async def test_a_repeated_write_is_told_that_it_is_there_already_and_where(hire: HireOwner, stage: Stage) -> None:
    """Case 31."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    write = held.write(answer("one"), answer("two"))
    await owner.store.append(owner.id, [write])
    await stage.send(session)  # a client writes in between

    (again,) = await owner.store.append(owner.id, [write])

    assert (again.answer, again.last_seq) == (Answer.ALREADY, 5)
    assert (await stage.types(session))[3:] == ["assistant_message", "assistant_message", "user_message"]


async def test_of_two_blind_repeats_at_once_one_writes(hire: HireOwner, stage: Stage) -> None:
    """Case 31."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    for _ in range(100):
        write = held.write(answer())
        (first,), (second,) = await asyncio.gather(
            owner.store.append(owner.id, [write]), owner.store.append(owner.id, [write], side=True)
        )
        assert {first.answer, second.answer} in ({Answer.WRITTEN, Answer.ALREADY}, {Answer.WRITTEN, Answer.BUSY})
        held.note(first if first.answer is Answer.WRITTEN else second)
        assert first.answer is Answer.BUSY or first.last_seq == second.last_seq == held.last_seq
    assert len(await stage.entries(session)) == 103


async def test_a_write_whose_answer_is_lost_is_repeated_without_harm(
    hire: HireOwner, stage: Stage, database_url: str
) -> None:
    """Case 31."""
    session = await stage.create()
    async with proxied(database_url) as proxy, hiring(DatabaseOptions(url=proxy.url)) as hire_behind:
        owner = await hire_behind()
        held = await owner.take()
        await owner.append(held, answer("warm"))
        write = held.write(answer("lost"))
        proxy.deaf = True
        appending = asyncio.create_task(owner.store.append(owner.id, [write]))
        while (await stage.head(session))["owner_writes"] != 2:
            pass
        await proxy.cut()
        with pytest.raises(DatabaseUnavailable):
            await appending

        (again,) = await owner.store.append(owner.id, [write])

    assert (again.answer, again.last_seq) == (Answer.ALREADY, 5)
    assert len(await stage.entries(session)) == 5


async def test_a_write_that_dies_before_its_commit_is_written_once_when_repeated(
    hire_patient: HireOwner, stages: tuple[Stage, Stage], connection: asyncpg.Connection
) -> None:
    """Case 31."""
    client, stage = stages
    session = await stage.create()
    owner = await hire_patient()
    held = await owner.take()
    write = held.write(answer())
    async with client.connection.transaction():
        await client.send(session)
        waiting = asyncio.create_task(owner.store.append(owner.id, [write], side=True))
        [pid] = await until_waiting(connection)
        await connection.execute("select pg_terminate_backend($1)", pid)
        with pytest.raises(DatabaseUnavailable):
            await waiting
    assert [e.type for e in await stage.entries(session)][3:] == ["user_message"]

    assert (await owner.store.append(owner.id, [write], side=True))[0].answer is Answer.WRITTEN
    assert [e.type for e in await stage.entries(session)][3:] == ["user_message", "assistant_message"]


async def test_a_lost_owner_finds_out_whether_its_last_write_had_been_committed(hire: HireOwner, stage: Stage) -> None:
    """Case 31."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    await owner.append(held, answer())
    await stage.cancel(session)

    assert (await owner.store.append(owner.id, [held.write(answer())]))[0].answer is Answer.LOST
    assert await owner.store.wrote(held.id, "w:1:0")
    assert not await owner.store.wrote(held.id, "w:1:1")


# --- order and atomicity --------------------------------------------------------------------------------------------


async def test_an_owner_and_clients_that_write_at_once_leave_no_gap_and_no_duplicate(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 53."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    clients = [Stage(await connect()) for _ in range(4)]

    async def write_as_owner() -> int:
        written = 0
        while written < 100:
            outcome = await owner.append(held, answer(), ToolStarted(CallId("000000000"), "look"))
            written += outcome.answer is Answer.WRITTEN
        return 2 * written

    async def write_as_client(client: Stage) -> int:
        seqs = [await client.send(session) for _ in range(50)]
        assert seqs == sorted(set(seqs))
        return len(seqs)

    counts = await asyncio.gather(write_as_owner(), *map(write_as_client, clients))

    entries = await stage.entries(session)  # gapless from 1: the stage says so
    assert len(entries) == 3 + sum(counts)
    times = await stage.connection.fetch(
        "select created_at from agentrt.journal where session_id = $1 order by seq", session
    )
    assert [row[0] for row in times] == sorted(row[0] for row in times)


async def test_what_was_rolled_back_or_terminated_leaves_neither_seq_nor_row(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 54."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    before = await stage.everything(session)
    dying = Stage(await connect())
    transaction = dying.connection.transaction()
    await transaction.start()
    assert await dying.append(session, {"type": "assistant_message", "data": {"content": []}}) == "written"
    await transaction.rollback()
    assert await stage.everything(session) == before

    await dying.connection.execute("begin")
    assert await dying.append(session, {"type": "assistant_message", "data": {"content": []}}) == "written"
    await stage.connection.execute("select pg_terminate_backend($1)", dying.connection.get_server_pid())
    while (await owner.append(held, answer())).answer is Answer.BUSY:
        pass

    assert (await stage.types(session))[3:] == ["assistant_message"]
