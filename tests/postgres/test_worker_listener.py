"""Wake-ups: heard at once, heard again after the connection was lost, and never needed for correctness."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import asyncpg
import pytest

from agentrt.core.journal import Entry
from agentrt.core.session import Released, ReleaseReason
from agentrt.ports import WakeupHandlers
from agentrt.postgres import listener
from agentrt.postgres.client import PostgresClientStore
from agentrt.postgres.listener import PostgresWakeups, ids_of, names_of
from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import HireOwner, answer
from tests.postgres.stage import Stage


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of the machine is no silence of the server's."""
    monkeypatch.setattr(listener, "_PING_LIMIT_SECONDS", 60.0)
    monkeypatch.setattr(listener, "_PROOF_SECONDS", 60.0)


class Heard:
    """What a listener told, one after another."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    def handlers(self) -> WakeupHandlers:
        return WakeupHandlers(
            ready=lambda names: self.queue.put_nowait(("ready", names)),
            control=lambda ids: self.queue.put_nowait(("control", ids)),
            reconnected=lambda error: self.queue.put_nowait(("reconnected", error)),
            unavailable=lambda why: self.queue.put_nowait(("unavailable", why)),
        )

    async def next(self, count: int = 1) -> list[tuple[str, object]]:
        return [await self.queue.get() for _ in range(count)]


@asynccontextmanager
async def listening(options: DatabaseOptions) -> AsyncIterator[tuple[Heard, PostgresWakeups]]:
    heard = Heard()
    wakeups = PostgresWakeups(options, heard.handlers())
    task = asyncio.create_task(wakeups.run())
    try:
        yield heard, wakeups
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_listener_looks_at_everything_first_and_then_hears_of_queues_and_sessions(
    database_url: str, hire: HireOwner, stage: Stage
) -> None:
    async with listening(DatabaseOptions(url=database_url)) as (heard, wakeups):
        assert await heard.next(2) == [("ready", None), ("control", None)]
        assert wakeups.listening
        session = await stage.create(queue="älter")
        assert await heard.next() == [("ready", ["älter"])]
        await stage.take(session)
        await stage.cancel(session)
        assert await heard.next() == [("control", [session])]

        await stage.create()
        assert await heard.next() == [("ready", ["default"])]
        owner = await hire()
        await owner.end(await owner.take(), Released(ReleaseReason.DRAIN))
        assert await heard.next() == [("ready", ["default"])]
    assert not wakeups.listening


async def test_a_listener_that_was_cut_listens_again_and_has_everything_looked_at(
    database_url: str, connection: asyncpg.Connection, stage: Stage
) -> None:
    """Fault F18."""
    async with listening(DatabaseOptions(url=database_url)) as (heard, _):
        await heard.next(2)
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'agentrt listener' and datname = current_database()"
        )
        (reconnected,) = await heard.next()
        assert reconnected[0] == "reconnected"
        assert await heard.next(2) == [("ready", None), ("control", None)]
        await stage.create()
        assert await heard.next() == [("ready", ["default"])]


async def test_a_listener_waits_for_a_database_that_is_not_there_yet() -> None:
    async with listening(DatabaseOptions(url="postgresql://postgres@127.0.0.1:1/x")) as (heard, wakeups):
        await asyncio.sleep(0)
        assert heard.queue.empty()
        assert not wakeups.listening


@pytest.mark.parametrize("payload", ["*", "", "{}", '["a", 1]', "[" * 5000, '"default"'])
def test_a_payload_that_names_nothing_means_look_at_everything(payload: str) -> None:
    assert names_of(payload) is None


def test_names_that_are_no_ids_mean_look_at_everything() -> None:
    assert names_of('["a", "ä"]') == ["a", "ä"]
    assert ids_of(["a"]) is None
    assert ids_of([]) == []


async def test_a_follower_gets_every_entry_once_in_order_across_a_lost_connection(
    database_url: str, hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    """Case 57."""
    session = await stage.create()
    owner = await hire()
    client = await PostgresClientStore.connect(database_url)
    held = await owner.take()
    following, late = client.follow(held.id, 0), client.follow(held.id, 2)
    seen = [(await anext(following)).seq for _ in range(3)]
    for _ in range(3):
        await owner.append(held, answer())
    seen += [(await anext(following)).seq for _ in range(3)]
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name in ('agentrt listener', 'agentrt client') and datname = current_database()"
    )
    await owner.append(held, answer(), answer())
    seen += [(await anext(following)).seq for _ in range(2)]

    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [(await anext(late)).seq for _ in range(6)] == [3, 4, 5, 6, 7, 8]
    await owner.end(held)
    assert (await anext(late)).data.type == "session_completed"
    await connection.execute("delete from agentrt.sessions where id = $1", session)
    for each in (following, late):
        await each.aclose()
    await client.close()


async def test_followers_from_any_place_get_every_entry_once_across_a_takeover(
    database_url: str, hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    """Case 57: from 0, from 5, and from the last entry."""
    session = await stage.create()
    first, second = await hire("first"), await hire("second")
    held = await first.take()
    for _ in range(3):
        await first.append(held, answer())
    client = await PostgresClientStore.connect(database_url)
    followers = {after: client.follow(held.id, after) for after in (0, 5, 6)}
    reading = {after: asyncio.create_task(read_until_completed(f)) for after, f in followers.items()}

    await connection.execute("update agentrt.workers set state = 'dead' where id = $1", first.id)
    await second.reaper.sweep(second.id)
    taken = await second.take()
    await second.append(taken, answer())
    await second.end(taken)

    for after, task in reading.items():
        assert await task == list(range(after + 1, 11))
    assert (await stage.types(session))[6:] == [
        "session_orphaned", "session_claimed", "assistant_message", "session_completed",
    ]  # fmt: skip
    await client.close()


async def read_until_completed(following: AsyncGenerator[Entry, None]) -> list[int]:
    seqs: list[int] = []
    async with aclosing(following):
        async for entry in following:
            seqs.append(entry.seq)
            if entry.data.type == "session_completed":
                break
    return seqs


async def test_entries_are_notified_only_while_somebody_follows(
    hire: HireOwner, stage: Stage, connection: asyncpg.Connection
) -> None:
    """Case 93."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    heard: asyncio.Queue[object] = asyncio.Queue()
    await connection.add_listener("agentrt_journal", lambda *event: heard.put_nowait(event[-1]))

    await owner.append(held, answer())
    await stage.call("follow_session", session, 30)
    await owner.append(held, answer())
    assert await heard.get() == f'["{session}"]'

    await stage.connection.execute("update agentrt.followers set expires_at = now() - interval '1 s'")
    await owner.append(held, answer())
    await owner.reaper.sweep(owner.id)
    await connection.execute("select pg_notify('agentrt_journal', 'end')")
    assert await heard.get() == "end"
    assert await connection.fetchval("select count(*) from agentrt.followers") == 0
    await connection.reset()
