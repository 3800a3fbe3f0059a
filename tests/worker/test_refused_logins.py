"""A server that answers and refuses, after it has worked: an outage like any other."""

import json
from uuid import uuid4

from agentrt.core.events import CommitFailed, HeartbeatFailed, SelfFenced, SessionEnded, WorkerStarted
from tests.databases import with_role
from tests.worker.daemons import Held, working
from tests.worker.ownership import Ground, stores


async def test_a_login_that_is_refused_for_a_while_is_waited_out_and_no_finished_result_is_lost(ground: Ground) -> None:
    """Case 25: a change of passwords or of pg_hba.conf, or a failover; the server answers, and refuses."""
    held = Held(ground)
    session_id = await ground.create()
    role = f"agentrt_test_{uuid4().hex}"
    await ground.connection.execute(f"create role {role} login superuser")
    async with working(
        ground, held.agent(calls=("pay",)), opened=stores(with_role(ground.url, role)), heartbeat_seconds=30
    ) as worker:
        await ground.heard.until(lambda: held.begun)
        await ground.connection.execute(f"alter role {role} nologin")
        await ground.connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = $1", role
        )
        held.release.set()
        worker.daemon._incarnation.keeper.beat_soon()  # type: ignore[union-attr]
        await ground.heard.wait_for(HeartbeatFailed, 2)
        await ground.heard.wait_for(CommitFailed, 2)
        await ground.connection.execute(f"alter role {role} login")
        await ground.heard.wait_for(SessionEnded)
    await ground.connection.execute(f"drop role {role}")
    journal = await ground.journal(session_id)
    assert [json.loads(row["data"])["outcome"] for row in journal if row["type"] == "tool_result"] == ["ok"]
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("completed", 1, 0)
    assert "session_orphaned" not in [row["type"] for row in journal]
    assert len(ground.heard.of(WorkerStarted)) == 1
    assert not ground.heard.of(SelfFenced)
    assert worker.left == []
