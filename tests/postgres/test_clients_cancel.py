"""Cancelling, through the database alone."""

import asyncio
import json
from collections import Counter

import asyncpg

from tests.postgres.stage import Stage, answer, blocked, refused


async def test_cancel_ends_a_session_at_once_in_every_active_status(stage):
    """Case 32."""
    for session in (await stage.create(), (await stage.with_approvals(2))[0], await stage.running()):
        before = await stage.head(session)
        assert await stage.cancel(session, reason="enough") == "cancelled"
        head = await stage.head(session)
        assert (head["status"], head["fencing_token"]) == ("cancelled", before["fencing_token"] + 1)
        assert (head["lease_owner"], head["lease_acquired_at"], head["suspension"]) == (None, None, None)
        assert json.loads(head["outcome"]) == {"reason": "enough"}
        assert head["finished_at"] is not None
        assert set(await stage.approval_states(session)) <= {"obsolete"}
        last = (await stage.entries(session))[-1]
        assert (last.type, last.data) == ("session_cancelled", {"reason": "enough", "dropped": []})
        assert last.token == head["fencing_token"]


async def test_cancel_of_a_running_session_tells_its_worker_whose_writes_are_then_refused(stage, connect):
    """Case 32."""
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_control", lambda *message: heard.append(message[-1]))
    session = await stage.running()
    held = await stage.head(session)
    await stage.cancel(session)
    await listener.execute("select 1")
    assert heard == [f'["{session}"]']
    before = await stage.everything(session)
    for ending in (stage.complete(session, held=held), stage.fail(session, held=held)):
        assert await ending == "lost"
    assert await stage.end(session, "crash", held=held, message="boom") == "lost"
    assert await stage.everything(session) == before


async def test_a_second_cancel_changes_nothing_and_keeps_the_first_reason(stage):
    """Case 33."""
    session = await stage.running()
    await stage.cancel(session, reason="first")
    before = await stage.everything(session)
    assert await stage.cancel(session, reason="second") == "cancelled"
    assert await stage.cancel(session, run=1) == "cancelled"
    assert await stage.everything(session) == before


async def test_a_session_that_has_ended_otherwise_cannot_be_cancelled(stage):
    """Case 33."""
    for status in ("completed", "failed"):
        session = await stage.ended(status)
        before = await stage.everything(session)
        with refused("AR002", status, str(session)):
            await stage.cancel(session)
        assert await stage.everything(session) == before


async def test_a_cancel_that_names_its_run_does_not_touch_a_later_one(stage):
    """Case 32."""
    session = await stage.running()
    await stage.cancel(session, run=1)
    await stage.send(session)
    before = await stage.everything(session)
    for run in (1, 3):
        with refused("AR002", f"run {run}", "run 2", "queued"):
            await stage.cancel(session, run=run)
    assert await stage.everything(session) == before
    assert await stage.cancel(session, run=2) == "cancelled"


async def test_bad_cancels_are_refused(stage):
    session = await stage.create()
    for options, word in (({"run": 0}, "run"), ({"run": "one"}, "one"), ({"reason": 3}, "reason"), ({"why": 1}, "why")):
        with refused("AR004", word):
            await stage.cancel(session, **options)
    with refused("AR001", "null"):
        await stage.call("cancel_session", None)
    assert await stage.status(session) == "queued"


async def test_of_cancel_and_complete_exactly_one_wins(stage, stages):
    """Case 34: 100 times."""
    client, worker = stages
    owner = await stage.worker()
    ends = Counter[str]()
    for n in range(100):
        session = await stage.create()
        await stage.take(session, owner)
        held = await stage.head(session)

        async def cancel(session=session):
            try:
                return await client.cancel(session)
            except asyncpg.PostgresError as error:
                return error.sqlstate

        first, second = (cancel(), worker.complete(session, held=held))
        results = await asyncio.gather(*((first, second) if n % 2 else (second, first)))
        cancelled, completed = results if n % 2 else reversed(results)
        status = await stage.status(session)
        assert (status, cancelled, completed == "written") in (
            ("cancelled", "cancelled", False),
            ("completed", "AR002", True),
        )
        types = await stage.types(session)
        assert len([t for t in types if t in ("session_cancelled", "session_completed")]) == 1
        assert types[-1] == f"session_{status}"
        ends[status] += 1
    assert len(ends) == 2, "no race happened"


async def test_a_cancel_that_waited_for_the_ending_is_refused(stage, stages):
    """Case 34."""
    client, worker = stages
    session = await stage.running()
    transaction = worker.connection.transaction()
    await transaction.start()
    assert await worker.complete(session) == "written"
    cancelling = asyncio.create_task(client.cancel(session))
    await blocked(stage.connection, client.connection)
    await transaction.commit()
    with refused("AR002", "completed"):
        await cancelling
    assert (await stage.types(session))[-1] == "session_completed"


async def test_two_cancels_at_once_write_one_entry(stage, stages):
    """Case 33: 50 times."""
    for _ in range(50):
        session = await stage.create()
        await asyncio.gather(*(s.cancel(session, reason="x") for s in stages))
        assert (await stage.types(session)).count("session_cancelled") == 1
        assert (await stage.head(session))["fencing_token"] == 1


async def test_a_cancelled_session_is_never_claimed_and_its_dead_owner_is_not_charged(stage):
    """Case 35."""
    session = await stage.running()
    await stage.cancel(session)
    await stage.connection.execute("update agentrt.workers set state = 'dead'")
    await stage.connection.execute("update agentrt.sessions set due = true, ready_at = now()")
    queue = (await stage.head(session))["queue"]
    assert await stage.claim(await stage.worker(), queue=queue, limit=10) == []
    assert await stage.status(session) == "cancelled"


async def test_after_a_cancel_inside_a_tool_the_next_run_can_answer_what_was_open(stage):
    """Case 36, F3: one result for each call, the next owner's for the one that was open."""
    session = await stage.running()
    await stage.append(session, answer("first", "second"))
    first, second = (block["call_id"] for block in (await stage.entries(session))[-1].data["content"])
    await stage.append(session, result(first, "ok"))
    await stage.cancel(session)
    await stage.send(session, "go on")
    await stage.take(session)
    assert await stage.append(session, result(second, "unknown")) == "written"
    assert await stage.append(session, answer(text="fine")) == "written"
    assert await stage.complete(session) == "written"
    results = [e.data["call_id"] for e in await stage.entries(session) if e.type == "tool_result"]
    assert results == [first, second]
    assert await stage.status(session) == "completed"


def result(call_id, outcome):
    data = {"call_id": call_id, "tool": "t", "content": "", "outcome": outcome, "seconds": 0}
    return {"type": "tool_result", "data": data, "dedup_key": f"w:result:{call_id}"}


async def test_cancels_and_decisions_at_once_leave_no_approval_open(stage, stages):
    """Case 51: 50 times."""
    client, reviewer = stages
    for n in range(50):
        session, [approval] = await stage.with_approvals()

        async def decide(approval=approval):
            try:
                return await reviewer.decide(approval)
            except asyncpg.PostgresError as error:
                return error.sqlstate

        pair = (client.cancel(session), decide())
        await asyncio.gather(*(pair if n % 2 else reversed(pair)))
        assert await stage.status(session) == "cancelled"
        assert (await stage.approval_states(session))[0] in ("approved", "obsolete")
        assert (await stage.types(session))[-1] == "session_cancelled"
        with refused("AR002" if (await stage.approval_states(session)) == ["obsolete"] else "AR003"):
            await stage.decide(approval, "rejected")


async def test_cancel_counts_the_time_that_the_session_ran(stage):
    session = await stage.running()
    await stage.connection.execute(
        "update agentrt.sessions set lease_acquired_at = now() - interval '90 seconds', running_seconds = 10"
    )
    await stage.cancel(session)
    assert 99 < (await stage.head(session))["running_seconds"] < 130


async def test_clients_of_many_sessions_in_one_transaction_may_deadlock_and_lose_nothing(stage, stages):
    """Case 73: a client gets 40P01 at the worst, and repeats."""
    one, two = stages
    left, right = await stage.create(), await stage.create()

    async def both(client: Stage, first, second):
        while True:
            transaction = client.connection.transaction()
            await transaction.start()
            try:
                await client.send(first)
                await client.send(second)
            except asyncpg.DeadlockDetectedError:
                await transaction.rollback()
            else:
                await transaction.commit()
                return

    await asyncio.gather(*(both(*arguments) for arguments in ((one, left, right), (two, right, left))))
    for session in (left, right):
        assert (await stage.types(session)).count("user_message") == 3
