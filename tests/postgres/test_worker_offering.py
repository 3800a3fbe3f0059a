"""Which agents a worker offers just now: what its row says, and whether another worker offers what this one cannot."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from tests.postgres.owner import AGENT, HireOwner, Owner, expire_lease
from tests.postgres.stage import Stage, blocked, statement

OFFERED = "select agents from agentrt.worker_list where id = $1"
WAITS_FOR = "select waiting_for from agentrt.session_list where id = $1"


async def withdraw(owner: Owner, queue: str = "default") -> bool:
    return await owner.store.withdraw_agent(owner.id, AGENT, queue=queue)


async def test_a_worker_that_withdraws_an_agent_is_told_whether_another_one_offers_it(hire: HireOwner) -> None:
    """F30."""
    first, second = await hire(), await hire()
    assert await withdraw(first)
    assert await withdraw(first), "asked again, for another session"
    assert not await withdraw(second)
    assert not await withdraw(first)


@pytest.mark.parametrize("other", ["another queue", "lease over", "draining", "dead", "stopped", "another agent"])
async def test_only_a_living_worker_with_that_agent_and_queue_counts(
    hire: HireOwner, connection: asyncpg.Connection, other: str
) -> None:
    first, second = await hire(), await hire()
    match other:
        case "another queue":
            assert not await withdraw(first, queue="elsewhere")
            return
        case "lease over":
            await expire_lease(connection, second.id)
        case "another agent":
            await second.keeper.renew(replace(second.info, agents=("stranger",)), None, draining=False)
        case _:
            await connection.execute("update agentrt.workers set state = $2 where id = $1", second.id, other)
    assert not await withdraw(first)


async def test_of_two_workers_that_withdraw_at_the_same_time_the_last_one_finds_nobody(
    hire: HireOwner, stages: tuple[Stage, Stage], connection: asyncpg.Connection
) -> None:
    first, second = sorted([await hire(), await hire()], key=lambda owner: owner.id)
    one, two = (stage.connection for stage in stages)
    withdrawal = statement("withdraw_agent")
    async with one.transaction():
        assert await one.fetchval(withdrawal, second.id, AGENT, "default")
        waiting = asyncio.create_task(two.fetchval(withdrawal, first.id, AGENT, "default"))
        await blocked(connection, two)
    assert await waiting is False


async def test_a_workers_row_follows_what_it_offers_and_so_does_what_sessions_wait_for(
    hire: HireOwner, stage: Stage
) -> None:
    session, owner = await stage.create(), await hire()
    assert await stage.connection.fetchval(WAITS_FOR, session) == "a free slot"
    await withdraw(owner)
    assert await stage.connection.fetchval(OFFERED, owner.id) == []
    nobody = f"a worker that serves agent {AGENT}: no live one does"
    assert await stage.connection.fetchval(WAITS_FOR, session) == nobody
    await owner.keeper.renew(replace(owner.info, agents=()), None, draining=False)
    assert await stage.connection.fetchval(WAITS_FOR, session) == nobody
    await owner.renew()
    assert await stage.connection.fetchval(OFFERED, owner.id) == [AGENT]
    assert await stage.connection.fetchval(WAITS_FOR, session) == "a free slot"


async def test_a_renewal_that_was_on_its_way_does_not_offer_again_what_was_withdrawn_meanwhile(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Else the next worker that withdraws the agent takes this one for able, and nobody says that nobody is."""
    first, second = await hire(), await hire()
    await withdraw(first)
    await first.renew()
    assert await connection.fetchval(OFFERED, first.id) == []
    assert not await withdraw(second)
