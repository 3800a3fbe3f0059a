"""The fence: who does not own writes nothing, and nobody waits for somebody else's session."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from agentrt.core.session import Released, ReleaseReason
from agentrt.ports import Answer
from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import HireOwner, Owner, answer, create, expire_lease, hiring, may_judge
from tests.postgres.stage import HANGS_AFTER_SECONDS, Stage, until_waiting

Connect = Callable[[], Awaitable[asyncpg.Connection]]


# --- the fence ------------------------------------------------------------------------------------------------------


async def test_who_does_not_own_writes_nothing(hire: HireOwner, stage: Stage) -> None:
    """Case 29."""
    session = await stage.create()
    old, new = await hire("old"), await hire("new")
    held = await old.take()
    await old.end(held, Released(ReleaseReason.DRAIN))
    stale = await new.take()
    before = await stage.everything(session)

    late = [held.write(answer()), held.write(answer(), ending=Released(ReleaseReason.DRAIN))]
    held.owner_writes = 0
    late.append(held.write(answer()))

    assert [(await old.store.append(old.id, [write]))[0].answer for write in late] == [Answer.LOST] * 3
    assert (await old.store.append(old.id, [stale.write(answer())]))[0].answer is Answer.LOST  # the token is not enough
    assert await stage.everything(session) == before


async def test_only_the_lost_sessions_of_a_group_commit_are_refused(
    hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    """Case 17."""
    await create(connection, 50)
    owner = await hire()
    held = await owner.claim(50)
    for lost in held[10:13]:
        await stage.cancel(lost.id)

    written = await owner.append_all(held, answer())

    answers = [w.answer for w in written]
    assert answers == [Answer.WRITTEN] * 10 + [Answer.LOST] * 3 + [Answer.WRITTEN] * 37
    assert {len(await stage.entries(h.id)) for h in held[:10]} == {4}
    assert await stage.types(held[11].id) == ["session_created", "user_message", "session_claimed", "session_cancelled"]


async def test_a_locked_session_is_busy_and_the_other_ninety_nine_do_not_wait(
    hire: HireOwner, stages: tuple[Stage, Stage], connection: asyncpg.Connection
) -> None:
    """Case 72."""
    client, stage = stages
    await create(connection, 100)
    owner, judge = await hire(), await hire()
    held = await owner.claim(100)
    await may_judge(connection, judge.id)
    async with client.connection.transaction():
        await client.send(held[50].id)
        async with asyncio.timeout(HANGS_AFTER_SECONDS):  # who waits fails by its lock_timeout
            written = await owner.append_all(held, answer())
            await owner.renew()
            await judge.reaper.mark(judge.id)
            await judge.reaper.sweep(judge.id)
        assert [w.answer for w in written] == [Answer.WRITTEN] * 50 + [Answer.BUSY] + [Answer.WRITTEN] * 49

    assert (await owner.append(held[50], answer())).answer is Answer.WRITTEN
    assert (await stage.types(held[50].id))[-2:] == ["user_message", "assistant_message"]


async def test_the_side_connection_waits_for_a_locked_session_and_not_for_ever(
    hire: HireOwner, stages: tuple[Stage, Stage], database_url: str
) -> None:
    """Case 87."""
    client, stage = stages
    async with hiring(DatabaseOptions(url=database_url, lock_seconds=0.1)) as hire_hasty:
        session = await stage.create()
        owner = await hire_hasty()
        held = await owner.take()
        async with client.connection.transaction():
            await client.send(session)
            assert (await owner.store.append(owner.id, [held.write(answer())], side=True))[0].answer is Answer.BUSY
        assert (await owner.store.append(owner.id, [held.write(answer())], side=True))[0].answer is Answer.WRITTEN


async def test_a_session_that_was_deleted_is_busy_and_the_renewal_tells(hire: HireOwner, stage: Stage) -> None:
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    await stage.cancel(session)
    await stage.connection.execute("delete from agentrt.sessions where id = $1", session)

    assert (await owner.append(held, answer())).answer is Answer.BUSY
    assert (await owner.renew()).grants == ()


# --- reap against append --------------------------------------------------------------------------------------------


async def test_a_reap_that_comes_while_an_append_holds_the_row_takes_over_behind_it(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 16."""
    session = await stage.create()
    owner, judge = await hire(), await hire()
    held = await owner.take()
    await expire_lease(stage.connection, owner.id)
    await may_judge(stage.connection, judge.id)
    appending = Stage(await connect())

    async with appending.connection.transaction():
        assert await appending.append(session, {"type": "assistant_message", "data": {"content": []}}) == "written"
        assert list(await judge.reaper.mark(judge.id)) == [owner.id]
        assert (await judge.reaper.sweep(judge.id)).requeued == 0  # skipped, not waited for
    assert (await judge.reaper.sweep(judge.id)).requeued == 1
    taken = await judge.take()

    assert held.id == taken.id
    entries = await stage.entries(session)
    assert [(e.type, e.token) for e in entries[2:]] == [
        ("session_claimed", 1), ("assistant_message", 1), ("session_orphaned", 2), ("session_claimed", 3),
    ]  # fmt: skip


async def test_an_append_that_waits_for_a_reap_writes_nothing(
    hire_patient: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 16."""
    session = await stage.create()
    owner, judge = await hire_patient(), await hire_patient()
    held = await owner.take()
    await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", owner.id)
    reaping = await connect()

    async with reaping.transaction():
        assert await reaping.fetchval("select requeued from agentrt._sweep($1, 500)", judge.id) == 1
        skipping = await owner.store.append(owner.id, [held.write(answer())])
        waiting = asyncio.create_task(owner.store.append(owner.id, [held.write(answer())], side=True))
        await until_waiting(stage.connection)
    assert [skipping[0].answer, (await waiting)[0].answer] == [Answer.BUSY, Answer.LOST]
    assert (await stage.types(session))[-1] == "session_orphaned"


async def test_reaps_and_appends_that_race_leave_one_order_of_owners(hire: HireOwner, stage: Stage) -> None:
    """Case 16."""
    judge = await hire()
    session = await stage.create()
    await stage.connection.execute("update agentrt.sessions set max_attempts = 1000")
    owner = await hire()
    for attempt in range(100):
        owner = await owner.reborn()
        await stage.connection.execute(
            "update agentrt.sessions set ready_at = now(), due = true, takeovers = 0, attempt = 0"
        )
        held = await owner.take()

        async def reap(owner: Owner = owner, pause: int = attempt % 5) -> None:
            for _ in range(pause):
                await asyncio.sleep(0)
            await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", owner.id)
            await judge.reaper.sweep(judge.id)

        written, _ = await asyncio.gather(owner.append(held, answer()), reap())
        await judge.reaper.sweep(judge.id)
        late = await owner.append(held, answer())

        assert written.answer in (Answer.WRITTEN, Answer.LOST, Answer.BUSY)
        assert late.answer is Answer.LOST
        tail = [(e.type, e.token) for e in (await stage.entries(session))[-2:]]
        claim = ("assistant_message" if written.answer is Answer.WRITTEN else "session_claimed", 2 * attempt + 1)
        assert tail == [claim, ("session_orphaned", 2 * attempt + 2)]
    tokens = [entry.token for entry in await stage.entries(session)]
    assert tokens == sorted(tokens)


async def test_each_entry_of_a_session_that_changed_hands_bears_the_token_of_its_time(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 56."""
    session = await stage.create()
    owner = await hire()
    for _ in range(3):
        held = await owner.take()
        await owner.append(held, answer())
        await stage.send(session)
        await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", owner.id)
        owner = await owner.reborn()
        await owner.reaper.sweep(owner.id)
        await stage.send(session)
        await stage.connection.execute("update agentrt.sessions set due = true")

    entries = await stage.entries(session)
    once = ["session_claimed", "assistant_message", "user_message", "session_orphaned", "user_message"]
    assert [entry.type for entry in entries[2:]] == once * 3
    assert [entry.token for entry in entries] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6]
    assert len({entry.worker_id for entry in entries if entry.type == "assistant_message"}) == 3
