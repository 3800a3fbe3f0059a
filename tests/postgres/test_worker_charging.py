"""Crashes are charged where they are seen, on the locked row; queued messages outlive every end of a run."""

import asyncio
from uuid import UUID

import pytest

from agentrt.core.session import Crashed, Failed, Outcome, Status
from agentrt.ports import Answer
from tests.postgres.owner import DONE, HireOwner, Owner, answer, make_due
from tests.postgres.stage import Stage, until_waiting

FAILED = Failed("agent_error", "no")
BOOM = Crashed("boom")


async def crash(owner: Owner, stage: Stage, *, reaped: bool, progress: bool = False) -> Owner:
    """Let the worker claim the only session and die of it, or release it as crashed; returns the next incarnation."""
    held = await owner.take()
    if progress:
        await owner.append(held, answer())
    if reaped:
        await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", owner.id)
        swept = await owner.reaper.sweep(owner.id)
        assert swept.requeued + swept.failed == 1
    else:
        assert (await owner.end(held, BOOM)).answer is Answer.WRITTEN
    await make_due(stage.connection, held.id)
    await owner.reaper.sweep(owner.id)
    return await owner.reborn()


@pytest.mark.parametrize("reaped", [True, False])
async def test_the_fifth_crash_in_a_row_fails_the_session_and_a_new_message_begins_at_zero(
    hire: HireOwner, stage: Stage, reaped: bool
) -> None:
    """Case 21."""
    session = await stage.create()
    owner = await hire()
    for attempt in range(1, 6):
        assert await stage.status(session) == "queued"
        owner = await crash(owner, stage, reaped=reaped)
        if attempt < 5:
            head = await stage.head(session)
            assert (head["attempt"], head["takeovers"]) == (attempt + 1, attempt)

    head = await stage.head(session)
    assert head["status"] == "failed"
    assert '"code": "attempts_exhausted"' in head["outcome"]
    entries = await stage.entries(session)
    assert [e.type for e in entries[-2:]] == ["session_orphaned" if reaped else "session_released", "session_failed"]
    assert await owner.claim() == []

    await stage.send(session)
    head = await stage.head(session)
    assert (head["status"], head["run"], head["attempt"], head["takeovers"]) == ("queued", 2, 0, 0)
    assert (await owner.take()).id == session


@pytest.mark.parametrize("reaped", [True, False])
async def test_committed_progress_keeps_the_attempt_at_two_but_twenty_takeovers_are_enough(
    hire: HireOwner, stage: Stage, reaped: bool
) -> None:
    """Case 23."""
    session = await stage.create()
    owner = await hire()
    for takeover in range(1, 20):
        owner = await crash(owner, stage, reaped=reaped, progress=True)
        head = await stage.head(session)
        assert (head["status"], head["attempt"], head["takeovers"]) == ("queued", 2, takeover)

    await crash(owner, stage, reaped=reaped, progress=True)

    head = await stage.head(session)
    assert head["status"] == "failed"
    assert "attempts_exhausted" in head["outcome"]


async def test_a_crash_release_says_what_happened_and_backs_off_from_the_second_on(
    hire: HireOwner, stage: Stage
) -> None:
    session = await stage.create(max_attempts=1000)
    owner = await hire()
    delays = []
    for attempt in (1, 2, 3, 9, 700):
        held = await owner.take()
        await stage.connection.execute("update agentrt.sessions set attempt = $1, takeovers = 0", attempt)
        await owner.end(held, BOOM)
        delays.append(
            await stage.connection.fetchval(
                "select extract(epoch from s.ready_at - j.created_at)::float8 from agentrt.sessions s "
                "join agentrt.journal j on j.session_id = s.id and j.seq = s.last_seq"
            )
        )
        await stage.connection.execute("update agentrt.sessions set due = true, attempt = 0")

    assert delays[0] < 0.1
    for delay, longest in zip(delays[1:], (2, 4, 60, 60), strict=True):
        assert longest / 2 - 0.2 <= delay <= longest
    released = (await stage.entries(session))[3]
    assert released.data == {"reason": "crash", "message": "boom"}


@pytest.mark.parametrize("ending", [DONE, FAILED, BOOM])
async def test_a_queued_message_begins_the_next_run_in_the_transaction_that_ends_this_one(
    hire: HireOwner, stage: Stage, ending: Outcome
) -> None:
    """Case 86."""
    session = await stage.create(max_attempts=1)
    owner = await hire()
    held = await owner.take()
    queued = await stage.send(session, "later", when_running="queue")
    steered = await stage.send(session, "now")
    last = await stage.send(session, "even later", when_running="queue")
    await owner.append(held, answer())

    written = await owner.end(held, ending)

    assert (queued, steered, last) == (4, 5, 6)
    assert (written.answer, written.status) == (Answer.WRITTEN, Status.QUEUED)
    entries = await stage.entries(session)
    terminal = "session_completed" if ending is DONE else "session_failed"
    assert [(e.type, e.run) for e in entries[-2:]] == [(terminal, 1), ("user_message", 2)]
    assert entries[-1].data == {"content": [{"type": "text", "text": "later"}], "message_seq": 4}
    assert written.last_seq == entries[-1].seq
    head = await stage.head(session)
    assert (head["run"], head["attempt"], head["takeovers"], head["turns"]) == (2, 0, 0, 0)
    assert (head["outcome"], head["finished_at"], head["input_tokens"], head["due"]) == (None, None, 0, True)

    assert (await owner.end(await owner.take(), FAILED)).status is Status.QUEUED
    assert (await stage.entries(session))[-1].data["message_seq"] == 6
    assert (await owner.end(await owner.take(), FAILED)).status is Status.FAILED


async def test_a_message_queued_while_the_run_fails_begins_the_next_run(
    hire: HireOwner, stages: tuple[Stage, Stage]
) -> None:
    """Case 86."""
    client, stage = stages
    owner = await hire()
    for attempt in range(60):
        session = await client.create()
        held = await owner.take()

        async def send(session: UUID = session, pause: int = attempt % 6) -> int:
            for _ in range(pause):
                await asyncio.sleep(0)
            return await client.send(session, "later", when_running="queue")

        written, _ = await asyncio.gather(owner.end(held, FAILED), send())
        if written.answer is Answer.BUSY:
            await owner.end(held, FAILED)

        assert await stage.status(session) == "queued"
        assert (await stage.head(session))["run"] == 2
        await owner.end(await owner.take(), FAILED)
        assert await stage.status(session) == "failed"


@pytest.mark.parametrize("ending", [FAILED, BOOM])
async def test_a_message_queued_while_the_ending_waits_for_the_row_begins_the_next_run(
    hire_patient: HireOwner, stages: tuple[Stage, Stage], ending: Outcome
) -> None:
    """Case 86. The ending's own snapshot is older than the message."""
    client, stage = stages
    session = await stage.create(max_attempts=1)
    owner = await hire_patient()
    held = await owner.take()
    async with client.connection.transaction():
        await client.send(session, "later", when_running="queue")
        waiting = asyncio.create_task(owner.store.end(owner.id, [held.write(ending=ending)], side=True))
        await until_waiting(stage.connection)

    assert [(w.answer, w.status) for w in await waiting] == [(Answer.WRITTEN, Status.QUEUED)]
    assert (await stage.entries(session))[-1].data["message_seq"] == 4
