"""Creating sessions through the database alone."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.postgres.stage import AGENT, Stage, blocked, refused


async def test_a_new_session_is_queued_with_its_first_message_in_one_transaction(stage, connect):
    """Case 1."""
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_ready", lambda *message: heard.append(message[-1]))
    async with stage.connection.transaction():
        session = await stage.create("hello")
        assert await listener.fetchval("select count(*) from agentrt.sessions") == 0
        assert await listener.fetchval("select count(*) from agentrt.journal") == 0
    head = await stage.head(session)
    assert (head["status"], head["run"], head["attempt"], head["takeovers"]) == ("queued", 1, 0, 0)
    assert (head["fencing_token"], head["last_seq"], head["due"], head["max_attempts"]) == (0, 2, True, 5)
    created, message = await stage.entries(session)
    assert (created.type, created.data) == ("session_created", {"agent": AGENT})
    assert (message.type, message.data) == ("user_message", {"content": [{"type": "text", "text": "hello"}]})
    assert {(e.run, e.attempt, e.token, e.worker_id) for e in (created, message)} == {(1, 0, 0, None)}
    await listener.execute("select 1")  # what was notified before has arrived with this answer
    assert heard == ['["default"]']


async def test_a_rolled_back_create_leaves_nothing(stage):
    """Case 1."""
    transaction = stage.connection.transaction()
    await transaction.start()
    await stage.create()
    await transaction.rollback()
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0
    assert await stage.connection.fetchval("select count(*) from agentrt.journal") == 0


async def test_the_same_dedup_key_gives_the_same_session(stage):
    """Case 2."""
    first = await stage.create("hello", dedup_key="order-1")
    assert await stage.create("hello", dedup_key="order-1") == first
    assert await stage.types(first) == ["session_created", "user_message"]


async def test_eight_connections_with_one_dedup_key_create_one_session(connect):
    """Case 2."""
    stages = [Stage(await connect()) for _ in range(8)]
    for n in range(20):
        ids = await asyncio.gather(*(s.create("hello", dedup_key=f"key-{n}") for s in stages))
        assert len(set(ids)) == 1
        assert await stages[0].types(ids[0]) == ["session_created", "user_message"]
    assert await stages[0].connection.fetchval("select count(*) from agentrt.sessions") == 20


async def test_a_create_waits_for_another_that_holds_its_key_and_creates_when_that_rolls_back(stage, stages):
    """Case 2."""
    first, second = stages
    transaction = first.connection.transaction()
    await transaction.start()
    lost = await first.create("hello", dedup_key="k")
    waiting = asyncio.create_task(second.create("hello", dedup_key="k"))
    await blocked(stage.connection, second.connection)
    await transaction.rollback()
    session = await waiting
    assert session != lost
    assert await stage.types(session) == ["session_created", "user_message"]


async def test_one_key_in_two_tenants_or_agents_is_two_sessions(stage):
    """Case 88."""
    ids = {
        await stage.create(dedup_key="k", tenant="x"),
        await stage.create(dedup_key="k", tenant="y"),
        await stage.create(dedup_key="k"),
        await stage.create(dedup_key="k", agent="other"),
    }
    assert len(ids) == 4


async def test_the_same_key_with_other_arguments_is_a_conflict(stage):
    """Case 88."""
    session = await stage.create(message="hello", dedup_key="k")
    before = await stage.everything(session)
    for changed in ({"message": "other"}, {"priority": 1}, {"labels": {"a": "b"}}, {"queue": "q"}):
        with refused("AR003", str(session)):
            await stage.create(**{"message": "hello", "dedup_key": "k"} | changed)
    assert await stage.everything(session) == before


async def test_an_id_of_the_callers_own_is_kept_and_converges(stage):
    mine = uuid4()
    assert await stage.create("hello", id=str(mine)) == mine
    assert await stage.create("hello", id=str(mine)) == mine
    with refused("AR003", str(mine)):
        await stage.create("other", id=str(mine))


async def test_ids_of_our_own_grow_with_time(stage):
    before = datetime.now(UTC) - timedelta(seconds=5)
    ids: list[UUID] = [await stage.create() for _ in range(3)]
    for session in ids:
        assert session.version == 7
        assert session.variant == "specified in RFC 4122"
        made = datetime.fromtimestamp((session.int >> 80) / 1000, UTC)
        assert before < made < datetime.now(UTC) + timedelta(seconds=5)
    stamps = [session.int >> 80 for session in ids]
    assert stamps == sorted(stamps)


async def test_options_are_stored(stage):
    parent = await stage.create()
    session = await stage.create(
        None,
        content=[{"type": "text", "text": "look"}, {"type": "image", "base64": "aGk=", "media_type": "image/png"}],
        queue="slow",
        priority=-7,
        ready_at="2999-01-01T00:00:00+00:00",
        config={"limits": {"turns": 3}},
        labels={"team": "x"},
        tenant="t",
        parent_id=str(parent),
        max_attempts=2,
    )
    head = await stage.head(session)
    assert (head["queue"], head["priority"], head["tenant"], head["parent_id"]) == ("slow", -7, "t", parent)
    assert (head["ready_at"], head["due"]) == (datetime(2999, 1, 1, tzinfo=UTC), False)
    assert json.loads(head["config"]) == {"limits": {"turns": 3}}
    assert json.loads(head["labels"]) == {"team": "x"}
    assert head["max_attempts"] == 2
    assert len((await stage.entries(session))[1].data["content"]) == 2


async def test_an_option_that_is_null_counts_as_absent(stage):
    head = await stage.head(await stage.create(queue=None, ready_at=None, labels=None))
    assert (head["queue"], head["due"], head["labels"]) == ("default", True, "{}")


async def test_a_session_for_an_agent_that_nobody_knows_is_taken(stage):
    """Case 7."""
    assert (await stage.head(await stage.create(agent="nobodys")))["status"] == "queued"


BAD_OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"qeue": "x"}, ("qeue", "queue")),
    ({"b": 1, "a": 2}, ('"a", "b"',)),
    ({"queue": ""}, ("queue", '""')),
    ({"queue": 7}, ("queue", "7")),
    ({"priority": 40000}, ("priority", "40000")),
    ({"priority": 1.5}, ("priority", "1.5")),
    ({"priority": "high"}, ("priority", "high")),
    ({"max_attempts": 0}, ("max_attempts", "0")),
    ({"ready_at": "tomorow"}, ("ready_at", "tomorow")),
    ({"ready_at": "infinity"}, ("ready_at", "infinity")),
    ({"ready_at": "20000-01-01"}, ("ready_at", "20000")),
    ({"ready_at": 12}, ("ready_at", "12")),
    ({"id": "not-a-uuid"}, ("id", "not-a-uuid")),
    ({"id": 5}, ("id", "5")),
    ({"parent_id": "x"}, ("parent_id", "x")),
    ({"config": []}, ("config", "[]")),
    ({"config": {"limits": {"turns": 0}}}, ("config.limits", "turns")),
    ({"config": {"limits": 5}}, ("config.limits", "5")),
    ({"config": {"model": 5}}, ("config.model", "5")),
    ({"config": {"model": ""}}, ("config.model", '""')),
    ({"config": {"model": None}}, ("config.model", "null")),
    ({"config": {"instructions": ["be brief"]}}, ("config.instructions", "be brief")),
    ({"config": {"limit": 3}}, ("config", '"limit"', "known are limits, model, instructions")),
    ({"labels": {"a": 1}}, ("labels", "1")),
    ({"labels": "a"}, ("labels", "a")),
    ({"tenant": ""}, ("tenant",)),
    ({"dedup_key": 3}, ("dedup_key", "3")),
]


async def test_an_option_that_cannot_be_taken_is_refused_by_name(stage):
    """Case 90."""
    for options, words in BAD_OPTIONS:
        with refused("AR004", *words):
            await stage.create(**options)
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


async def test_options_are_an_object_and_the_agent_has_a_name(stage):
    for options in ("[]", '"queue"', "3"):
        with refused("AR004", "object"):
            await stage.call("create_session", AGENT, "hi", options)
    for agent in ("", None):
        with refused("AR004", "agent"):
            await stage.create(agent=agent)


async def test_what_python_calls_blank_is_blank_and_nothing_else(stage):
    """The one rule of what a model is not sent: what the door lets in has something to read."""
    found = await stage.connection.fetchval(
        "select array_agg(i order by i) from generate_series(1, 1114111) i"
        " where (i < 55296 or i > 57343) and agentrt._is_blank(chr(i))"
    )
    assert found == [code for code in range(1, sys.maxunicode + 1) if chr(code).isspace()]
    assert await stage.connection.fetchval("select agentrt._is_blank($1)", "\u00a0 x \u00a0") is False


BAD_MESSAGES: list[tuple[str | None, Any, str]] = [
    (None, None, "missing"),
    ("", None, "empty"),
    (" \n\t", None, "empty"),
    ("\u00a0\u0085\x1c\u3000", None, "empty"),
    ("hi", [{"type": "text", "text": "hi"}], "exclude"),
    (None, [], "content"),
    (None, "hi", "content"),
    (None, ["hi"], "object"),
    (None, [{"text": "hi"}], "type"),
    (None, [{"type": "video", "url": "http://x/y", "media_type": "a/b"}], "video"),
    (None, [{"type": "tool_call", "tool": "x", "arguments": ""}], "tool_call"),
    (None, [{"type": "text"}], "text"),
    (None, [{"type": "text", "text": 3}], "text"),
    (None, [{"type": "text", "text": ""}], "text"),
    (None, [{"type": "text", "text": " "}], "empty"),
    (None, [{"type": "text", "text": "a", "cache": "b"}], "cache"),
    (None, [{"type": "text", "text": "a"}, {"type": "image", "media_type": "image/png"}], "block 1"),
    (None, [{"type": "image", "url": "http://a/b", "base64": "aGk=", "media_type": "image/png"}], "either"),
    (None, [{"type": "image", "url": "http://a/b"}], "media_type"),
    (None, [{"type": "image", "url": "http://a/b", "media_type": "png"}], "media_type"),
    (None, [{"type": "file", "url": "no url", "media_type": "text/csv"}], "no url"),
    (None, [{"type": "file", "base64": "***", "media_type": "text/csv"}], "base64"),
]


async def test_a_message_that_no_model_could_take_is_refused(stage):
    for message, content, word in BAD_MESSAGES:
        with refused("AR004", word):
            await stage.create(message, **({} if content is None else {"content": content}))
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


async def test_what_python_could_not_read_back_is_refused_from_psql(stage):
    """Case 96."""
    values = ['{"n": 1e5000}', '{"n": -1e400}', '{"n": 1e-5000}', "[" * 3000 + "]" * 3000, "[" * 101 + "]" * 101]
    for value in values:
        for place in ("config", "labels", "content"):
            options = f'{{"{place}": {value}}}' if place != "content" else f'{{"content": [{value}]}}'
            with refused("AR004"):
                await stage.call("create_session", AGENT, None if place == "content" else "hi", options)
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


@pytest.mark.parametrize("name", ["mi ne", "-x", "a/b", "mine\n", "naïve", "a" * 101])
async def test_a_session_for_an_agent_that_cannot_exist_is_refused(stage, name):
    with refused("AR004", "no agent can be named", "100 letters"):
        await stage.call("create_session", name, "hi", "{}")
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


async def test_what_is_nested_deeper_than_a_hundred_levels_is_refused_for_that(stage):
    """Case 96."""
    for levels, word in ((98, "config.model"), (99, "100 levels")):  # beside options and config
        deep = "[" * levels + "]" * levels
        with refused("AR004", word):
            await stage.call("create_session", AGENT, "hi", f'{{"config": {{"model": {deep}}}}}')


async def test_the_smallest_number_that_a_double_holds_is_taken(stage):
    """Case 96."""
    session = await stage.create(config={"limits": {"cost": 5e-324}})
    assert json.loads((await stage.head(session))["config"]) == {"limits": {"cost": 5e-324}}


async def test_a_message_of_eight_mebibytes_is_taken_and_one_more_byte_is_not(stage):
    text = "é" * (4 * 1024 * 1024)
    session = await stage.create(text)
    assert (await stage.entries(session))[1].data["content"][0]["text"] == text
    with refused("AR004", "8388609"):
        await stage.create(text + "x")


async def test_the_six_typed_characters_of_a_nul_stay_as_they_were_typed(stage):
    """F1."""
    session = await stage.create("a\\u0000b", config={"instructions": "k\\u0000"})
    assert (await stage.entries(session))[1].data["content"][0]["text"] == "a\\u0000b"
    assert json.loads((await stage.head(session))["config"]) == {"instructions": "k\\u0000"}


async def test_a_queue_longer_than_a_notification_does_not_fail_the_write(stage, connect):
    """F19."""
    heard: list[str] = []
    listener = await connect()
    await listener.add_listener("agentrt_ready", lambda *message: heard.append(message[-1]))
    queue = "ü" * 9000
    session = await stage.create(queue=queue, labels={"l" * 9000: "ü" * 9000})
    await listener.execute("select 1")
    assert heard == ["*"]
    assert (await stage.head(session))["queue"] == queue


async def test_a_queue_that_no_index_can_hold_is_refused_with_a_sentence(stage):
    noise = "".join(str(uuid4()) for _ in range(200))
    with refused("AR004", "too long"):
        await stage.create(queue=noise)
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


CALLS = [
    "create_session('a', 'hi')",
    "send_message('{id}', 'hi')",
    "cancel_session('{id}')",
    "resume_session('{id}')",
    "retry_session('{id}')",
    "archive_session('{id}')",
    "release_session('{id}')",
    "decide_approval('{id}', 'approved', 'ann')",
    "complete_tool_call('{id}', '000001000', 'x')",
    "read_journal('{id}')",
    "follow_session('{id}')",
    "prune_sessions('1 day')",
]


async def test_another_isolation_level_is_refused(stage):
    """Case 90."""
    session = await stage.create()
    for level in ("repeatable read", "serializable"):
        for call in CALLS:
            transaction = stage.connection.transaction(isolation=level.replace(" ", "_"))
            await transaction.start()
            with refused("AR004", level.upper()):
                await stage.connection.execute(f"select agentrt.{call.format(id=session)}")
            await transaction.rollback()
    assert len(await stage.entries(session)) == 2


async def test_every_client_function_names_an_option_that_it_does_not_know(stage):
    """Case 90."""
    session, [approval] = await stage.with_approvals()
    before = await stage.everything(session)
    for function in ("cancel", "resume", "retry", "archive", "release"):
        with refused("AR004", "colour"):
            await stage.call(f"{function}_session", session, {"colour": "red"})
    for refusal in (
        stage.send(session, colour="red"),
        stage.decide(approval, colour="red"),
        stage.complete_call(session, "000003000", colour="red"),
    ):
        with refused("AR004", "colour"):
            await refusal
    assert await stage.everything(session) == before


async def test_client_functions_run_with_a_pinned_search_path(connection: asyncpg.Connection):
    rows = await connection.fetch(
        """select p.proname, p.prosecdef, p.provolatile, p.proconfig
           from pg_proc p where p.pronamespace = 'agentrt'::regnamespace
             and p.proname !~ '^_' and p.proname <> 'uuid7'"""
    )
    assert len(rows) == 12
    for row in rows:
        assert row["prosecdef"], row
        assert row["provolatile"] == b"v", row
        assert row["proconfig"] == ["search_path=pg_catalog, agentrt, pg_temp"], row


async def test_a_table_in_front_of_the_search_path_deceives_no_function(stage):
    await stage.connection.execute("create temp table sessions (id uuid); create temp table journal (id uuid)")
    assert len(await stage.entries(await stage.create())) == 2
