"""Decisions and deferred results, through the database alone."""

import asyncio
from collections import Counter

import asyncpg

from tests.postgres.stage import ARGUMENTS_HASH, answer, approval_request, blocked, deferral, refused


async def test_a_session_wakes_when_the_last_of_its_approvals_is_decided(stage):
    """Case 45, F4."""
    session, [first, second, third] = await stage.with_approvals(3)
    assert await stage.decide(first, "approved", "ann") == "suspended"
    assert await stage.decide(second, "rejected", "bob", comment="too much") == "suspended"
    assert await stage.decide(third, "approved", "ann", arguments_hash=ARGUMENTS_HASH) == "queued"
    assert await stage.approval_states(session) == ["approved", "rejected", "approved"]
    *_, rejected, approved, woken = await stage.entries(session)
    assert rejected.data == {
        "approval_id": str(second),
        "call_id": "000004001",
        "verdict": "rejected",
        "reviewer": "bob",
        "comment": "too much",
    }
    assert (approved.type, approved.data["verdict"], approved.worker_id) == ("approval_decided", "approved", None)
    assert (woken.type, woken.data) == ("session_woken", {"by": "decision"})


async def test_siblings_run_and_commit_while_approvals_are_open_and_decisions_are_taken(stage, connect):
    """Case 45."""
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_control", lambda *message: heard.append(message[-1]))
    session, [approval] = await stage.with_approvals(1, suspended=False)
    assert await stage.decide(approval) == "running"
    await listener.execute("select 1")
    assert heard == [f'["{session}"]']
    assert await stage.append(session, answer(text="sibling")) == "written"


async def test_a_decision_is_taken_while_a_released_session_is_queued(stage):
    session, [approval] = await stage.with_approvals(1, suspended=False)
    await stage.end(session, "release", reason="drain")
    assert await stage.decide(approval) == "queued"
    assert "session_woken" not in await stage.types(session)


async def test_two_reviewers_at_once_wake_a_session_exactly_once(stage, stages):
    """Case 45, F24: 100 times."""
    for n in range(100):
        session, approvals = await stage.with_approvals(2)
        pair = [
            one.decide(approval, ("approved", "rejected")[n % 2])
            for one, approval in zip(stages, approvals, strict=True)
        ]
        assert sorted(await asyncio.gather(*pair)) == ["queued", "suspended"]
        assert (await stage.types(session)).count("session_woken") == 1
        assert (await stage.types(session)).count("approval_decided") == 2
        assert await stage.status(session) == "queued"


async def test_the_last_decision_waits_for_the_one_before_and_then_wakes(stage, stages):
    """Case 45, F24."""
    first, second = stages
    session, [one, other] = await stage.with_approvals(2)
    transaction = first.connection.transaction()
    await transaction.start()
    assert await first.decide(one) == "suspended"
    deciding = asyncio.create_task(second.decide(other))
    await blocked(stage.connection, second.connection)
    await transaction.commit()
    assert await deciding == "queued"
    assert await stage.status(session) == "queued"


async def test_a_decision_for_other_arguments_is_refused_and_the_approval_stays_open(stage):
    """Case 46."""
    session, [approval] = await stage.with_approvals()
    before = await stage.everything(session)
    with refused("AR005", ARGUMENTS_HASH, "beef"):
        await stage.decide(approval, arguments_hash="beef")
    assert await stage.everything(session) == before
    assert await stage.decide(approval, arguments_hash=ARGUMENTS_HASH) == "queued"


async def test_the_same_decision_again_converges_and_another_is_a_conflict(stage):
    """Case 46."""
    session, [approval] = await stage.with_approvals()
    await stage.decide(approval, "approved", "ann", comment="ok")
    before = await stage.everything(session)
    assert await stage.decide(approval, "approved", "ann", comment="ok") == "queued"
    for verdict, reviewer, options in (
        ("rejected", "ann", {"comment": "ok"}),
        ("approved", "bob", {"comment": "ok"}),
        ("approved", "ann", {}),
    ):
        with refused("AR003", "approved", "ann"):
            await stage.decide(approval, verdict, reviewer, **options)
    assert await stage.everything(session) == before


async def test_opposite_decisions_at_once_have_one_outcome(stage, stages):
    """Case 46: 100 times."""
    outcomes = Counter[str]()

    async def decide(one, approval, verdict):
        try:
            return await one.decide(approval, verdict)
        except asyncpg.PostgresError as error:
            return error.sqlstate

    for n in range(100):
        session, [approval] = await stage.with_approvals()
        pair = [decide(one, approval, verdict) for one, verdict in zip(stages, ("approved", "rejected"), strict=True)]
        assert sorted(await asyncio.gather(*(pair if n % 2 else reversed(pair)))) == ["AR003", "queued"]
        [state] = await stage.approval_states(session)
        [decided] = [e for e in await stage.entries(session) if e.type == "approval_decided"]
        assert decided.data["verdict"] == state
        outcomes[state] += 1
    assert len(outcomes) == 2, "no race happened"


async def test_bad_decisions_are_refused(stage):
    session, [approval] = await stage.with_approvals()
    before = await stage.everything(session)
    for verdict, reviewer, options, word in (
        ("maybe", "ann", {}, "maybe"),
        (None, "ann", {}, "null"),
        ("obsolete", "ann", {}, "obsolete"),
        ("approved", "", {}, "reviewer"),
        ("approved", None, {}, "reviewer"),
        ("approved", "ann", {"comment": 3}, "comment"),
        ("approved", "ann", {"hash": "x"}, "hash"),
    ):
        with refused("AR004", word):
            await stage.decide(approval, verdict, reviewer, **options)
    assert await stage.everything(session) == before


async def test_an_approval_whose_time_is_over_can_no_longer_be_decided(stage):
    """Case 49."""
    session, [approval] = await stage.with_approvals(expires_seconds=60)
    await expire(stage, session)
    before = await stage.everything(session)
    with refused("AR002", "expired", "suspended"):
        await stage.decide(approval)
    assert await stage.everything(session) == before
    assert (await stage.sweep())["expired"] == 1
    assert await stage.status(session) == "queued"
    decided, woken = (await stage.entries(session))[-2:]
    assert (decided.data["verdict"], woken.data) == ("expired", {"by": "expiry"})
    with refused("AR002", "expired", "queued"):
        await stage.decide(approval)


async def expire(stage, session):
    await stage.connection.execute(
        "update agentrt.approvals set expires_at = clock_timestamp() - interval '1 second' where session_id = $1",
        session,
    )


async def test_one_expired_approval_of_two_does_not_wake(stage):
    """Case 49."""
    session, [_, second] = await stage.with_approvals(2)
    await stage.connection.execute(
        "update agentrt.approvals set expires_at = now() - interval '1 second' where session_id = $1 and id <> $2",
        *(session, second),
    )
    await stage.connection.fetchval("select agentrt._expire($1)", session)
    assert await stage.approval_states(session) == ["expired", "pending"]
    assert await stage.status(session) == "suspended"
    assert await stage.decide(second) == "queued"


async def test_a_decision_that_holds_the_session_is_not_overtaken_by_its_expiry(stage, stages):
    """Case 49: the sweep skips the session, and finds the decision when it comes again."""
    client, sweeper = stages
    session, [approval] = await stage.with_approvals()
    transaction = client.connection.transaction()
    await transaction.start()
    await client.decide(approval)
    await sweeper.connection.execute("set lock_timeout = '5s'")
    assert await sweeper.connection.fetchval("select agentrt._expire($1)", session) == 0
    await transaction.commit()
    await expire(stage, session)
    assert await sweeper.connection.fetchval("select agentrt._expire($1)", session) == 0
    assert await stage.approval_states(session) == ["approved"]


async def test_the_sweep_skips_a_session_that_a_client_holds(stage, stages):
    """Case 49, case 72."""
    client, sweeper = stages
    session, _ = await stage.with_approvals()
    await expire(stage, session)
    await sweeper.connection.execute("set lock_timeout = '1s'")
    transaction = client.connection.transaction()
    await transaction.start()
    await client.send(session)
    assert (await sweeper.sweep())["expired"] == 0
    await transaction.commit()
    assert (await sweeper.sweep())["expired"] == 1
    assert await stage.status(session) == "queued"


async def test_expiry_and_decision_at_once_have_one_outcome(stage, stages):
    """Case 49: 50 times."""
    client, sweeper = stages

    async def decide(approval):
        try:
            return await client.decide(approval)
        except asyncpg.PostgresError as error:
            return error.sqlstate

    for n in range(50):
        session, [approval] = await stage.with_approvals()
        await stage.connection.execute(
            "update agentrt.approvals set expires_at = clock_timestamp() + interval '1 ms' where id = $1", approval
        )
        pair = [decide(approval), sweeper.connection.fetchval("select agentrt._expire($1)", session)]
        await asyncio.gather(*(pair if n % 2 else reversed(pair)))
        while await stage.approval_states(session) == ["pending"]:
            await sweeper.connection.fetchval("select agentrt._expire($1)", session)
        assert await stage.status(session) == "queued"
        assert (await stage.types(session)).count("session_woken") == 1
        [decided] = [e for e in await stage.entries(session) if e.type == "approval_decided"]
        assert [decided.data["verdict"]] == await stage.approval_states(session)


async def test_a_cancel_makes_approvals_obsolete_for_good(stage):
    """Case 51."""
    session, [approval, other] = await stage.with_approvals(2)
    await stage.decide(other)
    await stage.cancel(session)
    before = await stage.everything(session)
    with refused("AR002", "obsolete", "cancelled"):
        await stage.decide(approval)
    assert await stage.everything(session) == before
    await stage.send(session, "go on")
    with refused("AR002", "obsolete", "queued"):
        await stage.decide(approval)
    await stage.take(session)
    for call in ("000004000", "000004001"):
        assert await stage.append(session, tool_result(call)) == "written"
    results = [e.data["call_id"] for e in await stage.entries(session) if e.type == "tool_result"]
    assert results == ["000004000", "000004001"]


def tool_result(call_id):
    data = {"call_id": call_id, "tool": "pay", "content": "", "outcome": "interrupted", "seconds": 0}
    return {"type": "tool_result", "data": data, "dedup_key": f"w:result:{call_id}"}


async def test_decisions_make_a_suspension_stale(stage):
    """Case 85: planned before the last decision, it is not written."""
    session, [approval] = await stage.with_approvals(1, suspended=False)
    held = await stage.head(session)
    await stage.decide(approval)
    assert await stage.suspend(session, "approval", "000004000", held=held) == "stale"


async def test_a_deferred_result_wakes_the_session_once(stage):
    session, [call] = await stage.with_calls()
    assert await stage.complete_call(session, call, "42") == "queued"
    entry, woken = (await stage.entries(session))[-2:]
    assert (entry.type, entry.dedup_key, entry.worker_id) == ("tool_result", f"w:result:{call}", None)
    assert entry.data.pop("seconds") >= 0
    assert entry.data == {"call_id": call, "tool": "ask_boss", "content": "42", "outcome": "ok"}
    assert woken.data == {"by": "result"}
    before = await stage.everything(session)
    assert await stage.complete_call(session, call, "42") == "queued"
    for result, options in (("43", {}), ("42", {"outcome": "error"})):
        with refused("AR003", call):
            await stage.complete_call(session, call, result, **options)
    assert await stage.everything(session) == before


async def test_a_session_wakes_with_the_last_of_its_deferred_results(stage, stages):
    """F24: 50 times."""
    for _ in range(50):
        session, calls = await stage.with_calls(2)
        results = await asyncio.gather(
            *(one.complete_call(session, call) for one, call in zip(stages, calls, strict=True))
        )
        assert sorted(results) == ["queued", "suspended"]
        assert (await stage.types(session)).count("session_woken") == 1


async def test_a_session_that_waits_for_a_decision_and_a_result_needs_both(stage):
    for result_first in (True, False):
        session = await stage.running()
        await stage.append(session, answer("pay", "ask_boss"), approval_request(0))
        await stage.append(session, deferral("000004001"))
        await stage.suspend(session, "approval", "000004000", "000004001")
        approval = await stage.connection.fetchval("select id from agentrt.approvals where session_id = $1", session)
        steps = [stage.complete_call(session, "000004001"), stage.decide(approval)]
        first, second = steps if result_first else reversed(steps)
        assert await first == "suspended"
        assert await second == "queued"


async def test_a_result_for_a_running_session_makes_its_ending_stale(stage):
    """Case 30."""
    session, [call] = await stage.with_calls(suspended=False)
    held = await stage.head(session)
    assert await stage.complete_call(session, call) == "running"
    assert await stage.suspend(session, "external", call, held=held) == "stale"


async def test_results_and_suspensions_at_once_lose_no_wake_up(stage, stages):
    """Case 30, F24: 100 times."""
    client, worker = stages
    said = Counter[str]()
    for n in range(100):
        session, [call] = await stage.with_calls(suspended=False)
        held = await stage.head(session)
        pair = [worker.suspend(session, "external", call, held=held), client.complete_call(session, call)]
        results = await asyncio.gather(*(pair if n % 2 else reversed(pair)))
        suspended, completed = results if n % 2 else reversed(results)
        said[suspended] += 1
        assert (suspended == "written", completed) in ((True, "queued"), (False, "running"))
        assert await stage.status(session) == completed
    assert len(said) > 1, "no race happened"


async def test_a_call_that_does_not_wait_for_a_result_takes_none(stage):
    session, [approval] = await stage.with_approvals()
    before = await stage.everything(session)
    with refused("AR002", "approval"):
        await stage.complete_call(session, "000004000")
    for unknown in ("000004001", "000002000", "ffffff000", "nonsense", None):
        with refused("AR001", "null" if unknown is None else unknown):
            await stage.complete_call(session, unknown)
    assert await stage.everything(session) == before
    await stage.decide(approval)

    other, _ = await stage.with_calls(suspended=False)
    await stage.suspend(other, "budget")
    with refused("AR002", "suspended"):
        await stage.complete_call(other, "000004000")


async def test_a_call_that_its_tool_has_not_deferred_takes_no_result_from_outside(stage):
    session = await stage.running()
    await stage.append(session, answer("pay", "ask_boss"))
    started = {"call_id": "000004000", "tool": "pay", "effect": "once"}
    await stage.append(session, {"type": "tool_started", "data": started}, deferral("000004001"))
    with refused("AR002", "000004000", "deferred"):  # it is being run
        await stage.complete_call(session, "000004000", "spoofed")
    assert await stage.complete_call(session, "000004001") == "running"
    await stage.end(session, "release", reason="drain", delay_seconds=0)
    with refused("AR002", "queued", "deferred"):
        await stage.complete_call(session, "000004000", "spoofed")


async def test_a_call_whose_approval_was_decided_takes_no_result_from_outside(stage):
    for verdict in ("rejected", "approved"):
        session, [approval, _] = await stage.with_approvals(2)
        await stage.decide(approval, verdict)
        with refused("AR002", "000004000", "deferred"):
            await stage.complete_call(session, "000004000", "spoofed")


async def test_a_result_that_comes_too_late_is_refused(stage):
    session, [call] = await stage.with_calls()
    await stage.cancel(session)
    before = await stage.everything(session)
    with refused("AR002", "cancelled"):
        await stage.complete_call(session, call)
    assert await stage.everything(session) == before
    await stage.send(session, "go on")
    with refused("AR002", "run 1", "run 2"):
        await stage.complete_call(session, call)


async def test_bad_results_are_refused(stage):
    session, [call] = await stage.with_calls()
    for result, options, word in (
        (None, {}, "null"),
        ("x" * (8 * 1024 * 1024 + 1), {}, "8388609"),
        ("x", {"outcome": "unknown"}, "unknown"),
    ):
        with refused("AR004", word):
            await stage.complete_call(session, call, result, **options)
    assert await stage.status(session) == "suspended"


async def test_waits_for_may_hold_words_for_people(stage):
    session, [call] = await stage.with_calls(suspended=False)
    await stage.suspend(session, "external", "the boss", call)
    assert await stage.complete_call(session, call, "") == "queued"
