"""Garbage for every client function: it is refused by us, or taken so that everything else can take it as well."""

import itertools
import json
from collections.abc import Awaitable, Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from agentrt.core.journal import Unknown
from agentrt.ports import Offer
from agentrt.postgres.client import PostgresClientStore
from tests.history import assert_sound
from tests.postgres.owner import HireOwner
from tests.postgres.stage import AGENT, Stage, refused

NOISE = "".join(str(uuid4()) for _ in range(200))
TEXTS = [
    None, "", " ", "\t\u00a0\u3000", "x", "0", "null", "{}", "%s %I $1 {0}", "'; drop table agentrt.sessions; --",
    "\x01\x1b[31m", "\u202eabc\ufeff", "👩‍👩‍👧", "\U0010ffff\uffff", "ü" * 9000, NOISE, "a\\u0000b", "x" * 1_100_000,
    "infinity", "now", "2026-13-45", "9999-12-31T23:59:59.999999+00", "4714-11-24 BC", "approved", "steer",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 1.5, 32768, 2**31, 2**63, 10**400, -(10**400), "", "x", "0", [], [1], {}, {"": ""},
    {"turns": 0}, {"turns": 1e300}, {"a": {"b": []}}, [{}], [[]], [{"type": "text"}], [{"type": "text", "text": "hi"}],
    [{"type": "text", "text": 1}], [{"type": "image", "url": "x"}], [{"type": "tool_call"}], [None],
    [{"type": "file", "base64": "!", "media_type": "a/b"}], *TEXTS[3:],
]  # fmt: skip
INTEGERS = [None, -(2**31), -1, 0, 1, 500, 10001, 2**31 - 1]
LONGS = [None, -(2**63), -1, 0, 2, 2**63 - 1]

OPTIONS = {
    "create_session": "config content dedup_key id labels max_attempts parent_id priority queue ready_at tenant",
    "send_message": "content request_id when_running",
    "cancel_session": "reason run",
    "resume_session": "force limits",
    "retry_session": "run",
    "archive_session": "",
    "release_session": "reason",
    "decide_approval": "arguments_hash comment",
    "complete_tool_call": "outcome",
}
NO_OBJECTS = ["null", "[]", "1", '"x"', "true", '{"": 1}', '{"run": 1, "Run": 1}', "{}"]


def calls_of(function: str, types: list[str], good: list[Any]) -> Iterator[list[Any]]:
    """Arguments of which one is bad, or one option."""
    kinds: dict[str, list[Any]] = {
        "uuid": [None, UUID(int=0), UUID(int=2**128 - 1)], "text": TEXTS, "integer": INTEGERS, "bigint": LONGS,
    }  # fmt: skip
    for place, type in enumerate(types):
        for bad in kinds[type]:
            yield [*good[:place], bad, *good[place + 1 :]]
    if function in OPTIONS:
        yield from ([*good, options] for options in [None, *NO_OBJECTS])
        for key, value in itertools.product([*OPTIONS[function].split(), "colour", "ü" * 300], VALUES):
            message = None if key == "content" else good[1] if len(good) > 1 else None
            first = [good[0], message, *good[2:]] if function in ("create_session", "send_message") else good
            yield [*first, json.dumps({key: value})]


TYPES = {
    "create_session": "text text",
    "send_message": "uuid text",
    "cancel_session": "uuid",
    "resume_session": "uuid",
    "retry_session": "uuid",
    "archive_session": "uuid",
    "release_session": "uuid",
    "decide_approval": "uuid text text",
    "complete_tool_call": "uuid text text",
    "read_journal": "uuid bigint integer",
    "follow_session": "uuid integer",
}


@pytest.mark.parametrize("function", TYPES)
async def test_garbage_is_refused_with_words_or_taken(stage: Stage, function: str) -> None:
    """Case 90, and nothing else than a refusal of ours ever comes back."""
    suspended, [approval] = await stage.with_approvals()
    waiting, [call] = await stage.with_calls()
    good: dict[str, list[Any]] = {
        "create_session": [AGENT, "hi"],
        "decide_approval": [approval, "approved", "ann"],
        "complete_tool_call": [waiting, call, "done"],
        "read_journal": [suspended, 0, 500],
        "follow_session": [suspended, 30],
    }
    taken = 0
    for session in (suspended, await stage.running(), await stage.create(), await stage.ended("cancelled")):
        arguments = good.get(function, [session, "hi"][: len(TYPES[function].split())])
        for garbage in calls_of(function, TYPES[function].split(), arguments):
            taken += await is_taken(stage.connection, function, garbage)
        if function in good:
            break
    assert taken > 0
    await assert_sound(stage.connection)


async def is_taken(connection: asyncpg.Connection, function: str, arguments: list[Any]) -> bool:
    """False when it was refused; undone in either case."""
    places = ", ".join(f"${n}" for n in range(1, len(arguments) + 1))
    transaction = connection.transaction()
    await transaction.start()
    refusal = await refusal_of(connection.fetch(f"select * from agentrt.{function}({places})", *arguments))
    await transaction.rollback()
    if refusal is not None:
        assert (refusal.sqlstate or "").startswith("AR"), (refusal, function, [f"{a!r:.100}" for a in arguments])
        assert 10 < len(str(refusal)) < 1500
    return refusal is None


async def refusal_of(call: Awaitable[object]) -> asyncpg.PostgresError | None:
    try:
        await call
    except asyncpg.PostgresError as error:
        return error
    return None


async def create_whatever_is_taken(stage: Stage) -> None:
    later: dict[str, Any] = {"ready_at": "2900-01-01"}
    for when, key, value in itertools.product([{}, later], OPTIONS["create_session"].split(), VALUES):
        message = None if key == "content" else "hi"
        await refusal_of(stage.create(message, **(when | {key: value})))
    for when, agent in itertools.product([{}, later], TEXTS):
        await refusal_of(stage.call("create_session", agent, "hi", when))


async def test_whatever_can_be_created_can_be_swept_claimed_and_read(
    stage: Stage, hire: HireOwner, database_url: str
) -> None:
    """One session that a statement for many cannot take would stop all the others."""
    connection, owner = stage.connection, await hire()
    await create_whatever_is_taken(stage)
    made = {row["id"] for row in await connection.fetch("select id from agentrt.sessions")}
    assert len(made) > 150

    await connection.execute("update agentrt.sessions set ready_at = now() - interval '1 s' where not due")
    while (await owner.reaper.sweep(owner.id)).more:
        pass
    assert await connection.fetchval("select count(*) from agentrt.sessions where not due") == 0

    places = await connection.fetch("select distinct queue, agent from agentrt.sessions")
    claimed = set[UUID]()
    for queue, agent in places:
        offer = Offer(queues=(queue,), agents={agent: "v1"})
        claimed |= {held.id for held in await owner.claim(len(made), offer=offer)}
    assert claimed == made

    client = await PostgresClientStore.connect(database_url)
    for session in await client.list({}, limit=2 * len(made)):
        head = await client.get(session["id"])
        assert [entry.seq for entry in await client.read_journal(head.id, 0, max_entries=10)] == [1, 2, 3]
        assert not isinstance((await client.read_journal(head.id, 1, max_entries=1))[0].data, Unknown)
    await client.close()
    await assert_sound(connection)


async def test_a_scheduled_session_that_no_claim_could_find_later_is_refused_now(stage: Stage) -> None:
    """Its sweep would fail, and with it everybody else's."""
    with refused("AR004", "too long"):
        await stage.create(queue=NOISE, ready_at="2900-01-01")


async def test_settings_of_the_callers_session_change_nothing(stage: Stage) -> None:
    """The oldest ones would give the literals inside our functions another meaning."""
    for setting in (
        "standard_conforming_strings = off", "transform_null_equals = on", "array_nulls = off",
        "datestyle = 'SQL, DMY'", "timezone = 'Asia/Kathmandu'", "intervalstyle = sql_standard",
        "plpgsql.extra_errors = 'all'", "plpgsql.variable_conflict = use_variable",
    ):  # fmt: skip
        await stage.connection.execute(f"set {setting}")
    image = {"type": "image", "url": "https://example.org/x", "media_type": "image/svg+xml"}
    session = await stage.create(None, content=[image], ready_at="2900-01-02T03:04:05")
    assert await stage.send(session, "S", request_id="a\\b") == 3
    with refused("AR004", "empty"):
        await stage.send(session, " \t\n")
    assert await stage.connection.fetchval(
        "select ready_at = timestamptz '2900-01-02 03:04:05+00' from agentrt.sessions where id = $1", session
    )
