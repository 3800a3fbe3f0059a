"""``agentrt.connect`` and ``Client``: what Python adds to the SQL functions."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

import agentrt
from agentrt import Client, Limits, connect
from agentrt.core.content import Image, Text
from agentrt.core.errors import (
    ConfigurationError,
    Conflict,
    DatabaseUnavailable,
    InvalidArgument,
    InvalidTransition,
    NotFound,
)
from agentrt.core.session import Status
from tests.postgres.proxy import proxied

pytestmark = pytest.mark.one_server


@pytest.fixture
async def client(database_url):
    async with connect(database_url) as client:
        yield client


async def test_connect_is_awaited_or_used_as_a_context_manager(database_url):
    client = await connect(database_url)
    assert isinstance(client, Client)
    session_id = await client.create("greeter", "hello")
    await client.close()
    async with connect(database_url) as other:
        assert (await other.get(session_id)).agent == "greeter"
    async with await connect(database_url) as third:
        assert (await third.get(str(session_id))).status is Status.QUEUED


async def test_nobody_at_the_url_is_told_at_connect():
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1"):
        await connect("postgresql://127.0.0.1:1/nowhere")


@pytest.mark.parametrize(
    ("url", "shown"), [(None, "None"), ("", "''"), (" ", "' '"), (b"postgresql://me:secret@host/x", "bytes")]
)
async def test_a_url_that_is_missing_is_told_with_what_to_set(url, shown):
    with pytest.raises(
        ConfigurationError, match=f"url={shown} is not the URL .*: give one .*AGENTRT_DATABASE_URL, set"
    ):
        await connect(url)


async def test_a_session_is_created_with_all_its_options(client):
    given, parent = uuid4(), await client.create("greeter", "hello")
    later = datetime.now(UTC) + timedelta(hours=1)
    session_id = await client.create(
        "greeter", content=[Text("look"), Image(url="https://example.org/a.png")], queue="q", priority=7,
        ready_at=later, dedup_key="k", config={"limits": {"turns": 3}}, labels={"team": "search"}, tenant="acme",
        parent_id=parent, id=given, max_attempts=2,
    )  # fmt: skip
    session = await client.get(session_id)
    assert session_id == given
    assert (session.queue, session.priority, session.ready_at, session.tenant) == ("q", 7, later, "acme")
    assert (session.parent_id, session.max_attempts, session.labels) == (parent, 2, {"team": "search"})
    assert session.config == {"limits": {"turns": 3}}
    entries = [entry async for entry in client.read(session_id)]
    assert entries[1].data.content == (Text("look"), Image(url="https://example.org/a.png"))


async def test_the_same_request_is_done_once_and_another_one_is_refused(client):
    session_id = await client.create("greeter", "hello", dedup_key="k")
    assert await client.create("greeter", "hello", dedup_key="k") == session_id
    with pytest.raises(Conflict):
        await client.create("greeter", "other", dedup_key="k")
    seq = await client.send(session_id, "more", request_id="r")
    assert await client.send(session_id, "more", request_id="r") == seq


async def test_a_time_without_a_zone_is_refused(client):
    with pytest.raises(InvalidArgument, match="time zone"):
        await client.create("greeter", "hello", ready_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the case


@pytest.mark.parametrize("given", ["42", "", None, 7])
async def test_an_id_that_is_no_uuid_is_refused(client, given):
    with pytest.raises(InvalidArgument, match="UUID"):
        await client.get(given)


async def test_commands_return_the_status_afterwards(client):
    session_id = await client.create("greeter", "hello")
    assert await client.cancel(session_id, reason="no") is Status.CANCELLED
    assert await client.retry(session_id, run=1) is Status.QUEUED
    assert await client.cancel(session_id) is Status.CANCELLED
    assert await client.archive(session_id) is Status.CANCELLED


async def test_limits_are_raised_at_resume(client, connection):
    session_id = await client.create("greeter", "hello")
    suspended = (
        "update agentrt.sessions set status = 'suspended', suspension = '{\"reason\": \"budget\"}' where id = $1"
    )
    await connection.execute(suspended, session_id)
    assert await client.resume(session_id, limits=Limits(turns=500)) is Status.QUEUED
    assert (await client.get(session_id)).config["limits"]["turns"] == 500


async def test_a_journal_is_read_over_several_pages(client, connection, monkeypatch):
    monkeypatch.setattr("agentrt.client.PAGE_ENTRIES", 3)
    session_id = await client.create("greeter", "hello")
    for number in range(8):
        await client.send(session_id, str(number))
    assert [entry.seq async for entry in client.read(session_id)] == [*range(1, 11)]
    assert [entry.seq async for entry in client.read(session_id, after_seq=9)] == [10]
    with pytest.raises(NotFound):
        _ = [entry async for entry in client.read(uuid4())]


async def test_following_yields_what_is_there_and_what_comes(client):
    session_id = await client.create("greeter", "hello")
    seen = []
    async with aclosing(client.follow(session_id, after_seq=1)) as entries:
        async for entry in entries:
            seen.append(entry.seq)
            if entry.seq == 2:
                await client.send(session_id, "more")
            if entry.seq == 3:
                break
    assert seen == [2, 3]


async def test_a_follower_tells_once_that_the_database_is_away_and_once_that_it_is_back(
    database_url, caplog, monkeypatch
):
    monkeypatch.setattr("agentrt.postgres.following._POLL_SECONDS", 0.2)
    told: asyncio.Queue[str | None] = asyncio.Queue()
    async with proxied(database_url) as proxy, connect(proxy.url, outage=told.put_nowait) as client:
        session_id = await client.create("greeter", "hello")
        async with aclosing(client.follow(session_id, after_seq=1)) as entries:
            assert (await anext(entries)).seq == 2
            proxy.refuses = True
            await proxy.cut()
            following = asyncio.create_task(anext(entries))
            assert "127.0.0.1" in (await told.get() or "")
            arrived = proxy.arrivals
            while proxy.arrivals < arrived + 3:  # noqa: ASYNC110 - it tries again, and tells it to nobody
                await asyncio.sleep(0.02)
            proxy.refuses = False
            assert await told.get() is None
            await client.send(session_id, "more")
            assert (await following).seq == 3
    assert told.empty()
    assert not [record for record in caplog.records if record.name.startswith("asyncpg")]


async def test_following_that_is_left_listens_no_longer(client):
    session_id = await client.create("greeter", "hello")
    async with aclosing(client.follow(session_id)) as entries:
        await anext(entries)
        assert "agentrt-follow" in tasks_that_go_on()
    assert "agentrt-follow" not in tasks_that_go_on()


def tasks_that_go_on():
    return {task.get_name() for task in asyncio.all_tasks() if not task.cancelling()}


async def test_following_may_be_left_after_the_client_was_closed(database_url):
    client = await agentrt.connect(database_url)
    entries = client.follow(await client.create("greeter", "hello"))
    await anext(entries)
    await client.close()
    await entries.aclose()


async def test_sessions_are_listed_newest_first_by_filter(client):
    one = await client.create("greeter", "hello", labels={"a": "1", "b": "2"})
    two = await client.create("writer", "hello", labels={"a": "1"})
    assert [row["id"] for row in await client.list(labels={"a": "1"})] == [two, one]
    assert [row["id"] for row in await client.list(labels={"b": "2"}, status=Status.QUEUED)] == [one]
    assert len(await client.list(limit=1)) == 1


def test_the_public_names_are_there():
    assert {name for name in agentrt.__all__ if getattr(agentrt, name, None) is None} == set()


async def test_an_error_is_the_databases_sentence_and_nothing_else(client):
    session_id = await client.create("greeter", "hello")
    with pytest.raises(InvalidTransition) as refused:
        await client.resume(session_id)
    assert str(refused.value) == f"session {session_id} is queued: resume needs a session that is suspended"
