"""Leases: renewed by one statement, judged by others, never by a clock outside the database."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import asyncpg
import pytest

from agentrt.ports import Answer, WorkerState
from agentrt.postgres.keeping import SWEEP_ROWS
from tests.postgres.owner import AGENT, HireOwner, Owner, answer, create, expire_lease, make_due, may_judge
from tests.postgres.stage import Stage, blocked, statement, until, until_waiting

Connect = Callable[[], Awaitable[asyncpg.Connection]]


async def silence(connection: asyncpg.Connection, worker: UUID, seconds: float) -> None:
    await connection.execute(
        "update agentrt.workers set renewed_at = clock_timestamp() - make_interval(secs => $2) where id = $1",
        worker,
        seconds,
    )


FREE = """
  select not exists (
    select from pg_locks
    where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
      and (classid::bigint << 32) | objid::bigint = $1
  )
"""
"""The server frees the lock of a connection that was closed when it comes to it."""


async def judge_of(hire: HireOwner, connection: asyncpg.Connection) -> Owner:
    judge = await hire("judge")
    await may_judge(connection, judge.id)
    return judge


# --- renewing ---------------------------------------------------------------------------------------------------------


async def test_a_renewal_lists_exactly_what_the_worker_owns(
    hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    """Case 11."""
    await create(connection, 6)
    owner, other = await hire(), await hire()
    mine, theirs = await owner.claim(4), await other.claim(2)
    await owner.append(mine[0], answer(), answer())
    await owner.end(mine[1])
    await stage.cancel(mine[2].id)

    renewal = await owner.renew()

    assert renewal.state is WorkerState.ALIVE
    granted = {g.session_id: (g.fencing_token, g.last_seq, g.owner_writes) for g in renewal.grants}
    assert granted == {mine[0].id: (1, 5, 1), mine[3].id: (1, 3, 0)}
    assert {g.session_id for g in (await other.renew()).grants} == {held.id for held in theirs}


async def test_an_expired_lease_that_nobody_took_is_renewed_and_still_writes(hire: HireOwner, stage: Stage) -> None:
    """Case 12."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    await expire_lease(stage.connection, owner.id)

    assert (await owner.append(held, answer())).answer is Answer.WRITTEN
    renewal = await owner.renew()

    assert (renewal.state, len(renewal.grants)) == (WorkerState.ALIVE, 1)
    assert await stage.connection.fetchval("select lease_expires_at > now() from agentrt.workers")


async def test_a_renewal_that_waited_for_its_row_reaches_as_far_ahead_as_any_other(
    hire_patient: HireOwner, connection: asyncpg.Connection, connect: Connect
) -> None:
    """Case 18."""
    owner = await hire_patient(lease_seconds=0.5)  # nobody judges it
    locking = await connect()
    async with locking.transaction():
        await locking.execute("select from agentrt.workers for update")
        renewing = asyncio.create_task(owner.renew())
        await until_waiting(connection)
        started = await connection.fetchval("select clock_timestamp()")
        await locking.execute("select pg_sleep(0.6)")  # longer than the lease
    await renewing
    expiry = await connection.fetchval("select lease_expires_at from agentrt.workers")
    assert (expiry - started).total_seconds() > 1.0


async def test_a_draining_worker_keeps_what_it_has(hire: HireOwner, stage: Stage) -> None:
    await stage.create()
    owner = await hire()
    await owner.take()
    renewal = await owner.renew(draining=True)
    assert (renewal.state, len(renewal.grants)) == (WorkerState.DRAINING, 1)
    assert (await owner.renew()).state is WorkerState.DRAINING
    assert (await owner.reaper.sweep(owner.id)).requeued == 0
    await owner.keeper.stop(owner.id)
    assert (await owner.renew()).state is WorkerState.STOPPED


async def test_a_registration_that_is_repeated_changes_nothing(hire: HireOwner, connection: asyncpg.Connection) -> None:
    owner = await hire()
    await owner.renew(draining=True)
    await owner.keeper.register(owner.info, None)
    assert await connection.fetchval("select state from agentrt.workers") == "draining"


# --- marking ----------------------------------------------------------------------------------------------------------


async def test_an_expired_worker_is_reaped_its_session_charged_and_all_it_writes_refused(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 13."""
    session = await stage.create()
    owner = await hire("anna")
    held = await owner.take()
    judge = await judge_of(hire, stage.connection)
    await expire_lease(stage.connection, owner.id)

    assert list(await judge.reaper.mark(judge.id)) == [owner.id]
    swept = await judge.reaper.sweep(judge.id)

    assert (swept.requeued, swept.failed, swept.more) == (1, 0, False)
    head = await stage.head(session)
    assert (head["status"], head["fencing_token"], head["attempt"], head["takeovers"]) == ("queued", 2, 2, 1)
    entry = (await stage.entries(session))[-1]
    assert (entry.type, entry.token, entry.worker_id) == ("session_orphaned", 2, judge.id)
    assert entry.data == {"worker_id": str(owner.id), "worker": "anna"}
    renewal = await owner.renew()
    assert (renewal.state, renewal.grants) == (WorkerState.DEAD, ())
    assert (await owner.append(held, answer())).answer is Answer.LOST
    assert (await owner.end(held)).answer is Answer.LOST


async def test_two_reapers_at_once_take_one_token_step_and_write_one_entry(hire: HireOwner, stage: Stage) -> None:
    """Case 15."""
    judges = [await judge_of(hire, stage.connection) for _ in range(2)]
    owner = await hire()
    for _ in range(25):
        owner = await owner.reborn()
        session = await stage.create()
        await owner.take()
        for judge in judges:
            await judge.renew()
        await expire_lease(stage.connection, owner.id)

        marked = await asyncio.gather(*(judge.reaper.mark(judge.id) for judge in judges))
        swept = await asyncio.gather(*(judge.reaper.sweep(judge.id) for judge in judges))

        assert sorted(map(len, marked)) == [0, 1]
        assert sorted(s.requeued for s in swept) == [0, 1]
        assert (await stage.head(session))["fencing_token"] == 2
        assert (await stage.types(session)).count("session_orphaned") == 1
        await stage.cancel(session)


async def test_a_worker_whose_connection_died_is_dead_after_two_silent_heartbeats_and_no_sooner(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 14."""
    owner = await (await hire()).reborn()
    judge = await judge_of(hire, stage.connection)
    key = await owner.keeper.lock_liveness()
    assert key is not None
    await stage.connection.execute(
        "update agentrt.workers set heartbeat_seconds = 600, liveness_key = $2 where id = $1", owner.id, key
    )

    await silence(stage.connection, owner.id, 1300)  # more than two heartbeats
    assert list(await judge.reaper.mark(judge.id)) == []  # slow, but its connection lives

    await owner.keeper.close()
    await until(stage.connection, FREE, key)
    await silence(stage.connection, owner.id, 1100)
    assert list(await judge.reaper.mark(judge.id)) == []  # it may be connecting anew

    await silence(stage.connection, owner.id, 1300)
    assert list(await judge.reaper.mark(judge.id)) == [owner.id]


async def test_without_a_liveness_lock_only_the_lease_counts(hire: HireOwner, stage: Stage) -> None:
    """Case 14."""
    owner = await (await hire()).reborn()
    judge = await judge_of(hire, stage.connection)
    await silence(stage.connection, owner.id, 14)
    assert list(await judge.reaper.mark(judge.id)) == []
    await expire_lease(stage.connection, owner.id)
    assert list(await judge.reaper.mark(judge.id)) == [owner.id]


async def test_two_judges_who_try_the_same_lock_do_not_take_each_other_for_the_worker(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    owner = await hire()
    await owner.keeper.close()
    await until(stage.connection, FREE, owner.liveness_key)
    judge = await judge_of(hire, stage.connection)
    await silence(stage.connection, owner.id, 5)
    other = await connect()
    async with other.transaction():
        assert await other.fetchval("select pg_try_advisory_xact_lock_shared($1)", owner.liveness_key)
        assert list(await judge.reaper.mark(judge.id)) == [owner.id]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("it has just begun to renew", "renewing_since = clock_timestamp()"),
        ("it does not renew itself", "renewed_at = clock_timestamp() - interval '3 h'"),
        ("it is dead", "state = 'dead'"),
    ],
)
async def test_a_worker_that_is_in_no_state_to_judge_reaps_nobody(
    hire: HireOwner, stage: Stage, why: str, change: str
) -> None:
    """Case 76."""
    owner = await hire()
    judge = await judge_of(hire, stage.connection)
    await stage.connection.execute(f"update agentrt.workers set {change} where id = $1", judge.id)
    await expire_lease(stage.connection, owner.id)
    assert list(await judge.reaper.mark(judge.id)) == [], why


async def test_a_gap_between_renewals_begins_the_judges_probation_anew(hire: HireOwner, stage: Stage) -> None:
    """Case 76."""
    owner = await hire()
    judge = await judge_of(hire, stage.connection)
    await expire_lease(stage.connection, owner.id)
    await stage.connection.execute(  # the database was away for more than two heartbeats
        "update agentrt.workers set renewed_at = renewed_at - interval '3 h' where id = $1", judge.id
    )
    await judge.renew()
    assert list(await judge.reaper.mark(judge.id)) == []

    await may_judge(stage.connection, judge.id)
    await judge.renew()
    assert list(await judge.reaper.mark(judge.id)) == [owner.id]


async def test_who_renews_in_time_is_never_marked_however_the_judge_races(hire: HireOwner, stage: Stage) -> None:
    judge = await judge_of(hire, stage.connection)
    owner = await hire()
    for _ in range(60):
        await expire_lease(stage.connection, owner.id)
        await judge.renew()
        marked, renewal = await asyncio.gather(judge.reaper.mark(judge.id), owner.renew())
        assert (renewal.state is WorkerState.DEAD) == (list(marked) == [owner.id])
        if marked:
            owner = await owner.reborn()


# --- sweeping ---------------------------------------------------------------------------------------------------------


async def test_a_restarted_process_is_a_new_worker_and_the_old_one_is_found_even_without_its_row(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 20."""
    first, second = await stage.create(), await stage.create()
    old = await hire("same")
    held = [await old.take(), await old.take()]
    new = await old.reborn()
    assert (new.id != old.id, new.info.name, new.info.pid) == (True, "same", old.info.pid)
    assert (await new.renew()).grants == ()

    await stage.connection.execute("delete from agentrt.workers where id = $1", old.id)
    assert (await new.reaper.sweep(new.id)).requeued == 2

    assert {h.id for h in held} == {first, second}
    assert (await stage.entries(first))[-1].data == {"worker_id": str(old.id), "worker": ""}
    assert len(await new.claim(5)) == 2


async def test_a_session_that_was_taken_by_force_cannot_be_written_by_its_old_owner(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 26."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()

    assert await stage.call("release_session", session, {}) == "queued"

    head = await stage.head(session)
    assert (head["fencing_token"], head["attempt"], head["takeovers"]) == (2, 1, 0)
    assert (await owner.append(held, answer())).answer is Answer.LOST
    assert (await owner.renew()).grants == ()


async def test_a_session_that_found_a_living_owner_since_the_look_is_not_reaped(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 94."""
    session = await stage.create()
    old, judge = await hire(), await hire()
    await old.take()
    await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", old.id)
    sweeping, holding = await connect(), await connect()
    # Lets the sweep look, and stop before it locks: it reads the candidate, then waits here for us.
    await stage.connection.execute(
        "create function public.wait(uuid) returns uuid language plpgsql volatile as "
        "'begin perform pg_advisory_xact_lock(42); return $1; end'"
    )
    source = await stage.connection.fetchval(
        "select pg_get_functiondef('agentrt._sweep_orphans(uuid, integer)'::regprocedure)"
    )
    locking = "where s.id = orphan.id and s.fencing_token"
    assert locking in source
    await stage.connection.execute(source.replace(locking, "where s.id = public.wait(orphan.id) and s.fencing_token"))

    await holding.execute("select pg_advisory_lock(42)")
    sweep = asyncio.create_task(sweeping.fetchrow(statement("sweep"), judge.id, 500))
    await blocked(stage.connection, sweeping)
    await stage.call("release_session", session, {})
    await make_due(stage.connection, session)
    await stage.connection.execute("update agentrt.sessions set due = true")
    young = await hire("registered after the look")
    held = await young.take()
    await holding.execute("select pg_advisory_unlock(42)")
    swept = await sweep

    assert swept is not None
    assert swept["requeued"] == 0
    assert (await young.append(held, answer())).answer is Answer.WRITTEN


async def test_everything_that_came_due_at_once_is_due_after_one_round_of_calls(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Case 95."""
    count = 10 * SWEEP_ROWS + 1
    await connection.execute(
        "insert into agentrt.sessions (id, agent, ready_at, due, last_seq) "
        "select gen_random_uuid(), $1, now() - interval '1 s', false, 2 from generate_series(1, $2)",
        AGENT,
        count,
    )
    owner = await hire()
    due = rounds = 0
    more = True
    while more:
        swept = await owner.reaper.sweep(owner.id)
        due, rounds, more = due + swept.due, rounds + 1, swept.more
    assert (due, rounds) == (count, 11)
    assert await connection.fetchval("select count(*) from agentrt.sessions where not due") == 0


async def test_a_dead_worker_with_many_sessions_is_swept_until_none_is_left(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "insert into agentrt.sessions (id, agent, status, lease_owner, lease_acquired_at, attempt, last_seq) "
        "select gen_random_uuid(), $1, 'running', $2, now(), 1, 3 from generate_series(1, $3)",
        AGENT,
        uuid4(),
        SWEEP_ROWS + 1,
    )
    owner = await hire()
    first, second = [await owner.reaper.sweep(owner.id) for _ in range(2)]
    assert (first.requeued, first.more, second.requeued, second.more) == (SWEEP_ROWS, True, 1, False)


async def test_expired_approvals_wake_the_session_that_waited_for_them(hire: HireOwner, stage: Stage) -> None:
    session, _ = await stage.with_approvals(2, expires_seconds=0.0)
    judge = await hire()

    swept = await judge.reaper.sweep(judge.id)

    assert swept.expired == 2
    assert await stage.approval_states(session) == ["expired", "expired"]
    assert await stage.status(session) == "queued"
    assert (await stage.types(session))[-3:] == ["approval_decided", "approval_decided", "session_woken"]


async def test_workers_that_ended_a_day_ago_and_followers_that_left_are_pruned(hire: HireOwner, stage: Stage) -> None:
    session = await stage.create()
    old, recent, judge = await hire(), await hire(), await hire()
    for worker in (old, recent):
        await worker.keeper.stop(worker.id)
    await stage.connection.execute(
        "update agentrt.workers set renewed_at = now() - interval '25 hours' where id = $1", old.id
    )
    await stage.connection.execute(
        "insert into agentrt.followers values ($1, gen_random_uuid(), now() - interval '1 s'), "
        "($1, gen_random_uuid(), now() + interval '1 minute')",
        session,
    )

    assert (await judge.reaper.sweep(judge.id)).pruned == 2

    rows = await stage.connection.fetch("select id from agentrt.workers")
    assert {row["id"] for row in rows} == {recent.id, judge.id}
    assert await stage.connection.fetchval("select count(*) from agentrt.followers") == 1
