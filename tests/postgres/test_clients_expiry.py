"""Deferred calls whose time is over: they get a result, and their session wakes."""

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

from agentrt.core.calls import unknown
from tests.postgres.stage import answer, approval_request, deferral, refused

GONE_AT_ONCE = 0.000001
"""Seconds that are over when the deferral has been committed."""


async def expiry(stage, session):
    return (await stage.head(session))["suspension"]


async def test_a_deferred_call_whose_time_is_over_gets_a_result_and_its_session_wakes(stage):
    """Case 49: nobody waits for ever for a result that never comes."""
    session, [call] = await stage.with_calls(expires_seconds=GONE_AT_ONCE)
    assert (await stage.sweep())["expired"] == 1
    *_, result, woken = await stage.entries(session)
    assert (result.type, result.data["outcome"], result.data["call_id"]) == ("tool_result", "timeout", call)
    assert result.data["content"] == "No result came within 0.000001 s."
    assert (woken.type, woken.data) == ("session_woken", {"by": "expiry"})
    assert await stage.status(session) == "queued"
    assert (await stage.sweep())["expired"] == 0
    with refused("AR003", call, "timeout"):
        await stage.complete_call(session, call)


@pytest.mark.parametrize(("seconds", "words"), [(0.5, "0.5 s"), (3600.0, "3600 s"), (1e-6, "0.000001 s")])
@pytest.mark.parametrize("effect", ["once", "transactional"])
async def test_where_something_was_left_behind_the_outcome_is_unknown_in_the_words_of_every_unknown_outcome(
    stage, effect, seconds, words
):
    said = await stage.connection.fetchval(
        "select agentrt._expired_words($1, $2::jsonb::numeric)", effect, str(seconds)
    )
    assert said == unknown(f"no result came within {words}.")
    session, _ = await stage.with_calls(effect=effect, expires_seconds=GONE_AT_ONCE)
    await stage.sweep()
    assert (await stage.entries(session))[-2].data["outcome"] == "unknown"


async def test_a_suspension_says_when_the_first_of_its_deferred_calls_has_waited_for_too_long(stage):
    session = await stage.running()
    await stage.append(session, answer("ask_boss", "ask_boss", "ask_boss"))
    calls = [block["call_id"] for block in (await stage.entries(session))[-1].data["content"]]
    await stage.append(session, deferral(calls[0], expires_seconds=7200), deferral(calls[1], expires_seconds=3600.5))
    await stage.append(session, deferral(calls[2]))
    started = await stage.connection.fetchval(
        "select min(created_at) from agentrt.journal where session_id = $1 and data ->> 'call_id' = $2",
        *(session, calls[1]),
    )
    assert await stage.suspend(session, "external", *calls) == "written"
    said = (await stage.entries(session))[-1].data["suspension"]["expires_at"]
    assert datetime.fromisoformat(said) == started + timedelta(seconds=3600.5)
    assert said in await expiry(stage, session)
    assert (await stage.sweep())["expired"] == 0
    assert await stage.status(session) == "suspended"


async def test_calls_without_a_limit_wait_for_ever_and_their_suspension_says_nothing_of_an_end(stage):
    session, _ = await stage.with_calls(2)
    assert "expires_at" not in await expiry(stage, session)
    assert (await stage.sweep())["expired"] == 0


async def test_of_two_deferred_calls_one_that_expires_does_not_wake_and_the_other_one_expires_later(stage):
    session = await stage.running()
    await stage.append(session, answer("ask_boss", "ask_boss"))
    late, early = [block["call_id"] for block in (await stage.entries(session))[-1].data["content"]]
    await stage.append(session, deferral(late, expires_seconds=3600), deferral(early, expires_seconds=GONE_AT_ONCE))
    assert await stage.suspend(session, "external", late, early) == "written"
    before = await expiry(stage, session)
    assert (await stage.sweep())["expired"] == 1
    assert await stage.status(session) == "suspended"
    assert await expiry(stage, session) > before
    assert (await stage.sweep())["expired"] == 0
    assert await stage.complete_call(session, late) == "queued"


async def test_a_deferred_call_expires_beside_an_approval_that_is_still_open(stage):
    session = await stage.running()
    await stage.append(session, answer("ask_boss", "pay"), approval_request(1))
    waiting, asked = [block["call_id"] for block in (await stage.entries(session))[3].data["content"]]
    await stage.append(session, deferral(waiting, expires_seconds=GONE_AT_ONCE))
    assert await stage.suspend(session, "approval", waiting, asked) == "written"
    assert (await stage.sweep())["expired"] == 1
    assert await stage.status(session) == "suspended"
    assert "expires_at" not in await expiry(stage, session)
    approval = await stage.connection.fetchval("select id from agentrt.approvals where session_id = $1", session)
    assert await stage.decide(approval) == "queued"


async def test_a_call_that_was_approved_and_then_deferred_is_waited_for_until_its_result_comes(stage):
    session, [approval, *others] = await stage.with_approvals(3, suspended=False)
    pay, first, second = "000004000", "000004001", "000004002"
    assert await stage.decide(approval) == "running"
    await stage.append(session, deferral(pay, tool="pay", expires_seconds=3600))
    assert await stage.suspend(session, "approval", first, second, pay) == "written"
    expires_at = json.loads(await expiry(stage, session))["expires_at"]
    assert await stage.decide(others[0]) == "suspended"
    suspension = json.loads(await expiry(stage, session))
    assert suspension["waits_for"] == [second, pay]
    assert suspension["expires_at"] == expires_at
    assert await stage.decide(others[1]) == "suspended"
    assert await stage.complete_call(session, pay) == "queued"


async def test_a_result_that_came_while_the_session_ran_is_not_expired(stage):
    session, [call] = await stage.with_calls(suspended=False, expires_seconds=GONE_AT_ONCE)
    assert await stage.complete_call(session, call) == "running"
    assert (await stage.sweep())["expired"] == 0
    assert [e.data["outcome"] for e in await stage.entries(session) if e.type == "tool_result"] == ["ok"]


async def test_a_running_session_is_left_alone_and_expires_once_it_waits(stage):
    session, [call] = await stage.with_calls(suspended=False, expires_seconds=GONE_AT_ONCE)
    assert (await stage.sweep())["expired"] == 0
    assert await stage.suspend(session, "external", call) == "written"
    assert (await stage.sweep())["expired"] == 1
    assert await stage.status(session) == "queued"


async def test_a_result_and_an_expiry_that_race_leave_one_result(stages, stage):
    """Case 49."""
    client, sweeper = stages
    outcomes: Counter[str] = Counter()
    for turn in range(40):
        session, [call] = await stage.with_calls(expires_seconds=GONE_AT_ONCE)
        pair = [client.complete_call(session, call), sweeper.connection.fetchval("select agentrt._expire($1)", session)]
        await asyncio.gather(*(pair if turn % 2 else reversed(pair)), return_exceptions=True)
        await stage.connection.fetchval("select agentrt._expire($1)", session)
        [result] = [e for e in await stage.entries(session) if e.type == "tool_result"]
        assert await stage.status(session) == "queued"
        outcomes[result.data["outcome"]] += 1
    assert set(outcomes) <= {"ok", "timeout"}


@pytest.mark.parametrize("limit", ["soon", None, [1], {"a": 1}, -5, 1e300, True])
async def test_a_limit_that_no_worker_writes_stops_no_sweep(stage, limit):
    odd, _ = await stage.with_calls(expires_seconds=limit)
    other, _ = await stage.with_calls(expires_seconds=GONE_AT_ONCE)
    swept = await stage.sweep()
    assert swept["expired"] == (2 if limit == -5 else 1)
    assert await stage.status(other) == "queued"
    assert await stage.status(odd) == ("queued" if limit == -5 else "suspended")


async def test_a_moment_that_stands_wrongly_in_a_suspension_is_put_right_by_the_sweep(stage):
    session, _ = await stage.with_calls(expires_seconds=3600)
    right = await expiry(stage, session)
    await stage.connection.execute(
        """update agentrt.sessions set suspension = suspension || '{"expires_at": "1999"}' where id = $1""", session
    )
    assert (await stage.sweep())["expired"] == 0
    assert await expiry(stage, session) == right
