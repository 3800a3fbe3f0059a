"""Real worker processes, from a created session to its end, with kills in between."""

import json
from collections.abc import Callable
from uuid import UUID

import asyncpg
import pytest

from tests.history import assert_sound
from tests.system.fleet import Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.sessions import ORPHANED, STATUS, UNFINISHED, create, create_many

pytestmark = pytest.mark.system

ASKED = """
select s.id, j.data -> 'content' -> 0 ->> 'text'
from agentrt.sessions s join agentrt.journal j on j.session_id = s.id and j.seq = 2 where s.agent = 'three'
"""
RUNNING = "select count(*) from agentrt.sessions where status = 'running'"
CLAIMS = "select count(*), count(distinct worker_id) from agentrt.journal where type = 'session_claimed'"
ANSWERED = """
select j.session_id, block ->> 'text' from agentrt.journal j, jsonb_array_elements(j.data -> 'content') block
where j.type = 'assistant_message' and block ->> 'type' = 'text' order by j.session_id, j.seq
"""
RESULTS = """
select session_id, data ->> 'content' from agentrt.journal where type = 'tool_result' order by session_id, seq
"""


async def texts(connection: asyncpg.Connection, query: str) -> dict[UUID, list[str]]:
    found: dict[UUID, list[str]] = {}
    for session, text in await connection.fetch(query):
        found.setdefault(session, []).append(text)
    return found


async def assert_expected_texts(connection: asyncpg.Connection) -> None:
    """Three answers and two results for each session, as the script says; nothing lost, nothing doubled."""
    answers, results = await texts(connection, ANSWERED), await texts(connection, RESULTS)
    for session, [asked] in (await texts(connection, ASKED)).items():
        n = int(asked.split()[-1])
        assert answers[session] == [f"first {n}", f"second {n**2}", f"third {n**4}"]
        assert results[session] == [str(n**2), str(n**4)]
    await assert_sound(connection)


async def types(connection: asyncpg.Connection, session: UUID) -> list[str]:
    rows = await connection.fetch("select type from agentrt.journal where session_id = $1 order by seq", session)
    return [row["type"] for row in rows]


async def test_two_workers_finish_500_sessions_of_three_turns_and_share_them(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    workers.start(slots=20)
    workers.start(slots=20)
    await wait_for_workers(connection, 2)
    for _ in range(40):
        await create(connection, "one", "gated_read")
    await create_many(connection, 500)
    await until(connection, RUNNING, want=40)
    held = await connection.fetch("select count(*) from agentrt.sessions where status = 'running' group by lease_owner")
    assert [row["count"] for row in held] == [20, 20]
    gates.open("tool")
    await until(connection, UNFINISHED, want=0, seconds=200)
    await assert_expected_texts(connection)
    assert tuple(await connection.fetchrow(CLAIMS) or ()) == (540, 2)


async def test_workers_that_are_added_under_load_get_work_and_one_that_is_killed_loses_none(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    """The first sessions wait at a gate, so that no slot is free before the last worker has come."""
    first = workers.start(slots=4)
    await wait_for_workers(connection, 1)
    for _ in range(12):
        await create(connection, "one", "gated_read")
    await create_many(connection, 600)
    await until(connection, RUNNING, want=4)
    workers.start(slots=4)
    await until(connection, RUNNING, want=8)
    workers.start(slots=4)
    await until(connection, RUNNING, want=12)
    first.kill()
    gates.open("tool")
    await until(connection, UNFINISHED, want=0, seconds=200)
    assert await connection.fetchval(ORPHANED) == 4
    assert tuple(await connection.fetchrow(CLAIMS) or ()) == (612 + 4, 3)
    await assert_expected_texts(connection)


@pytest.mark.parametrize(("name", "outcome"), [("gated_read", "ok"), ("gated_once", "unknown"), ("gated_row", "ok")])
async def test_sigkill_inside_a_tool_ends_completed_with_the_effect_known(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection, name: str, outcome: str
) -> None:
    """F2, F15: read is run again, once is unknown, transactional is done exactly once."""
    await connection.execute("create table effects (call_id text)")
    victim = workers.start(transactional_seconds=300)
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", name)
    await gates.reached("tool")
    started = ["tool_started"] if name == "gated_once" else []
    assert (await types(connection, session))[2:] == ["session_claimed", "assistant_message", *started]
    token = await connection.fetchval("select fencing_token from agentrt.sessions where id = $1", session)
    dead = await connection.fetchval("select lease_owner from agentrt.sessions where id = $1", session)
    victim.kill()
    gates.open("tool")
    workers.start()
    await until(connection, STATUS, session, want="completed")
    [orphaned] = await connection.fetch(
        "select data, fencing_token from agentrt.journal where session_id = $1 and type = 'session_orphaned'", session
    )
    assert UUID(json.loads(orphaned["data"])["worker_id"]) == dead
    assert orphaned["fencing_token"] > token
    results = await connection.fetch(
        "select data ->> 'outcome' as outcome from agentrt.journal where session_id = $1 and type = 'tool_result'",
        session,
    )
    assert [row["outcome"] for row in results] == [outcome]
    assert len(gates.effects()) == (1 if name == "gated_once" else 0)
    assert await connection.fetchval("select count(*) from effects") == (1 if name == "gated_row" else 0)
    await assert_sound(connection)


async def test_sigkill_between_turns_ends_completed_without_running_the_tool_again(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection
) -> None:
    """F2: what was committed stays."""
    victim = workers.start()
    await wait_for_workers(connection, 1)
    session = await create(connection, "one", "square then wait")
    await gates.reached("model")
    assert (await types(connection, session))[2:] == ["session_claimed", "assistant_message", "tool_result"]
    victim.kill()
    gates.open("model")
    workers.start()
    await until(connection, STATUS, session, want="completed")
    assert (await types(connection, session))[5:] == [
        "session_orphaned",
        "session_claimed",
        "assistant_message",
        "session_completed",
    ]
    assert (
        await connection.fetchval("select outcome ->> 'text' from agentrt.sessions where id = $1", session) == "ok: 9"
    )
    await assert_sound(connection)


async def test_psql_alone_creates_steers_and_cancels_a_session(
    workers: Fleet, gates: Gates, connection: asyncpg.Connection, psql: Callable[[str], str]
) -> None:
    workers.start()
    await wait_for_workers(connection, 1)
    session = UUID(psql("select agentrt.create_session('talker', 'hello')"))
    await gates.reached("model")
    psql(f"select agentrt.send_message('{session}', 'and goodbye')")
    gates.open("model")
    await until(connection, STATUS, session, want="completed")
    assert psql(f"select outcome ->> 'text' from agentrt.sessions where id = '{session}'") == "hello | and goodbye"
    second = UUID(psql("select agentrt.create_session('one', 'gated_read')"))
    await gates.reached("tool")
    assert psql(f"select agentrt.cancel_session('{second}')") == "cancelled"
    assert (await types(connection, second))[-1] == "session_cancelled"
    await until(connection, "select count(*) from agentrt.sessions where lease_owner is not null", want=0)
    await assert_sound(connection)
