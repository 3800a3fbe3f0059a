"""What each part of a guard is for, one by one."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from agentrt.core.session import Crashed, Outcome, Released, ReleaseReason, SessionId
from agentrt.ports import Answer
from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import DONE, HireOwner, Owner, answer, hiring, make_due
from tests.postgres.stage import Stage, blocked, statement, until_waiting

Connect = Callable[[], Awaitable[asyncpg.Connection]]


async def test_a_session_lives_through_claim_answer_and_end(hire: HireOwner, stage: Stage) -> None:
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    assert (await owner.append(held, answer())).answer is Answer.WRITTEN
    assert (await owner.end(held)).answer is Answer.WRITTEN
    assert await stage.status(session) == "completed"
    assert await stage.send(session) == 6
    assert len(await stage.entries(session)) == 6


@pytest.mark.parametrize("ending", [None, DONE])
async def test_an_earlier_claim_of_the_same_worker_writes_nothing(
    hire: HireOwner, stage: Stage, ending: Outcome | None
) -> None:
    """Case 29. Owner and owner_writes fit again by accident: the token alone tells."""
    session = await stage.create()
    owner = await hire()
    early = await owner.take()
    await stage.call("release_session", session, {})
    await make_due(stage.connection, session)
    await stage.connection.execute("update agentrt.sessions set due = true")
    late = await owner.take()
    before = await stage.everything(session)

    write = early.write(answer(), ending=ending, planned_from=late.last_seq)
    send = owner.store.append if ending is None else owner.store.end
    assert [written.answer for written in await send(owner.id, [write])] == [Answer.LOST]

    assert await stage.everything(session) == before
    assert (await owner.append(late, answer())).answer is Answer.WRITTEN


@pytest.mark.parametrize("ending", [None, DONE])
async def test_a_write_that_meets_a_locked_session_is_busy(
    hire: HireOwner, stages: tuple[Stage, Stage], ending: Outcome | None
) -> None:
    """Case 72, case 30: it waits for nobody, and decides on nothing that somebody else may be changing."""
    client, stage = stages
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    write = held.write(answer(), ending=ending)
    send = owner.store.append if ending is None else owner.store.end
    async with client.connection.transaction():
        await client.send(session)
        assert [written.answer for written in await send(owner.id, [write])] == [Answer.BUSY]
    assert (await stage.types(session))[-1] == "user_message"


async def test_an_owner_that_waits_among_clients_in_a_deadlock_is_busy_and_lost_nothing(
    stage: Stage, connect: Connect, database_url: str
) -> None:
    """Case 73. It holds no row, but its place in the row's queue: a client behind it can close the circle."""
    first, second = await stage.create(), await stage.create()
    async with hiring(DatabaseOptions(url=database_url)) as hire:  # who looks before the circle is closed looks once
        await _wait_in_a_deadlock(await hire(), stage, connect, first=first, second=second)


async def _wait_in_a_deadlock(owner: Owner, stage: Stage, connect: Connect, *, first: UUID, second: UUID) -> None:
    held = {one.id: one for one in await owner.claim(2)}[SessionId(first)]
    a, b = Stage(await connect()), Stage(await connect())
    for client in (a, b):
        await client.connection.execute("set deadlock_timeout = '60 s'; begin")  # the owner looks first
    await a.send(first)
    await b.send(second)
    waiting = asyncio.create_task(owner.store.append(owner.id, [held.write(answer())], side=True))
    await until_waiting(stage.connection, 1)
    behind = asyncio.create_task(b.send(first))
    await until_waiting(stage.connection, 2)
    closing = asyncio.create_task(a.send(second))

    assert [written.answer for written in await waiting] == [Answer.BUSY]

    await stage.connection.execute("select pg_terminate_backend($1)", b.connection.get_server_pid())
    await closing
    await a.connection.execute("commit")
    with pytest.raises(asyncpg.PostgresError):
        await behind
    assert (await owner.append(held, answer())).answer is Answer.WRITTEN
    assert (await stage.types(first))[-2:] == ["user_message", "assistant_message"]


async def test_crash_releases_exhaust_the_attempts(hire: HireOwner, stage: Stage) -> None:
    """Case 21: the runner's own crashes are charged like those of its process."""
    session = await stage.create(max_attempts=2)
    owner = await hire()
    for status in ("queued", "failed"):
        await stage.connection.execute("update agentrt.sessions set due = true, ready_at = now()")
        await owner.end(await owner.take(), Crashed("boom"))
        assert await stage.status(session) == status


async def test_a_session_that_its_owner_ended_since_the_look_is_not_reaped(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 94: the token is still the old owner's, the status tells."""
    session = await stage.create()
    old, judge = await hire(), await hire()
    held = await old.take()
    await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", old.id)
    sweeping, holding = await connect(), await connect()
    await let_the_sweep_stop_before_it_locks(stage.connection)

    await holding.execute("select pg_advisory_lock(42)")
    sweep = asyncio.create_task(sweeping.fetchrow(statement("sweep"), judge.id, 500))
    await blocked(stage.connection, sweeping)
    assert (await old.end(held, Released(ReleaseReason.DRAIN))).answer is Answer.WRITTEN
    await holding.execute("select pg_advisory_unlock(42)")
    swept = await sweep

    assert swept is not None
    assert (swept["requeued"], swept["failed"]) == (0, 0)
    assert (await stage.types(session))[-1] == "session_released"
    assert (await judge.take()).id == session


async def let_the_sweep_stop_before_it_locks(connection: asyncpg.Connection) -> None:
    """It has read its candidates then, and waits for whoever holds the advisory lock 42."""
    await connection.execute(
        "create function public.wait(uuid) returns uuid language plpgsql volatile as "
        "'begin perform pg_advisory_xact_lock(42); return $1; end'"
    )
    source = await connection.fetchval(
        "select pg_get_functiondef('agentrt._sweep_orphans(uuid, integer)'::regprocedure)"
    )
    locking = "where s.id = orphan.id and s.fencing_token"
    assert locking in source
    await connection.execute(source.replace(locking, "where s.id = public.wait(orphan.id) and s.fencing_token"))
