"""The plans of the worker's statements: by key or by a claim index, whatever has piled up or was not analysed."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from agentrt.postgres import statements
from agentrt.postgres.pool import DatabaseOptions, Role, server_settings
from tests.postgres.owner import AGENT, HireOwner, Owner, create

BIG = ("sessions", "journal", "approvals", "followers")
"""Tables that grow; there are never many workers."""

ROLES = {
    "append": (Role.COMMIT, statements.APPEND),
    "append_waiting": (Role.COMMIT, statements.APPEND_WAITING),
    "end": (Role.COMMIT, statements.END),
    "end_waiting": (Role.COMMIT, statements.END_WAITING),
    "claim": (Role.CLAIM, statements.CLAIM),
    "read": (Role.CLAIM, statements.READ),
    "head": (Role.CLAIM, statements.HEAD),
    "wrote": (Role.CLAIM, statements.WROTE),
    "withdraw_agent": (Role.CLAIM, statements.WITHDRAW_AGENT),
    "renew": (Role.KEEPER, statements.RENEW),
    "mark": (Role.REAPER, statements.MARK),
    "sweep": (Role.REAPER, statements.SWEEP),
}
ENTRY = {"type": "tool_result", "data": {"call_id": "000004001", "content": "42"}}


async def arguments(owner: Owner, connection: asyncpg.Connection) -> Mapping[str, tuple[Any, ...]]:
    """Real arguments for each statement; 100 sessions of the owner's for those that take many."""
    rows = await connection.fetch(
        "select id, fencing_token, owner_writes, last_seq from agentrt.sessions where lease_owner = $1 limit 100",
        owner.id,
    )
    write = (
        [row["id"] for row in rows],
        [row["fencing_token"] for row in rows],
        [row["owner_writes"] for row in rows],
        [json.dumps([ENTRY])] * len(rows),
        owner.id,
    )
    ending = json.dumps({"kind": "complete", "outcome": {"text": "done"}})
    end = (*write, [row["last_seq"] for row in rows], [ending] * len(rows))
    return {
        "append": write,
        "append_waiting": write,
        "end": end,
        "end_waiting": end,
        "claim": (owner.id, ["default", "other"], [AGENT, "stranger"], ["v1", "v1"], 50, 1, 149),
        "read": (rows[0]["id"], 0, 500, 8_000_000),
        "head": (rows[0]["id"],),
        "wrote": (rows[0]["id"], "w:1:0"),
        "withdraw_agent": (owner.id, AGENT, "default"),
        "renew": (owner.id, 15.0, None, False, [AGENT], None, [AGENT]),
        "mark": (owner.id,),
        "sweep": (owner.id, 500),
    }


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@asynccontextmanager
async def planned_as_a_worker_does(url: str, role: Role, mode: str) -> AsyncIterator[asyncpg.Connection]:
    settings = server_settings(DatabaseOptions(url=url), role) | {"plan_cache_mode": mode}
    connection = await asyncpg.connect(url, server_settings=settings)
    try:
        yield connection
    finally:
        await connection.close()


async def read_by_scans(connection: asyncpg.Connection) -> dict[str, int]:
    """Sequential scans of each big table in this transaction, those inside of functions included."""
    rows = await connection.fetch(
        "select relname, seq_scan from pg_stat_xact_user_tables "
        "where schemaname = 'agentrt' and relname = any($1) and seq_scan > 0",
        BIG,
    )
    return {row["relname"]: row["seq_scan"] for row in rows}


async def check_plan(connection: asyncpg.Connection, name: str, values: tuple[Any, ...]) -> int:
    """No sequential scan, no filter that discards more than it keeps; returns the rows fetched from ``sessions``."""
    transaction = connection.transaction()
    await transaction.start()
    explained = await connection.fetchval(f"explain (analyze, format json) {ROLES[name][1]}", *values)
    scanned = await read_by_scans(connection)
    fetched = await connection.fetchval(
        "select coalesce(sum(idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables "
        "where schemaname = 'agentrt' and relname = 'sessions'"
    )
    await transaction.rollback()
    assert scanned == {}, name
    for node in nodes(json.loads(explained)[0]["Plan"]):
        table = node.get("Relation Name")
        if table in BIG and node["Node Type"] != "ModifyTable":
            kept = node["Actual Rows"] * node["Actual Loops"]
            discarded = node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
            assert node["Node Type"] != "Seq Scan", (name, node)
            assert discarded <= kept, (name, node)
    return int(fetched)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_plans_that_are_made_on_an_empty_never_analysed_database_read_by_key(
    hire: HireOwner, connection: asyncpg.Connection, database_url: str, mode: str
) -> None:
    """Case 99."""
    await connection.execute("alter table agentrt.sessions set (autovacuum_enabled = off)")
    await create(connection, 1)
    owner = await hire()
    await owner.take()
    values = await arguments(owner, connection)
    for name, (role, _) in ROLES.items():
        async with planned_as_a_worker_does(database_url, role, mode) as planning:
            await check_plan(planning, name, values[name])


async def test_a_plan_that_was_kept_from_the_empty_database_stays_good_when_the_tables_grow(
    hire: HireOwner, connection: asyncpg.Connection, database_url: str
) -> None:
    for table in BIG:
        await connection.execute(f"alter table agentrt.{table} set (autovacuum_enabled = off)")
    await create(connection, 1)
    owner = await hire()
    await owner.take()
    values = await arguments(owner, connection)
    async with AsyncExitStack() as stack:
        prepared = {}
        for name, (role, statement) in ROLES.items():
            planning = await stack.enter_async_context(
                planned_as_a_worker_does(database_url, role, "force_generic_plan")
            )
            prepared[name] = planning, await planning.prepare(statement)
            async with _rolled_back(planning):
                await prepared[name][1].fetch(*values[name])  # planned now, and kept

        await pile_up(connection, finished=2000, entries=20)

        for name, (planning, statement_kept) in prepared.items():
            async with _rolled_back(planning):
                await statement_kept.fetch(*values[name])
                assert await read_by_scans(planning) == {}, name
                rows = await planning.fetchval(
                    "select sum(idx_tup_fetch)::bigint from pg_stat_xact_user_tables where schemaname = 'agentrt'"
                )
            assert rows < 100, name


@asynccontextmanager
async def _rolled_back(connection: asyncpg.Connection) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    yield
    await transaction.rollback()


async def pile_up(connection: asyncpg.Connection, *, finished: int, entries: int = 0) -> None:
    await connection.execute(
        "insert into agentrt.sessions (id, agent, status, finished_at, last_seq) "
        "select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, 'completed', now(), $3 "
        "from generate_series(1, $2) i",
        AGENT,
        finished,
        entries,
    )
    await connection.execute(
        "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, type) "
        "select s.id, n, 1, 1, 1, 'tool_started' from agentrt.sessions s, generate_series(1, $1) n "
        "where s.status = 'completed'",
        entries,
    )


@asynccontextmanager
async def loading(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Many sessions in seconds: without a log, and with indexes that are built afterwards."""
    await connection.execute("alter table agentrt.sessions set unlogged, set (autovacuum_enabled = off)")
    indexes = await connection.fetch(
        "select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as definition from pg_index "
        "where indrelid = 'agentrt.sessions'::regclass and not indisprimary"
    )
    for index in indexes:
        await connection.execute(f"drop index {index['name']}")
    yield
    for index in indexes:
        await connection.execute(index["definition"])


@pytest.mark.timeout(600)  # making a million sessions takes most of it
async def test_a_million_finished_sessions_and_a_full_queue_change_no_plan(
    hire: HireOwner, connection: asyncpg.Connection, database_url: str
) -> None:
    """Case 81."""
    owner = await hire()
    async with loading(connection):
        await pile_up(connection, finished=1_000_000)
        await connection.execute(
            "insert into agentrt.sessions (id, agent, priority, ready_at, due) "
            "select ('00000000-0000-7000-9000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, 0, now(), true "
            "from generate_series(1, 100000) i union all "
            "select ('00000000-0000-7000-a000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, 9, now() + interval '7 d', "
            "false from generate_series(1, 100000) i",
            AGENT,
        )
        await connection.execute(
            "insert into agentrt.sessions (id, agent, status, lease_owner, lease_acquired_at, attempt, fencing_token) "
            "select ('00000000-0000-7000-b000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, 'running', "
            "case when i <= 100 then $2 else md5((i % 30)::text)::uuid end, now(), 1, 1 "
            "from generate_series(1, 30000) i",
            AGENT,
            owner.id,
        )
    await connection.execute(
        "insert into agentrt.workers (id, name, host, pid, version, slots, heartbeat_seconds, lease_expires_at) "
        "select md5(i::text)::uuid, 'w', 'h', 1, '1', 1000, 2, now() + interval '1 h' from generate_series(0, 29) i"
    )
    values = await arguments(owner, connection)
    for name, (role, _) in ROLES.items():
        for mode in ("force_custom_plan", "force_generic_plan"):
            async with planned_as_a_worker_does(database_url, role, mode) as planning:
                fetched = await check_plan(planning, name, values[name])
                assert fetched <= {"sweep": 200, "claim": 600}.get(name, 250), name
