"""What the database itself refuses: changes of the journal, live deletes, and what a role may not do."""

import asyncio
from collections.abc import Awaitable
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.postgres.stage import AGENT, Stage, answer, approval_request, blocked, refused

ROLES = ("agentrt_worker", "agentrt_client", "agentrt_observer", "agentrt_retention")


async def test_the_journal_is_append_only_even_for_its_owner(stage):
    """Case 55, case 97."""
    session = await stage.running()
    before = await stage.everything(session)
    for statement in (
        "update agentrt.journal set data = '{}'",
        "delete from agentrt.journal where seq = 2",
        "delete from agentrt.journal",
        "truncate agentrt.journal",
        "truncate agentrt.sessions, agentrt.journal",
        "delete from agentrt.sessions",
    ):
        with refused("AR002"):
            await stage.connection.execute(statement)
    assert await stage.everything(session) == before


async def test_an_entry_of_an_ended_session_cannot_be_deleted_alone(stage):
    """Case 97."""
    session = await stage.ended("completed")
    with refused("AR002", "append-only"):
        await stage.connection.execute("delete from agentrt.journal where session_id = $1 and seq = 1", session)


async def test_everything_of_a_deleted_session_goes_with_it_and_nothing_else(stage):
    """Case 97."""
    session, _ = await stage.with_approvals()
    other = await stage.ended("failed")
    await stage.call("follow_session", session)
    await stage.cancel(session)
    kept = await stage.everything(other)
    await stage.connection.execute("delete from agentrt.sessions where id = $1", session)
    assert await stage.everything(session) == [[], [], [], []]
    assert await stage.everything(other) == kept


async def test_only_sessions_that_have_ended_can_be_deleted(stage):
    """Case 97."""
    for session in (await stage.create(), await stage.running(), await stage.suspended()):
        before = await stage.everything(session)
        with refused("AR002", await stage.status(session)):
            await stage.connection.execute("delete from agentrt.sessions where id = $1", session)
        assert await stage.everything(session) == before


async def test_pruning_deletes_old_ended_sessions_in_batches(stage):
    """Case 97."""
    ended = [await stage.ended(status) for status in ("completed", "failed", "cancelled", "completed", "failed")]
    active = [await stage.create(), await stage.running(), await stage.suspended()]
    await stage.connection.execute("update agentrt.sessions set created_at = now() - interval '40 days'")
    await stage.connection.execute(
        """update agentrt.sessions set finished_at = now() - interval '31 days'
           where finished_at is not null and id <> $1""",
        ended[0],
    )
    pruned = [await stage.connection.fetchval("select agentrt.prune_sessions('30 days', 3)") for _ in range(3)]
    assert pruned == [3, 1, 0]
    left = await stage.connection.fetch("select id from agentrt.sessions")
    assert {row["id"] for row in left} == {ended[0], *active}
    sessions = await stage.connection.fetch("select distinct session_id from agentrt.journal")
    assert {row["session_id"] for row in sessions} == {ended[0], *active}


async def test_pruning_skips_a_session_that_a_client_revives_just_now(stage, stages):
    """Case 97."""
    client, retention = stages
    session = await stage.ended("completed")
    transaction = client.connection.transaction()
    await transaction.start()
    await client.send(session)
    assert await retention.connection.fetchval("select agentrt.prune_sessions('0')") == 0
    await transaction.commit()
    assert await stage.status(session) == "queued"


async def test_a_revival_that_waited_for_the_deletion_finds_no_session(stage, stages):
    """Case 97."""
    client, retention = stages
    session = await stage.ended("completed")
    transaction = retention.connection.transaction()
    await transaction.start()
    assert await retention.connection.fetchval("select agentrt.prune_sessions('0')") == 1
    sending = asyncio.create_task(client.send(session))
    await blocked(stage.connection, client.connection)
    await transaction.commit()
    with refused("AR001", str(session)):
        await sending
    assert await stage.everything(session) == [[], [], [], []]


async def test_a_deletion_that_waited_for_a_revival_is_refused(stage, stages):
    """Case 97."""
    client, retention = stages
    session = await stage.ended("completed")
    transaction = client.connection.transaction()
    await transaction.start()
    await client.send(session)
    deleting = asyncio.create_task(retention.connection.execute("delete from agentrt.sessions where id = $1", session))
    await blocked(stage.connection, retention.connection)
    await transaction.commit()
    with refused("AR002", "queued"):
        await deleting


async def test_bad_arguments_of_pruning_are_refused(stage):
    for older_than, most in (("-1 day", 5), (None, 5), ("100000 years", 5), ("1 day", 0), ("1 day", 10_001)):
        with refused("AR004"):
            await stage.connection.execute(
                "select agentrt.prune_sessions(case when $1::text is not null then $1::text::interval end, $2)",
                *(older_than, most),
            )


# --- roles ----------------------------------------------------------------------------------------------------------


ALLOWED = {
    "select count(*) from agentrt.session_list": set(ROLES),
    "select count(*) from agentrt.pending_approvals": set(ROLES),
    "select count(*) from agentrt.leases": set(ROLES),
    "select count(*) from agentrt.worker_list": set(ROLES),
    "select count(*) from agentrt.schema_migrations": set(ROLES),
    "select count(*) from agentrt.journal": {"agentrt_worker"},
    "select count(*) from agentrt.approvals": {"agentrt_worker"},
    "select count(*) from agentrt.workers": {"agentrt_worker"},
    "select count(*) from agentrt.followers": {"agentrt_worker"},
    "select count(*) from agentrt.sessions": {"agentrt_worker", "agentrt_retention"},
    "update agentrt.sessions set priority = 3": {"agentrt_worker"},
    "delete from agentrt.sessions where status = 'completed'": {"agentrt_retention"},
    "delete from agentrt.workers": {"agentrt_worker"},
    "update agentrt.journal set data = '{}'": set(),
    "delete from agentrt.journal": set(),
    "truncate agentrt.journal": set(),
    "delete from agentrt.approvals": set(),
    "update agentrt.schema_migrations set checksum = ''": set(),
    "drop table agentrt.journal": set(),
    "create table agentrt.mine ()": set(),
    "alter table agentrt.journal disable trigger all": set(),
    "select agentrt.create_session('a', 'hi')": {"agentrt_client"},
    "select agentrt._wake(gen_random_uuid(), 'me')": {"agentrt_worker"},
    "select agentrt._append_entry(gen_random_uuid(), 'x', '{}')": {"agentrt_worker"},
    "select agentrt._new_run(gen_random_uuid())": {"agentrt_worker"},
    "select agentrt._notify('agentrt_ready', '{}')": {"agentrt_worker"},
    "select agentrt.uuid7()": {"agentrt_worker"},
    "select agentrt.prune_sessions('1 day')": {"agentrt_retention"},
    "select agentrt.read_journal(gen_random_uuid())": {"agentrt_client", "agentrt_observer"},
    "select agentrt.follow_session(gen_random_uuid())": {"agentrt_client", "agentrt_observer"},
    **{
        f"select agentrt.{name}_session(gen_random_uuid())": {"agentrt_client"}
        for name in ("cancel", "resume", "retry", "archive", "release")
    },
    "select agentrt.send_message(gen_random_uuid(), 'hi')": {"agentrt_client"},
    "select agentrt.decide_approval(gen_random_uuid(), 'approved', 'ann')": {"agentrt_client"},
    "select agentrt.complete_tool_call(gen_random_uuid(), '000001000', 'x')": {"agentrt_client"},
}


@pytest.mark.parametrize("role", [*ROLES, "pg_monitor"])
async def test_a_role_may_do_what_it_is_for_and_nothing_else(stage, role):
    """Case 55. pg_monitor stands for any role that agentrt gave nothing."""
    await stage.ended("completed")
    for statement, roles in ALLOWED.items():
        transaction = stage.connection.transaction()
        await transaction.start()
        await stage.connection.execute(f"set local role {role}")
        state = await state_of(stage.connection.execute(statement))
        await transaction.rollback()
        # a right that is there may still meet a guard, or an argument that names nothing
        assert (state == "42501") == (role not in roles), (role, statement, state)
        assert state in (None, "42501", "AR001", "P0002"), (role, statement, state)


async def state_of(statement: Awaitable[object]) -> str | None:
    try:
        await statement
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return None


async def test_a_worker_can_do_all_its_work_with_its_own_rights(stage, stages):
    worker, _ = stages
    await worker.connection.execute("set role agentrt_worker")
    owner = await worker.worker()

    async def taken(**options: object) -> UUID:
        session = await stage.create(queue=str(uuid4()), **options)
        await worker.take(session, owner)
        return session

    session = await taken()
    assert await worker.append(session, answer("pay"), approval_request(0, expires_seconds=60)) == "written"
    assert await worker.suspend(session, "approval", "000004000") == "written"
    await worker.connection.execute("update agentrt.approvals set expires_at = now() - interval '1 second'")
    assert (await worker.sweep())["expired"] == 1
    for ending in (worker.complete, worker.fail):
        session = await taken()
        await stage.send(session, "later", when_running="queue")
        assert await worker.append(session, answer("pay"), approval_request(0)) == "written"
        assert await ending(session) == "written"
        assert await stage.approval_states(session) == ["obsolete"]
        assert await stage.status(session) == "queued"
        await stage.cancel(session)
    session = await taken(max_attempts=1)
    await worker.end(session, "crash", message="boom")
    assert await stage.status(session) == "failed"
    session = await taken()
    await stage.call("follow_session", session)
    await stage.connection.execute("update agentrt.followers set expires_at = now() - interval '1 second'")
    await worker.connection.execute("update agentrt.workers set state = 'dead', renewed_at = now() - interval '2 days'")
    swept = await worker.sweep()
    assert (swept["requeued"], swept["pruned"]) == (1, 2)


async def test_a_client_needs_no_right_on_any_table(stage):
    await stage.connection.execute("set role agentrt_client")
    session = await stage.create()
    await stage.send(session)
    rows = await stage.connection.fetch("select type from agentrt.read_journal($1)", session)
    assert len(rows) == 3
    [row] = await stage.connection.fetch("select id, agent, status from agentrt.session_list")
    assert tuple(row) == (session, AGENT, "queued")


async def test_rights_can_be_given_to_roles_that_were_made_later(connection):
    await connection.execute("revoke all on all tables in schema agentrt from agentrt_observer")
    await connection.execute("select agentrt._grant_to_roles()")
    await connection.execute("set role agentrt_observer")
    assert await connection.fetchval("select count(*) from agentrt.worker_list") == 0


async def test_a_user_who_may_not_create_roles_can_migrate(connection, empty_database_url):
    """The roles are there already: ``connection`` is to a migrated database of the same cluster."""
    name = f"limited_{uuid4().hex}"
    empty = await asyncpg.connect(empty_database_url)
    try:
        await empty.execute(f"create role {name}")
        await empty.execute(f"grant create on database {await empty.fetchval('select current_database()')} to {name}")
        await empty.execute(f"set role {name}")
        for migration in sorted((CHECKOUT / "migrations").glob("*.sql")):
            await empty.execute(migration.read_text(encoding="utf-8"))
        await empty.execute("reset role; set role agentrt_client")
        assert await Stage(empty).create() is not None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await empty.execute("select from agentrt.sessions")
    finally:
        await empty.execute(f"reset role; drop owned by {name} cascade; drop role {name}")
        await empty.close()
