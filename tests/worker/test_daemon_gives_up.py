"""A drain that cannot release one session: it leaves that one to the sweep, and ends as any other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg
import pytest

from agentrt.core.events import SessionReleased, WarningRaised, WorkerAborted, WorkerStarted, WorkerStopped
from agentrt.core.session import SessionId
from agentrt.worker import daemon as daemon_module
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.daemons import Held, working
from tests.worker.ownership import Ground

REFUSE = """
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
create trigger refuse before insert on agentrt.journal for each row when (new.session_id = '{}')
  execute function refuse();
"""


@asynccontextmanager
async def locked(ground: Ground, session_id: SessionId) -> AsyncIterator[None]:
    """A client holds the session's row, as long as its transaction lasts."""
    client = await asyncpg.connect(ground.url)
    try:
        async with client.transaction():
            await client.fetchval("select agentrt.send_message($1, 'wait')", session_id)
            yield
    finally:
        await client.close()


@asynccontextmanager
async def refused(ground: Ground, session_id: SessionId) -> AsyncIterator[None]:
    """The database refuses each entry of the session."""
    await ground.connection.execute(REFUSE.format(session_id))
    yield
    await ground.connection.execute("drop trigger refuse on agentrt.journal")


@pytest.mark.parametrize("hold_up", [locked, refused])
async def test_a_session_that_cannot_be_released_is_left_to_the_sweep_and_the_others_are_released(
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    hold_up: Callable[[Ground, SessionId], AbstractAsyncContextManager[None]],
) -> None:
    """F21."""
    monkeypatch.setattr(daemon_module, "_GIVEN_UP_SECONDS", 60.0)
    held = Held(ground)
    stuck, free = await ground.create(), await ground.create()
    async with working(ground, held.agent(), db_lock_seconds=0.2) as worker:
        await ground.heard.until(lambda: len(held.begun) == 2)
        [started] = ground.heard.of(WorkerStarted)
        async with hold_up(ground, stuck), asyncio.timeout(HANGS_AFTER_SECONDS):
            worker.daemon.drain("the test")
            worker.daemon.cut()
            await ground.heard.wait_for(SessionReleased)
            worker.clock.seconds += daemon_module._LAST_SECONDS
            await ground.heard.wait_for(WorkerStopped)
    assert worker.left == []
    assert ground.heard.of(WorkerAborted) == []
    [warning] = [event for event in ground.heard.of(WarningRaised) if str(stuck) in event.message]
    assert "could not be released" in warning.message
    assert await ground.state(started.worker_id) == "stopped"
    row = await ground.row(free)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("queued", 1, 0)
    assert (await ground.row(stuck))["status"] == "running"
    await ground.reap(started.worker_id)
    assert (await ground.row(stuck))["status"] == "queued"
