"""What people see: why a session waits, what waits for a decision, who owns what, who works."""

import json
from uuid import UUID

from agentrt.postgres.client import LIST
from tests.postgres.stage import AGENT, ARGUMENTS, ARGUMENTS_HASH, Stage, answer, approval_request, deferral
from tests.postgres.test_worker_plans import nodes


async def waiting_for(stage: Stage, session: UUID) -> str | None:
    return await stage.connection.fetchval("select waiting_for from agentrt.session_list where id = $1", session)


async def test_the_list_says_why_a_queued_session_is_not_claimed(stage):
    """Case 7."""
    session = await stage.create()
    assert await waiting_for(stage, session) == "a worker: none is alive"
    other = await stage.worker(agents=("another",))
    assert await waiting_for(stage, session) == f"a worker that serves agent {AGENT}: no live one does"
    assert await stage.claim(other, agent="another") == []
    assert (await stage.head(session))["attempt"] == 0
    elsewhere = await stage.create(queue="elsewhere")
    worker = await stage.worker()
    assert await waiting_for(stage, session) == "a free slot"
    assert await waiting_for(stage, elsewhere) == (
        f"a worker that serves agent {AGENT} in queue elsewhere: no live one does"
    )
    await stage.connection.execute("update agentrt.sessions set attempt = 3 where id = $1", session)
    assert "crashed" in str(await waiting_for(stage, session))
    await stage.connection.execute("update agentrt.sessions set attempt = 0, due = false where id = $1", session)
    assert "come due" in str(await waiting_for(stage, session))
    await stage.connection.execute(
        "update agentrt.workers set lease_expires_at = now() - interval '1 s' where id = $1", worker
    )
    assert "serves agent" in str(await waiting_for(stage, session))


async def test_the_list_says_when_a_scheduled_session_is_due(stage):
    session = await stage.create(ready_at="2999-01-02T00:00:00Z")
    assert str(await waiting_for(stage, session)).startswith("its time: not before 2999-01-02")


async def test_the_list_says_what_a_suspended_session_waits_for(stage):
    session = await stage.running()
    assert await waiting_for(stage, session) is None
    await stage.end(session, "suspend", suspension={"reason": "blocked", "message": "no credit", "waits_for": []})
    assert await waiting_for(stage, session) == "blocked: no credit"
    assert await waiting_for(stage, await stage.suspended("input")) == "input"
    assert await waiting_for(stage, await stage.ended("completed")) is None


async def test_the_list_says_what_is_left_after_each_decision_and_result(stage):
    session = await stage.running()
    await stage.append(session, answer("pay", "order", "post"), approval_request(0), approval_request(2))
    pay, order, post = "000004000", "000004001", "000004002"
    await stage.append(session, deferral(order, expires_seconds=3600))
    await stage.suspend(session, "approval", pay, post, order)
    approvals = await stage.connection.fetch(
        "select id from agentrt.approvals where session_id = $1 order by tool_call_id", session
    )
    assert await stage.decide(approvals[0]["id"]) == "suspended"
    assert str(await waiting_for(stage, session)).startswith(
        "approval: waits for a decision: post; waits for a result: order, until 2"
    )
    assert await stage.decide(approvals[1]["id"]) == "suspended"
    assert str(await waiting_for(stage, session)).startswith("external: waits for a result: order, until 2")
    assert json.loads((await stage.head(session))["suspension"])["waits_for"] == [order]
    entries = await stage.types(session)
    assert await stage.complete_call(session, order) == "queued"
    assert await stage.types(session) == [*entries, "tool_result", "session_woken"]


async def test_the_list_says_what_is_left_after_an_expiry(stage):
    session = await stage.running()
    await stage.append(session, answer("order", "ask"))
    early, late = "000004000", "000004001"
    await stage.append(session, deferral(early, expires_seconds=0.000001), deferral(late))
    await stage.suspend(session, "external", "the boss", early, late)
    assert (await stage.sweep())["expired"] == 1
    assert await waiting_for(stage, session) == "external: waits for a result: ask"
    assert json.loads((await stage.head(session))["suspension"])["waits_for"] == ["the boss", late]


async def test_the_list_counts_the_time_of_the_present_ownership(stage):
    session = await stage.running()
    await stage.connection.execute(
        "update agentrt.sessions set running_seconds = 5, lease_acquired_at = now() - interval '60 seconds'"
    )
    seconds = await stage.connection.fetchval("select running_seconds from agentrt.session_list where id = $1", session)
    assert 64 < seconds < 90


async def test_labels_can_be_searched(stage):
    session = await stage.create(labels={"team": "x", "env": "prod"})
    await stage.create(labels={"team": "y"})
    rows = await stage.connection.fetch(
        "select id from agentrt.session_list where labels @> $1", json.dumps({"team": "x"})
    )
    assert [row["id"] for row in rows] == [session]


async def test_pending_approvals_are_those_that_can_still_be_decided(stage):
    session, [first, second, third] = await stage.with_approvals(3, reason="over 100")
    await stage.decide(second)
    await stage.connection.execute(
        "update agentrt.approvals set expires_at = now() - interval '1 second' where id = $1", third
    )
    [row] = await stage.connection.fetch("select * from agentrt.pending_approvals")
    assert (row["id"], row["session_id"], row["agent"], row["status"]) == (first, session, AGENT, "suspended")
    assert (row["tool"], row["arguments"], row["arguments_hash"]) == ("pay", ARGUMENTS, ARGUMENTS_HASH)
    assert (row["tool_call_id"], row["reason"]) == ("000004000", "over 100")
    assert await stage.decide(row["id"], arguments_hash=row["arguments_hash"]) == "suspended"
    await stage.cancel(session)
    assert await stage.connection.fetch("select * from agentrt.pending_approvals") == []


async def test_leases_tell_who_owns_what_also_when_the_owner_is_gone(stage):
    session = await stage.running()
    head = await stage.head(session)
    [row] = await stage.connection.fetch("select * from agentrt.leases")
    assert (row["session_id"], row["worker_id"], row["worker"]) == (session, head["lease_owner"], "anna")
    assert (row["fencing_token"], row["attempt"], row["worker_state"], row["expired"]) == (1, 1, "alive", False)
    await stage.connection.execute("update agentrt.workers set lease_expires_at = now() - interval '1 second'")
    assert await stage.connection.fetchval("select expired from agentrt.leases") is True
    await stage.connection.execute("delete from agentrt.workers")
    [row] = await stage.connection.fetch("select * from agentrt.leases")
    assert (row["worker_id"], row["worker"], row["expired"]) == (head["lease_owner"], None, True)


async def test_the_worker_list_counts_what_each_worker_owns(stage):
    busy = await stage.worker()
    idle = await stage.worker(agents=("another",))
    for _ in range(3):
        await stage.take(await stage.create(), busy)
    rows = await stage.connection.fetch("select * from agentrt.worker_list")
    assert {row["id"]: row["busy"] for row in rows} == {busy: 3, idle: 0}
    assert {(row["name"], row["state"], row["slots"], row["version"]) for row in rows} == {("anna", "alive", 20, "1.0")}


async def test_the_newest_of_many_sessions_are_read_by_an_index(stage):
    """Case 81."""
    await stage.connection.execute(
        "insert into agentrt.sessions (id, agent, status, finished_at, created_at) "
        "select gen_random_uuid(), 'a', 'completed', now(), now() - n * interval '1 s' from generate_series(1, 5000) n"
    )
    await stage.connection.execute("analyze agentrt.sessions")
    for after in (None, await stage.create()):
        plan = await stage.connection.fetchval(
            f"explain (analyze, format json) {LIST}", None, None, None, None, None, None, after, 50
        )
        scans = [node for node in nodes(json.loads(plan)[0]["Plan"]) if node.get("Relation Name") == "sessions"]
        assert "sessions_created" in [node.get("Index Name") for node in scans]
        assert max(node["Actual Rows"] for node in scans) <= 50
