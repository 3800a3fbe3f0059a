"""Whether LISTEN works is proved once: what is slow, or silent for a while, is asked again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from agentrt.ports import WakeupHandlers
from agentrt.postgres import listener
from agentrt.postgres.listener import PostgresWakeups
from agentrt.postgres.pool import DatabaseOptions, Role, connect
from tests.servers import Server

Told = asyncio.Queue[tuple[str, object]]
LOOKED_AT = [("ready", None), ("control", None)]


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[Told, asyncio.Task[None]]]:
    told: Told = asyncio.Queue()
    handlers = WakeupHandlers(
        ready=lambda names: told.put_nowait(("ready", names)),
        control=lambda ids: told.put_nowait(("control", ids)),
        reconnected=lambda error: told.put_nowait(("reconnected", error)),
        unavailable=lambda why: told.put_nowait(("unavailable", why)),
    )
    task = asyncio.create_task(PostgresWakeups(DatabaseOptions(url=url), handlers).run())
    try:
        yield told, task
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def before_probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None], str | None], None]:
    """Change something before the n-th probe connects, and where it connects to; the next ones are as usual again."""

    def change(number: int, alter: Callable[[], None], url: str | None = None) -> None:
        probes = 0

        async def altered(options: DatabaseOptions, role: Role, *, direct: bool = False) -> object:
            nonlocal probes
            if role is not Role.PROBE:
                return await connect(options, role, direct=direct)
            probes += 1
            if probes != number:
                monkeypatch.setattr(listener, "_PING_LIMIT_SECONDS", 60.0)
                monkeypatch.setattr(listener, "_PROOF_SECONDS", 60.0)
                return await connect(options, role, direct=direct)
            alter()
            return await connect(options if url is None else replace(options, url=url), role, direct=direct)

        monkeypatch.setattr(listener, "connect", altered)

    return change


async def test_a_database_that_answers_the_proof_too_late_is_asked_again(
    database_url: str, before_probe: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_probe(1, lambda: monkeypatch.setattr(listener, "_PING_LIMIT_SECONDS", 0.0))
    async with listening(database_url) as (told, _):
        kind, words = await told.get()
        assert (kind, "in time" in str(words)) == ("reconnected", True)
        assert [await told.get() for _ in LOOKED_AT] == LOOKED_AT


async def test_a_silence_after_listen_has_worked_makes_a_new_connection_and_not_a_verdict(
    database_url: str, server: Server, connection: asyncpg.Connection, before_probe: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Case F18: the second probe speaks in another database, where nobody of ours listens."""
    before_probe(2, lambda: monkeypatch.setattr(listener, "_PROOF_SECONDS", 0.05), server.url)
    async with listening(database_url) as (told, _):
        assert [await told.get() for _ in LOOKED_AT] == LOOKED_AT
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'agentrt listener' and datname = current_database()"
        )
        kind, words = await told.get()
        assert (kind, "no notification" in str(words)) == ("reconnected", True)
        assert [await told.get() for _ in LOOKED_AT] == LOOKED_AT


async def test_a_silence_from_the_beginning_is_told_once_and_ends_the_listening(
    database_url: str, server: Server, before_probe: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_probe(1, lambda: monkeypatch.setattr(listener, "_PROOF_SECONDS", 0.05), server.url)
    async with listening(database_url) as (told, task):
        await task
        kind, words = await told.get()
        assert (kind, "AGENTRT_DIRECT_DATABASE_URL" in str(words)) == ("unavailable", True)
        assert told.empty()


async def test_a_loop_that_was_busy_while_the_proof_came_does_not_count_as_silence(
    database_url: str, before_probe: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_probe(1, lambda: monkeypatch.setattr(listener, "_PROOF_SECONDS", -1.0))
    async with listening(database_url) as (told, _):
        assert [await told.get() for _ in LOOKED_AT] == LOOKED_AT
