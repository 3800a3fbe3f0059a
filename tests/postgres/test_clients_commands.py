"""The operator's commands: resume, retry, archive, release; through the database alone."""

import asyncio
import json
from datetime import timedelta

import asyncpg

from tests.postgres.stage import answer, refused

COMMANDS = ("resume_session", "retry_session", "archive_session", "release_session")
UNKNOWN = "00000000-0000-0000-0000-000000000000"


async def test_an_unknown_session_is_refused_by_every_command(stage):
    for command in (*COMMANDS, "cancel_session", "read_journal", "follow_session"):
        with refused("AR001", UNKNOWN):
            await stage.call(command, UNKNOWN)
    with refused("AR001", UNKNOWN):
        await stage.decide(UNKNOWN)
    with refused("AR001", UNKNOWN):
        await stage.complete_call(UNKNOWN, "000001000")


async def test_an_archived_session_takes_nothing_but_reading(stage):
    """Case 9."""
    for status in ("completed", "failed", "cancelled"):
        session = await stage.ended(status)
        assert await stage.call("archive_session", session) == status
        before = await stage.everything(session)
        assert await stage.call("archive_session", session) == status
        for command in ("resume_session", "retry_session", "release_session", "cancel_session"):
            with refused("AR006", str(session)):
                await stage.call(command, session)
        for mode in ("steer", "queue", "interrupt", "reject"):
            with refused("AR006", str(session)):
                await stage.send(session, when_running=mode)
        assert await stage.everything(session) == before
        rows = await stage.connection.fetch("select * from agentrt.read_journal($1)", session)
        assert len(rows) == (await stage.head(session))["last_seq"]


async def test_only_what_has_ended_can_be_archived(stage):
    """Case 9."""
    for session in (await stage.create(), await stage.running(), await stage.suspended()):
        status = await stage.status(session)
        before = await stage.everything(session)
        with refused("AR002", status):
            await stage.call("archive_session", session)
        assert await stage.everything(session) == before


async def test_a_forced_release_takes_the_session_from_its_owner_uncharged(stage):
    """Case 26."""
    session = await stage.create()
    await stage.take(session, await stage.worker(heartbeat_seconds=3600))
    held = await stage.head(session)
    assert await stage.call("release_session", session, {"reason": "stuck"}) == "queued"
    head = await stage.head(session)
    assert (head["status"], head["fencing_token"], head["attempt"], head["takeovers"]) == ("queued", 2, 1, 0)
    assert (head["due"], head["lease_owner"]) == (False, None)
    assert timedelta(hours=1) <= head["ready_at"] - held["lease_acquired_at"] < timedelta(hours=2)
    entry = (await stage.entries(session))[-1]
    assert (entry.type, entry.data) == ("session_released", {"reason": "forced", "message": "stuck"})
    before = await stage.everything(session)
    assert await stage.complete(session, held=held) == "lost"
    assert await stage.everything(session) == before


async def test_only_a_running_session_can_be_released(stage):
    for session in (await stage.create(), await stage.suspended(), await stage.ended("failed")):
        with refused("AR002", await stage.status(session)):
            await stage.call("release_session", session)


async def test_a_retry_begins_a_new_run_without_a_message(stage):
    """Case 40."""
    for status in ("failed", "cancelled"):
        session = await stage.ended(status)
        assert await stage.call("retry_session", session, {"run": 1}) == "queued"
        head = await stage.head(session)
        assert (head["status"], head["run"], head["attempt"], head["outcome"]) == ("queued", 2, 0, None)
        entry = (await stage.entries(session))[-1]
        assert (entry.type, entry.run) == ("session_retried", 2)


async def test_a_retry_of_anything_else_is_refused(stage):
    """Case 40."""
    sessions = [await stage.create(), await stage.running(), await stage.suspended(), await stage.ended("completed")]
    for session in sessions:
        before = await stage.everything(session)
        with refused("AR002", await stage.status(session)):
            await stage.call("retry_session", session)
        assert await stage.everything(session) == before


async def test_a_retry_that_names_another_run_is_refused(stage):
    """Case 40."""
    session = await stage.ended("failed")
    with refused("AR002", "run 7"):
        await stage.call("retry_session", session, {"run": 7})
    assert await stage.status(session) == "failed"


async def test_a_retry_after_cancelling_a_running_session_waits_for_the_old_owner(stage):
    session = await stage.ended("cancelled")
    await stage.call("retry_session", session)
    assert (await stage.head(session))["due"] is False


async def test_two_retries_at_once_begin_one_run(stage, stages):
    """Case 40: 50 times."""

    async def retry(one, session):
        try:
            return await one.call("retry_session", session)
        except asyncpg.PostgresError as error:
            return error.sqlstate

    for _ in range(50):
        session = await stage.create()
        await stage.cancel(session)
        results = await asyncio.gather(*(retry(one, session) for one in stages))
        assert sorted(results) == ["AR002", "queued"]
        assert (await stage.head(session))["run"] == 2


async def test_resume_wakes_a_suspended_session(stage):
    for reason in ("input", "external", "blocked", "budget"):
        session = await stage.suspended(reason)
        assert await stage.call("resume_session", session) == "queued"
        assert (await stage.entries(session))[-1].data == {"by": "resume"}
        head = await stage.head(session)
        assert (head["status"], head["suspension"], head["due"]) == ("queued", None, True)


async def test_resume_of_anything_else_is_refused(stage):
    sessions = [await stage.create(), await stage.running(), *[await stage.ended(s) for s in ("completed", "failed")]]
    for session in sessions:
        with refused("AR002", await stage.status(session)):
            await stage.call("resume_session", session)


async def test_open_approvals_are_in_the_way_of_a_resume_unless_it_is_forced(stage):
    """Case 52."""
    session, _ = await stage.with_approvals(2)
    before = await stage.everything(session)
    with refused("AR002", "suspended", "2 approvals"):
        await stage.call("resume_session", session)
    assert await stage.everything(session) == before
    assert await stage.call("resume_session", session, {"force": True}) == "queued"
    assert await stage.approval_states(session) == ["obsolete", "obsolete"]
    *decided, woken = (await stage.entries(session))[-3:]
    assert woken.data == {"by": "resume", "force": True}
    assert [entry.data["verdict"] for entry in decided] == ["obsolete", "obsolete"]


async def test_one_open_approval_is_told_in_words_that_a_shells_user_understands_too(stage):
    session, _ = await stage.with_approvals(1)
    with refused("AR002", "1 approval is open: decide it, or resume with force, which makes it obsolete"):
        await stage.call("resume_session", session)


async def test_resume_with_limits_merges_them_into_the_config(stage):
    session = await stage.running(config={"limits": {"turns": 3, "tokens": 5}, "model": "m"})
    await stage.suspend(session, "budget")
    await stage.call("resume_session", session, {"limits": {"turns": 10, "cost": 0.5}})
    config = json.loads((await stage.head(session))["config"])
    assert config == {"limits": {"turns": 10, "tokens": 5, "cost": 0.5}, "model": "m"}
    assert (await stage.entries(session))[-1].data == {"by": "resume", "limits": {"turns": 10, "cost": 0.5}}


async def test_a_limit_can_be_lifted(stage):
    session = await stage.running(config={"limits": {"tokens": 5}})
    await stage.suspend(session, "budget")
    await stage.call("resume_session", session, {"limits": {"tokens": None}})
    assert json.loads((await stage.head(session))["config"]) == {"limits": {"tokens": None}}
    assert (await stage.entries(session))[-1].data["limits"] == {"tokens": None}


async def test_bad_options_of_resume_are_refused(stage):
    session = await stage.suspended("budget")
    before = await stage.everything(session)
    for options in (
        {"force": "yes"},
        {"limits": 3},
        {"limits": {"turns": 0}},
        {"limits": {"turns": 1.5}},
        {"limits": {"cost": "1"}},
        {"limits": {"token": 5}},
    ):
        with refused("AR004", str(next(iter(options)))):
            await stage.call("resume_session", session, options)
    assert await stage.everything(session) == before


async def test_reading_is_in_order_and_in_pages(stage):
    session = await stage.running()
    await stage.append(session, answer(text="one"), answer(text="two"))
    read = "select seq, run, attempt, fencing_token, worker_id, type, data, created_at from agentrt.read_journal"
    rows = await stage.connection.fetch(f"{read}($1)", session)
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[3]["worker_id"] == (await stage.head(session))["lease_owner"]
    rows = await stage.connection.fetch(f"{read}($1, 1, 2)", session)
    assert [(row["seq"], row["type"]) for row in rows] == [(2, "user_message"), (3, "session_claimed")]
    assert await stage.connection.fetch(f"{read}($1, 5)", session) == []


async def test_reading_beyond_the_end_or_without_a_limit_is_refused(stage):
    session = await stage.create()
    for after, most, word in ((3, 5, "3"), (-1, 5, "-1"), (None, 5, "null"), (0, 0, "0"), (0, 10_001, "10001")):
        with refused("AR004", word):
            await stage.call("read_journal", session, after, most)


async def test_a_follower_is_told_of_new_entries_until_its_time_is_over(stage, connect):
    """Case 93."""
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_journal", lambda *message: heard.append(message[-1]))
    session = await stage.create()
    await stage.send(session, "nobody follows")
    until = await stage.call("follow_session", session, 60)
    assert await stage.call("follow_session", session, 10) == until
    await stage.send(session, "somebody follows")
    await stage.cancel(session)
    await listener.execute("select 1")
    assert heard == [f'["{session}"]'] * 2
    await stage.connection.execute("update agentrt.followers set expires_at = now() - interval '1 second'")
    await stage.send(session, "nobody any more")
    await listener.execute("select 1")
    assert len(heard) == 2


async def test_a_worker_is_told_of_the_first_follower(stage, connect):
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_control", lambda *message: heard.append(message[-1]))
    session = await stage.running()
    for _ in range(3):
        await stage.call("follow_session", session)
    await listener.execute("select 1")
    assert heard == [f'["{session}"]']


async def test_following_for_no_time_or_for_ever_is_refused(stage):
    session = await stage.create()
    for seconds in (0, -5, 3601, None):
        with refused("AR004", "seconds"):
            await stage.call("follow_session", session, seconds)
