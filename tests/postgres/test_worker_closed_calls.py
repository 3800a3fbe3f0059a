"""A call that is closed while its approval is open: nobody is asked about it, and nothing waits for it."""

import asyncio
from uuid import UUID, uuid4

import pytest

from agentrt.core.journal import ApprovalRequested, Effect, ToolOutcome, ToolResult, ToolStarted
from agentrt.core.session import CallId, Released, ReleaseReason, Suspended, SuspendReason
from agentrt.ports import Answer, NewEntry
from tests.postgres.owner import Held, HireOwner, Owner, answer
from tests.postgres.stage import Stage, refused, until_waiting


@pytest.fixture
async def asked(hire: HireOwner, stage: Stage) -> tuple[Owner, Held, list[UUID]]:
    """A worker, its session, and the approvals of two calls of the last answer."""
    await stage.create()
    owner = await hire()
    held = await owner.take()
    requests = [
        ApprovalRequested(approval_id=uuid4(), position=n, tool="pay", arguments="{}", arguments_hash="c0ffee")
        for n in (1, 2)
    ]
    await owner.append(held, answer("hm", "pay", "pay"), *requests)
    return owner, held, [request.approval_id for request in requests if request.approval_id is not None]


def closed(call_id: str, outcome: ToolOutcome = ToolOutcome.INTERRUPTED) -> NewEntry:
    return NewEntry(data=ToolResult(CallId(call_id), "pay", "not run", outcome), dedup_key=f"w:result:{call_id}")


@pytest.mark.parametrize("outcome", [ToolOutcome.INTERRUPTED, ToolOutcome.ERROR, ToolOutcome.UNKNOWN])
async def test_the_approval_of_a_call_that_is_closed_becomes_obsolete(
    asked: tuple[Owner, Held, list[UUID]], stage: Stage, outcome: ToolOutcome
) -> None:
    owner, held, [first, second] = asked
    assert (await owner.append(held, closed("000004001", outcome))).answer is Answer.WRITTEN
    assert await stage.approval_states(held.id) == ["obsolete", "pending"]
    with refused("AR002", "obsolete"):
        await stage.decide(first)
    assert await stage.decide(second) == "running"


async def test_so_it_does_when_the_result_is_written_together_with_an_ending(
    asked: tuple[Owner, Held, list[UUID]], stage: Stage
) -> None:
    owner, held, _ = asked
    write = held.write(closed("000004001"), ending=Released(ReleaseReason.DRAIN))
    assert [written.answer for written in await owner.store.end(owner.id, [write])] == [Answer.WRITTEN]
    assert await stage.approval_states(held.id) == ["obsolete", "pending"]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_decision_that_is_committed_while_the_result_waits_for_the_row_stays_as_it_was_told(
    asked: tuple[Owner, Held, list[UUID]], stages: tuple[Stage, Stage], ends: bool
) -> None:
    """The result's own snapshot is older than the decision."""
    (owner, held, [first, _]), (reviewer, stage) = asked, stages
    write = held.write(closed("000004001"), ending=Released(ReleaseReason.DRAIN) if ends else None)
    async with reviewer.connection.transaction():
        assert await reviewer.decide(first) == "running"
        waiting = asyncio.create_task((owner.store.end if ends else owner.store.append)(owner.id, [write], side=True))
        await until_waiting(stage.connection)
    assert [written.answer for written in await waiting] == [Answer.WRITTEN]
    assert await stage.approval_states(held.id) == ["approved", "pending"]


async def test_a_session_whose_call_was_closed_before_anybody_decided_wakes_by_the_result_it_waits_for(
    asked: tuple[Owner, Held, list[UUID]], stage: Stage
) -> None:
    owner, held, _ = asked
    await owner.append(held, closed("000004001"), closed("000004002"))
    await owner.append(held, answer("hm", "order"))
    waited = CallId("000009001")
    await owner.append(held, ToolStarted(waited, "order", Effect.READ, deferred=True))
    await owner.end(held, Suspended(SuspendReason.EXTERNAL, "waits for a result: order", (waited,)))
    assert await stage.complete_call(held.id, waited) == "queued"


async def test_an_approval_that_was_left_open_by_its_closed_call_keeps_no_session_waiting(
    asked: tuple[Owner, Held, list[UUID]], stage: Stage
) -> None:
    owner, held, _ = asked
    await owner.append(held, closed("000004001"), closed("000004002"), answer("hm", "order"))
    waited = CallId("000009001")
    await owner.append(held, ToolStarted(waited, "order", Effect.READ, deferred=True))
    await stage.connection.execute("update agentrt.approvals set state = 'pending', decided_at = null")
    await owner.end(held, Suspended(SuspendReason.EXTERNAL, "waits for a result: order", (waited,)))
    assert await stage.complete_call(held.id, waited) == "queued"
