"""A follower waits out an outage, and is told what has ended its listening; it does not go on deaf without a word."""

import asyncio

import pytest

from agentrt.core.journal import UserMessage
from agentrt.core.session import SessionId
from agentrt.postgres.client import PostgresClientStore
from agentrt.postgres.listener import Listener
from tests.postgres.stage import Stage


async def test_an_error_that_ends_the_listening_reaches_whoever_follows(
    database_url: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(Listener, "run", broken)
    session = SessionId(await stage.create())
    client = await PostgresClientStore.connect(database_url)
    following = client.follow(session, 0)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        _ = [entry async for entry in following]
    await client.close()


async def test_what_the_database_refuses_after_the_start_is_waited_out(database_url: str, stage: Stage) -> None:
    """Case 25: here what is asked for is away for a while; a standby or a refused login is the same."""
    session = SessionId(await stage.create())
    told: asyncio.Queue[str | None] = asyncio.Queue()
    client = await PostgresClientStore.connect(database_url, outage=told.put_nowait)
    following = client.follow(session, 0)
    before = [await anext(following), await anext(following)]
    await stage.connection.execute("alter schema agentrt rename to away")
    coming = asyncio.create_task(anext(following))
    assert "does not exist" in (await told.get() or "")
    await stage.connection.execute("alter schema away rename to agentrt")
    await stage.send(session, "are you there?")
    entry = await coming
    assert (entry.seq, type(entry.data)) == (len(before) + 1, UserMessage)
    await following.aclose()
    await client.close()
