"""One row that cannot be swept, or many that somebody holds, stop neither the others nor the other parts of a sweep."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.postgres.keeping import SWEEP_ROWS
from tests.postgres.owner import AGENT, HireOwner, make_due
from tests.postgres.stage import Stage

Connect = Callable[[], Awaitable[asyncpg.Connection]]
LARGEST = 2**63 - 1


async def test_a_session_that_cannot_be_reaped_stops_nothing_and_is_told_when_nothing_else_is_left(
    hire: HireOwner, stage: Stage
) -> None:
    poisoned, innocent, scheduled = await stage.create(), await stage.create(), await stage.create(priority=-1)
    _, [approval] = await stage.with_approvals()
    judge, dead = await hire(), await hire()
    await dead.claim(2)
    await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", dead.id)
    await stage.connection.execute("update agentrt.sessions set fencing_token = $2 where id = $1", poisoned, LARGEST)
    await stage.connection.execute("update agentrt.sessions set due = false where id = $1", scheduled)
    await make_due(stage.connection, scheduled)
    await stage.connection.execute("update agentrt.approvals set expires_at = now() where id = $1", approval)

    swept = await judge.reaper.sweep(judge.id)

    assert (swept.requeued, swept.due, swept.expired, swept.more) == (1, 1, 1, False)
    assert await stage.status(innocent) == "queued"
    assert (await stage.head(scheduled))["due"]
    with pytest.raises(DatabaseUnavailable, match=str(poisoned)):
        await judge.reaper.sweep(judge.id)


async def test_a_session_that_cannot_come_due_leaves_the_others_to(hire: HireOwner, stage: Stage) -> None:
    poisoned, innocent = await stage.create(ready_at="2999-01-01"), await stage.create(ready_at="2999-01-01")
    await stage.connection.execute(f"alter table agentrt.sessions add check (id <> '{poisoned}' or not due)")
    judge = await hire()
    for session in (poisoned, innocent):
        await make_due(stage.connection, session)

    assert (await judge.reaper.sweep(judge.id)).due == 1

    assert (await judge.take()).id == innocent


async def test_an_approval_that_cannot_expire_leaves_the_others_to(hire: HireOwner, stage: Stage) -> None:
    poisoned, _ = await stage.with_approvals()
    innocent, _ = await stage.with_approvals()
    await stage.connection.execute("update agentrt.approvals set expires_at = now()")
    await stage.connection.execute("update agentrt.sessions set last_seq = $2 where id = $1", poisoned, LARGEST)
    judge = await hire()

    assert (await judge.reaper.sweep(judge.id)).expired == 1

    assert await stage.status(innocent) == "queued"


async def test_more_locked_sessions_than_one_sweep_takes_do_not_hide_the_others(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    gone, client = UUID(int=1), await connect()
    await stage.connection.execute(
        "insert into agentrt.sessions (id, agent, status, lease_owner, lease_acquired_at, attempt, last_seq) "
        "select gen_random_uuid(), $1, 'running', $2, now(), 1, 2 from generate_series(1, $3)",
        AGENT,
        gone,
        SWEEP_ROWS + 10,
    )
    judge = await hire()
    async with client.transaction():
        await client.execute(
            "select from agentrt.sessions where lease_owner = $1 order by ctid limit $2 for update", gone, SWEEP_ROWS
        )
        assert (await judge.reaper.sweep(judge.id)).requeued == 10
    assert (await judge.reaper.sweep(judge.id)).requeued == SWEEP_ROWS


async def test_more_locked_sessions_with_expired_approvals_than_one_sweep_takes_do_not_hide_the_others(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    waiting, _ = await stage.with_approvals()
    locked, client = await stage.create(), await connect()
    await stage.connection.execute("update agentrt.approvals set expires_at = now()")
    await stage.connection.execute(
        "insert into agentrt.approvals "
        "(id, session_id, run, tool_call_id, tool, arguments, arguments_hash, expires_at) "
        "select gen_random_uuid(), $1, 1, n, 'pay', '{}', '', now() - interval '1 h' from generate_series(1, $2) n",
        locked,
        SWEEP_ROWS,
    )
    judge = await hire()
    async with client.transaction():
        await client.execute("select from agentrt.sessions where id = $1 for update", locked)
        assert (await judge.reaper.sweep(judge.id)).expired == 1
    assert await stage.status(waiting) == "queued"
