"""Endings: one transaction each, once, stale when a client wrote meanwhile, and never behind somebody's back."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from agentrt.core.journal import ApprovalRequested, Effect, ToolStarted
from agentrt.core.session import (
    CallId,
    Completed,
    Crashed,
    Failed,
    Outcome,
    Released,
    ReleaseReason,
    Status,
    Suspended,
    SuspendReason,
)
from agentrt.ports import Answer
from agentrt.postgres.client import PostgresClientStore
from tests.postgres.owner import DONE, Held, HireOwner, answer, create, make_due, result
from tests.postgres.stage import Stage

FAILED = Failed("agent_error", "no")
FOR_INPUT = Suspended(SuspendReason.INPUT, "what now?")


async def approving(hire: HireOwner, stage: Stage, *, calls: int = 1) -> tuple[Any, Held, list[UUID]]:
    """A worker, a session of its whose last answer waits for approvals, and these."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    requests = [
        ApprovalRequested(approval_id=uuid4(), position=n + 1, tool="pay", arguments="{}", arguments_hash="c0ffee")
        for n in range(calls)
    ]
    await owner.append(held, answer("hm", *["pay"] * calls), *requests)
    return owner, held, [request.approval_id for request in requests if request.approval_id is not None]


# --- complete, fail, suspend, release ---------------------------------------------------------------------------------


async def test_a_completion_sets_everything_in_one_transaction_and_followers_see_it_last(
    hire: HireOwner, stage: Stage, database_url: str
) -> None:
    """Case 27."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    client = await PostgresClientStore.connect(database_url)
    try:
        following = client.follow(held.id, 0)
        seen = [(await anext(following)).data.type for _ in range(3)]

        (written,) = await owner.store.end(owner.id, [held.write(answer("bye"), ending=Completed({"text": "bye"}))])

        seen += [(await anext(following)).data.type for _ in range(2)]
        await following.aclose()
    finally:
        await client.close()
    assert (written.answer, written.last_seq, written.status) == (Answer.WRITTEN, 5, Status.COMPLETED)
    assert seen[-2:] == ["assistant_message", "session_completed"]
    head = await stage.head(session)
    assert (head["status"], head["outcome"], head["lease_owner"]) == ("completed", '{"text": "bye"}', None)
    assert (head["lease_acquired_at"], head["input_tokens"], head["turns"]) == (None, 10, 1)
    assert head["running_seconds"] > 0
    assert head["finished_at"] is not None
    written_by = await stage.connection.fetch(
        "select xmin from agentrt.sessions where id = $1 union "
        "select xmin from agentrt.journal where session_id = $1 and seq > 3",
        session,
    )
    assert len(written_by) == 1


async def test_an_ending_that_is_repeated_writes_one_entry(hire: HireOwner, stage: Stage) -> None:
    """Case 28."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    write = held.write(ending=DONE)

    first, again = [(await owner.store.end(owner.id, [write]))[0] for _ in range(2)]

    assert (first.answer, again.answer, again.status) == (Answer.WRITTEN, Answer.ALREADY, Status.COMPLETED)
    assert (await stage.types(held.id)).count("session_completed") == 1
    assert await owner.store.wrote(held.id, "w:1:0")


@pytest.mark.parametrize("ending", [FAILED, DONE, FOR_INPUT, Released(ReleaseReason.DRAIN), Crashed("late")])
async def test_what_has_ended_does_not_end_again(hire: HireOwner, stage: Stage, ending: Outcome) -> None:
    """Case 28."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    await owner.end(held)
    before = await stage.everything(held.id)

    assert (await owner.end(held, ending)).answer is Answer.LOST
    assert await stage.everything(held.id) == before


@pytest.mark.parametrize("ending", [FAILED, DONE, FOR_INPUT, Released(ReleaseReason.DRAIN), Crashed("late")])
async def test_nobody_ends_what_another_worker_owns(hire: HireOwner, stage: Stage, ending: Outcome) -> None:
    """Case 29."""
    await stage.create()
    old, new = await hire(), await hire()
    held = await old.take()
    await old.end(held, Released(ReleaseReason.DRAIN))
    owned = await new.take()
    before = await stage.everything(held.id)
    held.owner_writes = 0

    assert (await old.end(held, ending)).answer is Answer.LOST
    assert (await old.end(owned, ending)).answer is Answer.LOST
    assert await stage.everything(held.id) == before


async def test_endings_of_many_sessions_go_in_one_statement_each_with_its_own_answer(
    hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    await create(connection, 6)
    owner = await hire()
    held = await owner.claim(6)
    await stage.cancel(held[1].id)
    await stage.send(held[2].id)
    endings: list[Outcome] = [DONE, DONE, DONE, FAILED, FOR_INPUT, Released(ReleaseReason.DRAIN, 60.0)]

    written = await owner.store.end(owner.id, [h.write(ending=e) for h, e in zip(held, endings, strict=True)])

    assert [(w.answer, w.status) for w in written] == [
        (Answer.WRITTEN, Status.COMPLETED),
        (Answer.LOST, Status.CANCELLED),
        (Answer.STALE, Status.RUNNING),
        (Answer.WRITTEN, Status.FAILED),
        (Answer.WRITTEN, Status.SUSPENDED),
        (Answer.WRITTEN, Status.QUEUED),
    ]
    types = [(await stage.types(h.id))[-1] for h in held]
    assert types[3:] == ["session_failed", "session_suspended", "session_released"]
    suspended = await stage.head(held[4].id)
    assert suspended["suspension"] == '{"reason": "input", "message": "what now?", "waits_for": []}'
    assert (suspended["attempt"], suspended["takeovers"]) == (0, 0)


async def test_a_release_with_a_delay_comes_back_after_it_and_one_without_at_once(
    hire: HireOwner, stage: Stage
) -> None:
    session = await stage.create()
    owner = await hire()
    await owner.end(await owner.take(), Released(ReleaseReason.BACK_OFF, 3600.0))
    head = await stage.head(session)
    assert head["due"] is False
    assert 3590 < (head["ready_at"] - (await stage.connection.fetchval("select now()"))).total_seconds() < 3610
    assert await owner.claim() == []

    await make_due(stage.connection, session)
    assert (await owner.reaper.sweep(owner.id)).due == 1
    await owner.end(await owner.take(), Released(ReleaseReason.DRAIN))
    assert (await owner.take()).id == session


async def test_any_number_of_releases_costs_no_attempt(hire: HireOwner, stage: Stage) -> None:
    """Case 22."""
    session = await stage.create()
    owner = await hire()
    for _ in range(6):
        await owner.end(await owner.take(), Released(ReleaseReason.DRAIN))
    head = await stage.head(session)
    assert (head["attempt"], head["takeovers"], head["status"]) == (1, 0, "queued")


async def test_a_completion_makes_open_approvals_obsolete_in_the_same_transaction(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 98."""
    owner, held, _ = await approving(hire, stage, calls=2)

    assert (await owner.end(held)).answer is Answer.WRITTEN

    assert await stage.approval_states(held.id) == ["obsolete", "obsolete"]
    written_by = await stage.connection.fetch(
        "select xmin from agentrt.sessions where id = $1 "
        "union select xmin from agentrt.approvals where session_id = $1",
        held.id,
    )
    assert len(written_by) == 1


# --- stale ------------------------------------------------------------------------------------------------------------


async def test_an_ending_planned_before_a_message_is_stale_and_the_message_is_answered_once(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 30."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    await owner.append(held, answer())
    seq = await stage.send(held.id)
    before = await stage.everything(held.id)
    for ending in (DONE, FOR_INPUT):
        stale = await owner.end(held, ending)
        assert (stale.answer, stale.last_seq, stale.status) == (Answer.STALE, seq, Status.RUNNING)
    assert await stage.everything(held.id) == before

    assert (await owner.append(held, answer())).answer is Answer.WRITTEN
    assert (await owner.end(held)).answer is Answer.WRITTEN


async def test_fail_and_release_need_no_fresh_look(hire: HireOwner, stage: Stage) -> None:
    session = await stage.create()
    owner = await hire()
    for ending in (Released(ReleaseReason.DRAIN), Crashed("boom"), FAILED):
        held = await owner.take()
        await stage.send(session)
        assert (await owner.end(held, ending)).answer is Answer.WRITTEN


async def test_a_session_suspends_for_approval_with_a_message_waiting_and_delivers_it_after_the_decision(
    hire: HireOwner, stage: Stage
) -> None:
    """Case 85."""
    owner, held, (approval,) = await approving(hire, stage)
    seq = await stage.send(held.id)
    for_approval = Suspended(SuspendReason.APPROVAL, "", ("000004001",))

    assert (await owner.end(held, for_approval)).answer is Answer.STALE
    assert (await owner.end(held, for_approval, planned_from=seq)).status is Status.SUSPENDED
    assert await owner.claim() == []
    assert await stage.decide(approval) == "queued"
    assert (await owner.take()).id == held.id
    assert (await stage.types(held.id)).count("user_message") == 2


async def test_a_suspension_planned_before_the_last_decision_is_stale(hire: HireOwner, stage: Stage) -> None:
    """Case 85."""
    owner, held, (approval,) = await approving(hire, stage)
    assert await stage.decide(approval) == "running"

    assert (await owner.end(held, Suspended(SuspendReason.APPROVAL, "", ("000004001",)))).answer is Answer.STALE
    assert await stage.status(held.id) == "running"


@pytest.mark.parametrize("mode", ["steer", "queue"])
@pytest.mark.parametrize("ending", [DONE, FOR_INPUT])
async def test_a_message_that_races_with_an_ending_is_never_lost(
    hire: HireOwner, stages: tuple[Stage, Stage], mode: str, ending: Outcome
) -> None:
    """Case 30."""
    client, stage = stages
    owner = await hire()
    for attempt in range(50):
        session = await client.create()
        held = await owner.take()
        await owner.append(held, answer())

        async def send(session: UUID = session, pause: int = attempt % 5) -> int:
            for _ in range(pause):
                await asyncio.sleep(0)
            return await client.send(session, "now", when_running=mode)

        written, seq = await asyncio.gather(owner.end(held, ending), send())

        entries = await stage.entries(session)
        status = await stage.status(session)
        if written.answer is Answer.WRITTEN:  # the message came after it, and began or woke a run
            assert status == "queued"
            assert entries[seq - 1].type == "user_message"
            await owner.end(await owner.take(), FAILED)
        else:  # it came before: the owner has to look again
            assert written.answer in (Answer.STALE, Answer.BUSY)
            assert status == "running"
            assert entries[-1].seq == seq
            assert (await owner.end(held, FAILED)).status is (Status.QUEUED if mode == "queue" else Status.FAILED)
            if mode == "queue":
                assert (await stage.entries(session))[-1].data["message_seq"] == seq
                await owner.end(await owner.take(), FAILED)


async def test_a_decision_that_races_with_the_suspension_wakes_the_session_once(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 30."""
    client, stage = stages
    for _ in range(20):
        owner, held, (approval,) = await approving(hire, client)
        suspension = Suspended(SuspendReason.APPROVAL, "", ("000004001",))

        written, _ = await asyncio.gather(owner.end(held, suspension), client.decide(approval))

        if written.answer is Answer.WRITTEN:
            assert await stage.status(held.id) == "queued"
            assert (await stage.types(held.id)).count("session_woken") == 1
            await owner.end(await owner.take())
        else:
            assert await stage.status(held.id) == "running"
            assert (await owner.end(held, FAILED)).answer is Answer.WRITTEN


async def test_a_deferred_result_that_races_with_the_suspension_wakes_the_session_once(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 30."""
    client, stage = stages
    owner = await hire()
    for _ in range(20):
        session = await client.create()
        held = await owner.take()
        await owner.append(held, answer("hm", "ask_boss"))
        await owner.append(held, ToolStarted(CallId("000004001"), "ask_boss", Effect.READ, deferred=True))
        suspension = Suspended(SuspendReason.EXTERNAL, "", ("000004001",))

        written, _ = await asyncio.gather(owner.end(held, suspension), client.complete_call(session, "000004001"))

        assert (await stage.types(session)).count("tool_result") == 1
        if written.answer is Answer.WRITTEN:
            assert await stage.status(session) == "queued"
            await owner.end(await owner.take(), FAILED)
        else:
            assert await stage.status(session) == "running"
            assert (await owner.end(held, FAILED)).answer is Answer.WRITTEN


async def test_of_a_cancel_and_a_completion_at_once_one_wins(hire: HireOwner, stages: tuple[Stage, Stage]) -> None:
    """Case 34."""
    client, stage = stages
    owner = await hire()
    for attempt in range(100):
        session = await client.create()
        held = await owner.take()

        async def cancel(session: UUID = session, pause: int = attempt % 4) -> str:
            for _ in range(pause):
                await asyncio.sleep(0)
            try:
                return await client.cancel(session)
            except asyncpg.PostgresError as error:
                return str(error.sqlstate)

        written, cancelled = await asyncio.gather(owner.end(held), cancel())

        ends = [t for t in await stage.types(session) if t in ("session_completed", "session_cancelled")]
        if written.answer is Answer.WRITTEN:
            assert (cancelled, ends) == ("AR002", ["session_completed"])
        else:
            assert (cancelled, ends) == ("cancelled", ["session_cancelled"])
        assert (await stage.types(session))[-1] == ends[0]


async def test_a_tool_that_was_started_in_the_same_write_as_the_ending_stands_before_it(
    hire: HireOwner, stage: Stage
) -> None:
    await stage.create()
    owner = await hire()
    held = await owner.take()

    (written,) = await owner.store.end(
        owner.id, [held.write(ToolStarted(), result("000004001"), ending=Released(ReleaseReason.DRAIN))]
    )

    assert (written.answer, written.last_seq) == (Answer.WRITTEN, 6)
    assert (await stage.types(held.id))[3:] == ["tool_started", "tool_result", "session_released"]
    assert [e.dedup_key for e in (await stage.entries(held.id))[3:]] == ["w:1:0", "w:result:000004001", None]
