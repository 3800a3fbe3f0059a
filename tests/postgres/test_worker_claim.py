"""Claiming: one owner each, in order, and never for a worker that was declared dead."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import Released, ReleaseReason, Status
from agentrt.ports import Answer, Offer, WorkerState
from tests.postgres.owner import AGENT, OFFER, Held, HireOwner, create, expire_lease, make_due, may_judge
from tests.postgres.stage import HANGS_AFTER_SECONDS, Stage, blocked, statement

Connect = Callable[[], Awaitable[asyncpg.Connection]]


async def test_a_claim_makes_the_worker_the_only_owner_and_journals_it_in_the_same_transaction(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 3."""
    session = await stage.create()
    owner = await hire("anna")

    claimed = await owner.store.claim(owner.id, OFFER, limit=5, fragile_limit=1)

    assert claimed.alive
    (head,) = claimed.sessions
    assert (head.id, head.status, head.attempt, head.fencing_token) == (session, Status.RUNNING, 1, 1)
    assert (head.lease_owner, head.owner_writes, head.last_seq) == (owner.id, 0, 3)
    entry = (await stage.entries(session))[-1]
    assert (entry.type, entry.worker_id, entry.token, entry.attempt) == ("session_claimed", owner.id, 1, 1)
    assert entry.data == {"worker": "anna", "agent_version": "v1"}
    transactions = await stage.connection.fetch(
        "select xmin from agentrt.sessions where id = $1 union select xmin from agentrt.journal "
        "where session_id = $1 and type = 'session_claimed'",
        session,
    )
    assert len(transactions) == 1


async def test_one_of_eight_claimers_gets_the_only_session(hire: HireOwner, stage: Stage) -> None:
    """Case 4."""
    owners = [await hire() for _ in range(8)]
    for _ in range(25):
        session = await stage.create()
        claims = await asyncio.gather(*(owner.claim() for owner in owners))
        assert [held.id for claim in claims for held in claim] == [session]


async def test_eight_claimers_share_two_hundred_sessions_without_taking_one_twice(
    hire: HireOwner, connection: asyncpg.Connection
) -> None:
    """Case 4."""
    sessions = await create(connection, 200)
    owners = [await hire() for _ in range(8)]

    async def take_all(owner_number: int) -> list[UUID]:
        taken: list[UUID] = []
        while claimed := await owners[owner_number].claim(1 + owner_number):
            taken += [held.id for held in claimed]
        return taken

    shares = await asyncio.gather(*map(take_all, range(8)))

    assert sorted(id for share in shares for id in share) == sorted(sessions)
    rows = await connection.fetch("select fencing_token, count(*) from agentrt.sessions group by 1")
    assert [tuple(row) for row in rows] == [(1, 200)]


async def test_higher_priority_comes_first_then_the_longer_wait_then_the_id(hire: HireOwner, stage: Stage) -> None:
    """Case 5."""
    moment = await stage.connection.fetchval("select clock_timestamp() - interval '1 hour'")
    low = await stage.create(priority=-1)
    late = await stage.create()
    high = await stage.create(priority=9)
    twins = [await stage.create() for _ in range(3)]
    await stage.connection.execute("update agentrt.sessions set ready_at = $2 where id = any($1)", twins, moment)
    owner = await hire()

    order = [(await owner.take()).id for _ in range(6)]

    assert order == [high, *sorted(twins), late, low]


async def test_the_best_of_several_queues_and_agents_are_claimed_in_one_order(hire: HireOwner, stage: Stage) -> None:
    """Case 5."""
    offer = Offer(queues=("default", "slow"), agents={AGENT: "v1", "writer": "v2"})
    sessions = [
        await stage.create(agent=agent, queue=queue, priority=priority)
        for priority, (agent, queue) in enumerate(
            [(AGENT, "slow"), ("writer", "default"), ("writer", "slow"), (AGENT, "default")]
        )
    ]
    owner = await hire()

    first = await owner.claim(3, offer=offer)
    second = await owner.claim(3, offer=offer)

    assert [[held.id for held in claim] for claim in (first, second)] == [sessions[:0:-1], sessions[:1]]


async def test_a_revived_conversation_waits_behind_newer_ones_that_waited_already(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 5."""
    owner = await hire()
    old = await stage.create()
    await owner.end(await owner.take())
    newer = await stage.create()
    await stage.send(old)

    assert [held.id for held in await owner.claim(2)] == [newer, old]


async def test_a_scheduled_session_is_claimed_once_its_time_has_passed_and_a_worker_looks(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 6."""
    session = await stage.create(ready_at="2999-01-01T00:00:00Z")
    early = await hire()
    assert await early.claim() == []
    assert not (await early.reaper.sweep(early.id)).due
    assert await early.claim() == []

    await make_due(stage.connection, session)  # while nobody is there
    late = await hire()

    assert (await late.reaper.sweep(late.id)).due == 1
    assert (await late.take()).id == session


async def test_a_session_of_an_unknown_agent_is_left_alone_and_the_list_says_why(hire: HireOwner, stage: Stage) -> None:
    """Case 7."""
    session = await stage.create(agent="stranger")
    owner = await hire()

    assert await owner.claim(5) == []

    head = await stage.head(session)
    assert (head["status"], head["attempt"], head["last_seq"]) == ("queued", 0, 2)
    reason = await stage.connection.fetchval("select waiting_for from agentrt.session_list where id = $1", session)
    assert "stranger" in reason


async def test_a_session_that_somebody_holds_locked_is_skipped_at_once(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 8."""
    client, other = stages
    locked, free = await other.create(), await other.create()
    owner = await hire()
    async with client.connection.transaction():
        await client.send(locked)
        async with asyncio.timeout(HANGS_AFTER_SECONDS):  # who waits fails by its lock_timeout
            assert [held.id for held in await owner.claim(5)] == [free]
    assert [held.id for held in await owner.claim(5)] == [locked]


async def test_what_a_draining_worker_claimed_by_a_hair_is_given_back_uncharged(hire: HireOwner, stage: Stage) -> None:
    """Case 10."""
    session = await stage.create()
    owner, other = await hire(), await hire()
    held = await owner.take()
    await owner.renew(draining=True)

    written = await owner.end(held, Released(ReleaseReason.DRAIN))

    assert (written.answer, written.status) == (Answer.WRITTEN, Status.QUEUED)
    head = await stage.head(session)
    assert (head["attempt"], head["takeovers"], head["due"]) == (1, 0, True)
    assert await owner.claim() == []  # a draining worker gets nothing
    assert (await other.take()).id == session


async def test_at_most_one_fragile_session_is_claimed_at_a_time_and_in_its_order(hire: HireOwner, stage: Stage) -> None:
    """A session that crashes its workers must not take many neighbours with it."""
    fragile = [await stage.create() for _ in range(3)]
    await stage.connection.execute("update agentrt.sessions set attempt = 3")
    healthy = await stage.create()
    owner = await hire()

    assert [held.id for held in await owner.claim(5, fragile_limit=0)] == [healthy]
    assert [held.id for held in await owner.claim(5)] == fragile[:1]
    assert (await stage.head(fragile[0]))["attempt"] == 3


async def test_a_claim_in_flight_cannot_be_overtaken_by_the_reap_of_its_worker(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 71."""
    session = await stage.create()
    owner, judge = await hire("a"), await hire("b")
    await expire_lease(stage.connection, owner.id)
    await may_judge(stage.connection, judge.id)
    claiming = await connect()

    async with claiming.transaction():
        await claiming.fetch(statement("claim"), owner.id, ["default"], [AGENT], ["v1"], 1, 1, 40)
        assert list(await judge.reaper.mark(judge.id)) == []  # does not wait for the claim either
    assert list(await judge.reaper.mark(judge.id)) == [owner.id]

    assert (await judge.reaper.sweep(judge.id)).requeued == 1
    assert (await judge.take()).id == session


async def test_a_claim_that_waits_for_the_reap_of_its_worker_takes_nothing_and_says_so(
    hire: HireOwner, stage: Stage, connect: Connect
) -> None:
    """Case 71."""
    session = await stage.create()
    owner, judge = await hire(), await hire()
    await expire_lease(stage.connection, owner.id)
    await may_judge(stage.connection, judge.id)
    marking, claiming = await connect(), await connect()

    async with marking.transaction():
        assert len(await marking.fetch(statement("mark"), judge.id)) == 1
        claim = asyncio.create_task(
            claiming.fetch(statement("claim"), owner.id, ["default"], [AGENT], ["v1"], 1, 1, 40)
        )
        await blocked(stage.connection, claiming)
    rows = await claim

    assert [(row["alive"], row["id"]) for row in rows] == [(False, None)]
    assert (await owner.renew()).state is WorkerState.DEAD
    assert (await judge.take()).id == session


async def test_a_worker_without_a_row_claims_nothing(hire: HireOwner, stage: Stage) -> None:
    """Case 71."""
    await stage.create()
    owner = await hire()
    await stage.connection.execute("delete from agentrt.workers where id = $1", owner.id)

    claimed = await owner.store.claim(owner.id, OFFER, limit=1, fragile_limit=1)

    assert (claimed.alive, claimed.sessions) == (False, ())
    assert (await owner.renew()).state is WorkerState.GONE


async def test_no_claim_that_races_with_a_reap_leaves_its_session_stranded(hire: HireOwner, stage: Stage) -> None:
    """Case 71."""
    judge = await hire()
    await may_judge(stage.connection, judge.id)

    async def mark_after(yields: int) -> None:
        for _ in range(yields):
            await asyncio.sleep(0)
        await judge.reaper.mark(judge.id)

    owner = await hire()
    for attempt in range(60):
        await judge.renew()  # only who renews may judge
        session = await stage.create()
        owner = await owner.reborn()
        await expire_lease(stage.connection, owner.id)

        await asyncio.gather(owner.claim(), mark_after(attempt % 6))

        await judge.reaper.mark(judge.id)
        await judge.reaper.sweep(judge.id)
        head = await stage.head(session)
        assert (head["status"], head["lease_owner"]) == ("queued", None)
        await stage.cancel(session)


async def test_a_claim_whose_answer_was_lost_shows_up_in_the_renewal_and_can_be_given_back(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 75."""
    session = await stage.create()
    owner = await hire()
    before = await owner.renew()
    await owner.claim()  # nobody heard the answer

    (grant,) = (await owner.renew()).grants
    head = await owner.store.head(grant.session_id)

    assert before.grants == ()  # sent before the claim: nothing to compare the new session with
    assert (grant.session_id, grant.fencing_token, grant.last_seq, grant.owner_writes) == (session, 1, 3, 0)
    assert (await owner.renew()).grants == (grant,)
    assert head is not None
    assert (await owner.end(Held.of(head), Released(ReleaseReason.NOT_RUN))).answer is Answer.WRITTEN
    assert (await owner.renew()).grants == ()
    assert (await owner.take()).id == session


async def test_sessions_that_a_client_holds_at_the_head_of_the_queue_hide_none_behind_them(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 8."""
    client, stage = stages
    sessions = await create(stage.connection, 700)
    owner = await hire()
    async with client.connection.transaction():
        await client.connection.execute(
            "select from agentrt.sessions where id = any($1) order by id for update", sessions[:650]
        )
        assert [held.id for held in await owner.claim(2)] == sessions[650:652]
        assert [held.id for held in await owner.claim(90)] == sessions[652:]
        assert await owner.claim(5) == []
    assert [held.id for held in await owner.claim(1)] == sessions[:1]


async def test_fragile_sessions_that_a_client_holds_hide_none_behind_them(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 8."""
    client, stage = stages
    sessions = await create(stage.connection, 100)
    await stage.connection.execute("update agentrt.sessions set attempt = 3")
    owner = await hire()
    async with client.connection.transaction():
        await client.connection.execute(
            "select from agentrt.sessions where id = any($1) order by id for update", sessions[:90]
        )
        assert [held.id for held in await owner.claim(2)] == sessions[90:91]


async def test_what_was_claimed_stays_claimed_when_the_look_further_behind_fails(
    hire: HireOwner, stages: tuple[Stage, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 75: it is ours, and nobody would tell us so again."""
    client, stage = stages
    sessions = await create(stage.connection, 100)
    owner = await hire()
    reads = owner.store._reads
    fetch, calls = reads.fetch, list[object]()

    async def once(*arguments: Any) -> Sequence[asyncpg.Record]:
        calls.append(arguments)
        if len(calls) == 2:
            raise DatabaseUnavailable("gone")
        return await fetch(*arguments)

    monkeypatch.setattr(reads, "fetch", once)
    async with client.connection.transaction():
        await client.connection.execute(
            "select from agentrt.sessions where id = any($1) order by id for update", sessions[1:90]
        )
        claimed = await owner.store.claim(owner.id, OFFER, limit=2, fragile_limit=1)
    assert [session.id for session in claimed.sessions] == sessions[:1]
    assert not claimed.whole, "the second look may have claimed more"
    assert len(calls) == 2
