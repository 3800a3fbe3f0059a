"""Messages to sessions in every status, through the database alone."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from tests.postgres.stage import Stage, answer, blocked, refused


async def test_a_message_to_a_queued_session_is_kept_and_changes_nothing_else(stage):
    """Case 37."""
    session = await stage.create("one")
    assert await stage.send(session, "two") == 3
    assert await stage.send(session, "three") == 4
    assert await stage.types(session) == ["session_created"] + ["user_message"] * 3
    head = await stage.head(session)
    assert (head["status"], head["run"], head["last_seq"]) == ("queued", 1, 4)


async def test_a_message_to_a_running_session_tells_its_worker(stage, connect):
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_control", lambda *message: heard.append(message[-1]))
    session = await stage.running()
    seq = await stage.send(session, "look here")
    await listener.execute("select 1")
    assert heard == [f'["{session}"]']
    message = (await stage.entries(session))[-1]
    assert (message.seq, message.type, message.attempt, message.token) == (seq, "user_message", 1, 1)
    assert message.worker_id is None
    assert await stage.status(session) == "running"


async def test_a_message_wakes_a_session_that_waits_for_input(stage, connect):
    heard: list[str] = []
    session = await stage.suspended("input")
    listener = await connect()
    await listener.add_listener("agentrt_ready", lambda *message: heard.append(message[-1]))
    seq = await stage.send(session, "the answer")
    await listener.execute("select 1")
    head = await stage.head(session)
    assert heard == [f'["{head["queue"]}"]']
    message, woken = (await stage.entries(session))[-2:]
    assert (message.seq, message.type) == (seq, "user_message")
    assert (woken.type, woken.data) == ("session_woken", {"by": "message"})
    assert (head["status"], head["suspension"], head["due"]) == ("queued", None, True)
    assert (head["run"], head["attempt"]) == (1, 0)
    await stage.take(session)


async def test_a_message_to_a_session_that_waits_for_something_else_is_kept(stage):
    for reason in ("approval", "external", "blocked", "budget"):
        session = await stage.suspended(reason, "000004000")
        await stage.send(session, "by the way")
        assert await stage.status(session) == "suspended"
        assert (await stage.types(session))[-2:] == ["session_suspended", "user_message"]


async def test_a_message_to_a_session_that_has_ended_begins_a_new_run(stage):
    """Case 37."""
    for status in ("completed", "failed", "cancelled"):
        session = await stage.ended(status)
        before = await stage.head(session)
        await stage.send(session, "again")
        head = await stage.head(session)
        assert (head["status"], head["run"], head["attempt"], head["takeovers"]) == ("queued", 2, 0, 0)
        assert (head["outcome"], head["finished_at"]) == (None, None)
        assert (head["turns"], head["input_tokens"], head["output_tokens"], head["cost"]) == (0, 0, 0, 0)
        assert head["running_seconds"] == 0
        assert head["fencing_token"] == before["fencing_token"]
        message = (await stage.entries(session))[-1]
        assert (message.type, message.run, message.attempt) == ("user_message", 2, 0)


async def test_after_cancelling_a_running_session_a_new_run_waits_for_one_heartbeat_of_the_old_owner(stage):
    """Case 37."""
    session = await stage.create()
    await stage.take(session, await stage.worker(heartbeat_seconds=3600))
    await stage.cancel(session)
    cancelled_at = (await stage.head(session))["finished_at"]
    await stage.send(session, "again")
    head = await stage.head(session)
    assert head["due"] is False
    assert timedelta(minutes=59) < head["ready_at"] - cancelled_at < timedelta(minutes=61)
    await stage.cancel(session)  # and again, while queued: the rest is kept
    await stage.send(session, "and again")
    assert (await stage.head(session))["ready_at"] == head["ready_at"]


async def test_a_cancelled_schedule_does_not_hold_up_the_next_message(stage):
    session = await stage.create(ready_at="2999-01-01T00:00:00Z")
    await stage.cancel(session)
    await stage.send(session, "now, please")
    head = await stage.head(session)
    assert head["ready_at"] - head["created_at"] < timedelta(seconds=60)


async def test_a_revived_conversation_waits_behind_newer_ones(stage):
    """Case 5."""
    old = await stage.running(queue="default")
    await stage.complete(old)
    newer = await stage.create()
    await stage.send(old)
    assert await stage.claim(await stage.worker(), limit=1) == [newer]


async def test_a_session_that_never_reached_a_model_runs_normally_after_a_message(stage):
    """Case 38."""
    cancelled = await stage.create()
    await stage.cancel(cancelled)
    failed = await stage.running(max_attempts=1)
    assert await stage.end(failed, "crash", message="boom") == "written"
    assert await stage.status(failed) == "failed"
    for session in (cancelled, failed):
        await stage.send(session, "go")
    for session in (cancelled, failed):
        await stage.take(session)
        assert await stage.append(session, answer(text="hi")) == "written"
        assert await stage.complete(session) == "written"
        assert await stage.status(session) == "completed"


async def test_one_request_id_is_one_message(stage):
    """Case 39."""
    session = await stage.running()
    seqs = {await stage.send(session, "pay", request_id="r-1") for _ in range(3)}
    assert seqs == {4}
    assert (await stage.types(session)).count("user_message") == 2
    await stage.complete(session)
    assert await stage.send(session, "pay", request_id="r-1") == 4
    assert await stage.status(session) == "completed"


async def test_a_repeated_message_is_answered_from_the_journal_even_when_archived(stage):
    session = await stage.create()
    seq = await stage.send(session, "pay", request_id="r-1")
    await stage.cancel(session)
    await stage.call("archive_session", session)
    assert await stage.send(session, "pay", request_id="r-1") == seq
    with refused("AR006"):
        await stage.send(session, "pay", request_id="r-2")


async def test_one_request_id_for_two_messages_is_a_conflict(stage):
    session = await stage.running()
    await stage.send(session, "pay", request_id="r-1")
    before = await stage.everything(session)
    for message, options in (("pay more", {}), ("pay", {"when_running": "interrupt"})):
        with refused("AR003", "r-1"):
            await stage.send(session, message, request_id="r-1", **options)
    assert await stage.everything(session) == before


async def test_a_long_request_id_works_like_a_short_one(stage):
    session = await stage.create()
    name = "ü" * 100_000
    assert await stage.send(session, "a", request_id=name) == await stage.send(session, "a", request_id=name)
    with refused("AR003"):
        await stage.send(session, "b", request_id=name)


async def test_one_request_id_from_eight_connections_is_one_message(stage, connect):
    """Case 39."""
    stages = [Stage(await connect()) for _ in range(8)]
    for _ in range(10):
        session = await stage.ended("completed")
        seqs = await asyncio.gather(*(s.send(session, "pay", request_id="r") for s in stages))
        assert len(set(seqs)) == 1
        assert (await stage.head(session))["run"] == 2


async def test_a_queued_message_waits_for_the_next_run_in_every_active_status(stage):
    """Case 86."""
    for session in (await stage.create(), await stage.running(), await stage.suspended("blocked")):
        before = await stage.status(session)
        seq = await stage.send(session, "later", when_running="queue")
        entry = (await stage.entries(session))[-1]
        assert (entry.seq, entry.type, entry.data["content"][0]["text"]) == (seq, "message_queued", "later")
        assert await stage.status(session) == before


async def test_a_queued_message_is_an_ordinary_one_where_no_run_is_on(stage):
    for session in (await stage.suspended("input"), await stage.ended("completed")):
        await stage.send(session, "now", when_running="queue")
        assert "message_queued" not in await stage.types(session)
        assert await stage.status(session) == "queued"


async def test_queued_messages_begin_the_next_runs_in_their_order(stage):
    """Case 86."""
    session = await stage.running()
    worker = (await stage.head(session))["lease_owner"]
    queued = [await stage.send(session, text, when_running="queue") for text in ("first", "second")]
    steered = await stage.send(session, "steer")
    for run, (seq, ending) in enumerate(zip(queued, (stage.complete, stage.fail), strict=True), start=2):
        assert await ending(session) == "written"
        message = (await stage.entries(session))[-1]
        assert (message.type, message.run, message.data["message_seq"]) == ("user_message", run, seq)
        head = await stage.head(session)
        assert (head["status"], head["run"], head["attempt"], head["outcome"]) == ("queued", run, 0, None)
        await stage.take(session, worker)
    await stage.complete(session)
    assert await stage.status(session) == "completed"
    delivered = [e.data.get("message_seq", e.seq) for e in await stage.entries(session) if e.type == "user_message"]
    assert sorted(delivered) == sorted([2, steered, *queued])


async def test_a_queued_message_begins_the_next_run_when_the_attempts_are_exhausted(stage):
    """Case 86."""
    session = await stage.running(max_attempts=1)
    await stage.send(session, "later", when_running="queue")
    assert await stage.end(session, "crash", message="boom") == "written"
    assert (await stage.types(session))[-3:] == ["session_released", "session_failed", "user_message"]
    head = await stage.head(session)
    assert (head["status"], head["run"], head["attempt"], head["takeovers"]) == ("queued", 2, 0, 0)


async def test_a_cancel_drops_queued_messages_and_lists_them(stage):
    """Case 86."""
    session = await stage.running()
    dropped = [await stage.send(session, text, when_running="queue") for text in ("a", "b")]
    await stage.cancel(session)
    assert (await stage.entries(session))[-1].data["dropped"] == dropped
    await stage.send(session, "new")
    await stage.take(session)
    kept = await stage.send(session, "c", when_running="queue")
    await stage.complete(session)
    assert (await stage.entries(session))[-1].data["message_seq"] == kept
    await stage.cancel(session)
    assert (await stage.entries(session))[-1].data["dropped"] == []


async def test_an_interrupt_makes_open_approvals_obsolete_and_wakes(stage):
    session, _ = await stage.with_approvals(2)
    await stage.send(session, "stop that", when_running="interrupt")
    assert await stage.status(session) == "queued"
    assert await stage.approval_states(session) == ["obsolete", "obsolete"]
    message, *decided, woken = (await stage.entries(session))[-4:]
    assert (message.type, message.data["when_running"]) == ("user_message", "interrupt")
    assert {(e.type, e.data["verdict"]) for e in decided} == {("approval_decided", "obsolete")}
    assert woken.data == {"by": "interrupt"}


async def test_an_interrupt_of_a_running_session_makes_its_approvals_obsolete(stage):
    session, _ = await stage.with_approvals(1, suspended=False)
    await stage.send(session, "stop that", when_running="interrupt")
    assert await stage.status(session) == "running"
    assert await stage.approval_states(session) == ["obsolete"]


async def test_a_plain_message_leaves_approvals_open(stage):
    session, _ = await stage.with_approvals()
    await stage.send(session, "by the way")
    assert await stage.status(session) == "suspended"
    assert await stage.approval_states(session) == ["pending"]


async def test_reject_refuses_while_a_run_is_on(stage):
    for session in (await stage.create(), await stage.running(), await stage.suspended("blocked")):
        before = await stage.everything(session)
        with refused("AR002", await stage.status(session), str(session)):
            await stage.send(session, when_running="reject")
        assert await stage.everything(session) == before
    for session in (await stage.suspended("input"), await stage.ended("failed")):
        await stage.send(session, when_running="reject")
        assert await stage.status(session) == "queued"


async def test_bad_messages_change_nothing(stage):
    session = await stage.running()
    before = await stage.everything(session)
    for message, options, word in (
        (None, {}, "missing"),
        ("", {}, "empty"),
        ("hi", {"when_running": "later"}, "later"),
        ("hi", {"when_running": 3}, "when_running"),
        ("hi", {"request_id": ""}, "request_id"),
        ("hi", {"content": [{"type": "text", "text": "hi"}]}, "exclude"),
        (None, {"content": [{"type": "sound"}]}, "sound"),
        ("x" * (8 * 1024 * 1024 + 1), {}, "8388609"),
    ):
        with refused("AR004", word):
            await stage.send(session, message, **options)
    assert await stage.everything(session) == before
    unknown = "00000000-0000-0000-0000-000000000000"
    with refused("AR001", unknown):
        await stage.send(unknown)
    with refused("AR001", "null"):
        await stage.call("send_message", None, "hi")


async def test_a_message_committed_before_the_ending_makes_it_stale(stage, stages):
    """Case 30: every kind of ending that waits or completes, every kind of message."""
    client, worker = stages
    for mode in ("steer", "queue", "interrupt"):
        for ending in (Stage.complete, Stage.suspend):
            session = await stage.running()
            held = await worker.head(session)
            await client.send(session, when_running=mode)
            arguments = ("input",) if ending is Stage.suspend else ()
            assert await ending(worker, session, *arguments, held=held) == "stale"
            assert await stage.status(session) == "running"


async def test_an_ending_does_not_wait_for_a_message_that_is_not_committed(stage, stages):
    """Case 30: the answer is busy, and stale once the message is there."""
    client, worker = stages
    session = await stage.running()
    held = await worker.head(session)
    transaction = client.connection.transaction()
    await transaction.start()
    await client.send(session)
    assert await worker.complete(session, held=held) == "busy"
    await transaction.commit()
    assert await worker.complete(session, held=held) == "stale"


@pytest.mark.timeout(300)  # 200 races beside other tests
async def test_messages_that_race_with_an_ending_are_seen_exactly_once(stage, stages):
    """Case 30, F24: 200 times. Either the ending is not written, or the message begins the next run or wakes."""
    client, worker = stages
    owner = await stage.worker()
    said = Counter[str]()
    for n in range(200):
        session = await stage.create()
        await stage.take(session, owner)
        held = await stage.head(session)
        mode = ("steer", "queue", "interrupt")[n % 3]
        completes = n % 2 == 0
        ending = worker.complete(session, held=held) if completes else worker.suspend(session, "input", held=held)
        sending = client.send(session, when_running=mode)
        pair = await asyncio.gather(*((ending, sending) if n % 4 < 2 else (sending, ending)))
        answer, seq = pair if n % 4 < 2 else reversed(pair)
        said[answer] += 1
        message = (await stage.entries(session))[seq - 1]
        head = await stage.head(session)
        if answer == "written":
            assert (head["status"], head["run"], message.type) == ("queued", 2 if completes else 1, "user_message")
        else:
            assert head["status"] == "running"
            assert message.type == ("message_queued" if mode == "queue" else "user_message")
        await stage.cancel(session)
    assert said.keys() <= {"written", "stale", "busy"}
    assert len(said) > 1, "no race happened"


async def test_a_message_waits_for_an_ending_that_holds_the_row_and_begins_a_new_run(stage, stages):
    """Case 30: the command decides on the locked row, not on what it had seen before."""
    client, worker = stages
    for ending, run in ((worker.complete, 2), (worker.fail, 2)):
        session = await stage.running()
        transaction = worker.connection.transaction()
        await transaction.start()
        assert await ending(session) == "written"
        sending = asyncio.create_task(client.send(session))
        await blocked(stage.connection, client.connection)
        await transaction.commit()
        await sending
        head = await stage.head(session)
        assert (head["status"], head["run"]) == ("queued", run)


async def test_a_claim_that_skipped_a_session_because_of_a_message_is_called_again(stage, stages, connect):
    """Case 8."""
    client, worker = stages
    heard: list[str] = []
    listener = await connect()
    session = await stage.create()
    await listener.add_listener("agentrt_ready", lambda *message: heard.append(message[-1]))
    owner = await stage.worker()
    transaction = client.connection.transaction()
    await transaction.start()
    await client.send(session)
    assert await worker.claim(owner) == []
    await transaction.commit()
    await listener.execute("select 1")
    assert heard == ['["default"]']
    assert await worker.claim(owner) == [session]
