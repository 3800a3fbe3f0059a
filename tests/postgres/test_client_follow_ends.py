"""A follower is told what has ended its listening; it does not go on deaf without a word."""

import pytest

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
