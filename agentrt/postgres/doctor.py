"""Looks at a database as a worker would use it, and says what is wrong and what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import uuid4

import asyncpg

from agentrt.core.errors import AgentrtError
from agentrt.core.finding import Finding, Level
from agentrt.postgres.faults import location, translated
from agentrt.postgres.keeping import PostgresKeeperStore
from agentrt.postgres.migrate import check_schema
from agentrt.postgres.pool import DatabaseOptions, Role, close, connect

OLDEST_VERSION = 150_000
CLOCK_SECONDS = 2.0
SNAPSHOT_SECONDS = 300
HEARD_SECONDS = 3.0
LOCK_LOOKS = 50
"""At a lock through a pooler that may be busy: a worker notices by its renewals what it overlooked, and we do not."""

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


async def examine(options: DatabaseOptions) -> AsyncIterator[Finding]:
    """Look at everything, one after the other; what hangs on an unreachable database is left out."""
    try:
        connection = await connect(options, Role.PROBE)
    except AgentrtError as error:
        yield Finding("database", Level.PROBLEM, str(error))
        return
    try:
        yield Finding("database", Level.OK, f"{location(options.url)} answers")
        for check, look in _LOOKS.items():
            try:
                with translated(options.url):
                    yield await look(connection)
            except AgentrtError as error:
                yield Finding(check, Level.PROBLEM, str(error))
    finally:
        await close(connection)
    for check, prove in _PROOFS.items():
        try:
            yield await prove(options)
        except AgentrtError as error:
            yield Finding(check, Level.PROBLEM, str(error))


async def _version(connection: Connection) -> Finding:
    number = int(await connection.fetchval("show server_version_num"))
    name = await connection.fetchval("show server_version")
    if number < OLDEST_VERSION:
        return Finding("version", Level.PROBLEM, f"PostgreSQL {name} is too old: agentrt needs 15 or newer")
    return Finding("version", Level.OK, f"PostgreSQL {name}")


async def _schema(connection: Connection) -> Finding:
    await check_schema(connection)
    return Finding("schema", Level.OK, "fits this version of agentrt")


async def _rights(connection: Connection) -> Finding:
    user, may = await connection.fetchrow(
        "select current_user, has_schema_privilege('agentrt', 'usage')"
        " and has_table_privilege('agentrt.sessions', 'update') and has_table_privilege('agentrt.journal', 'insert')"
    ) or ("", False)
    if not may:
        advice = f"user {user} may not run a worker: run `grant agentrt_worker to {user}` as an administrator"
        return Finding("rights", Level.PROBLEM, advice)
    return Finding("rights", Level.OK, f"user {user} may run a worker")


async def _durability(connection: Connection) -> Finding:
    if await connection.fetchval("show fsync") == "off":
        return Finding(
            "durability", Level.WARNING, "fsync is off: a crash of the machine may lose the database; set it on"
        )
    return Finding("durability", Level.OK, "fsync is on")


async def _clock(connection: Connection) -> Finding:
    before = time.time()
    theirs = float(await connection.fetchval("select extract(epoch from clock_timestamp())::float8"))
    after = time.time()
    apart = max(before - theirs, theirs - after, 0.0)
    if apart > CLOCK_SECONDS:
        text = (
            f"this machine's clock and the database's are {apart:.1f} s apart: leases are safe, times in logs mislead"
        )
        return Finding("clock", Level.WARNING, f"{text}; run a time service on both")
    return Finding("clock", Level.OK, f"{apart:.3f} s apart from the database's")


async def _snapshots(connection: Connection) -> Finding:
    rows: Sequence[asyncpg.Record] = await connection.fetch(
        "select pid, application_name, round(extract(epoch from clock_timestamp() - xact_start))::int as seconds"
        " from pg_stat_activity where backend_xmin is not null and datname = current_database()"
        " and xact_start < clock_timestamp() - make_interval(secs => $1) order by xact_start",
        SNAPSHOT_SECONDS,
    )
    if rows:
        pid, name, seconds = rows[0]
        text = f"a transaction of {name or 'an unnamed client'} (pid {pid}) is open for {seconds} s, {len(rows)} in all"
        return Finding("snapshots", Level.WARNING, f"{text}: tables grow and writes slow down until it ends")
    return Finding("snapshots", Level.OK, "no transaction is open for long")


async def _connections(connection: Connection) -> Finding:
    used = int(await connection.fetchval("select count(*) from pg_stat_activity where backend_type = 'client backend'"))
    most = int(await connection.fetchval("show max_connections"))
    text = f"{used} of {most} connections are in use; a worker takes about 8"
    if most - used < 16:
        return Finding("connections", Level.WARNING, f"{text}: raise max_connections")
    return Finding("connections", Level.OK, text)


async def _listen(options: DatabaseOptions) -> Finding:
    """A round trip: through a transaction pooler LISTEN answers, and is deaf."""
    channel, heard = f"agentrt_doctor_{uuid4().hex}", asyncio.Event()
    with translated(options.listen_url):
        listener = await connect(options, Role.PROBE, direct=True)
        try:
            await listener.add_listener(channel, lambda *_: heard.set())
            speaker = await connect(options, Role.PROBE)
            try:
                await speaker.execute("select pg_notify($1, '')", channel)
            finally:
                await close(speaker)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARD_SECONDS):
                    await heard.wait()
            await listener.execute("select 1")  # what was notified arrives before its answer
        finally:
            listener.terminate()
    if not heard.is_set():
        text = f"LISTEN does not work through {location(options.listen_url)}: work is found by polling"
        advice = "set AGENTRT_DIRECT_DATABASE_URL to the server itself, past the pooler"
        return Finding("listen", Level.WARNING, f"{text}; {advice}")
    return Finding("listen", Level.OK, "notifications arrive")


async def _locks(options: DatabaseOptions) -> Finding:
    keeper = PostgresKeeperStore(options)
    try:
        key = await keeper.lock_liveness(looks=LOCK_LOOKS)
    finally:
        await keeper.close()
    if key is None:
        text = f"locks do not last through {location(options.listen_url)}: a dead worker is noticed by its lease"
        advice = "set AGENTRT_DIRECT_DATABASE_URL to the server itself, past the pooler"
        return Finding("advisory locks", Level.WARNING, f"{text}; {advice}")
    return Finding("advisory locks", Level.OK, "work: a killed worker is noticed at once")


_LOOKS: dict[str, Callable[[Connection], Awaitable[Finding]]] = {
    "version": _version,
    "schema": _schema,
    "rights": _rights,
    "durability": _durability,
    "clock": _clock,
    "snapshots": _snapshots,
    "connections": _connections,
}
_PROOFS: dict[str, Callable[[DatabaseOptions], Awaitable[Finding]]] = {"listen": _listen, "advisory locks": _locks}
