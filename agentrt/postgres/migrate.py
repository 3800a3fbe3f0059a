"""Applies the migrations: forward only, each recorded in the transaction that applied it.

A file's leading comment may hold ``-- no transaction`` (each statement, ended by a semicolon at a line's end, runs by
itself and must be repeatable: it may build indexes concurrently) and ``-- breaks before X.Y.Z`` (workers older than
that version must not start on the new schema).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import asyncpg

from agentrt.core.errors import ConfigurationError, DatabaseUnavailable, SchemaMismatch
from agentrt.postgres.faults import translated
from agentrt.postgres.pool import DatabaseOptions, Role, close, connect

_LOCK = 0x61676E7472740001  # "agntrt": one migration at a time, per database
_LOCK_SECONDS = 2.0
_LOCK_TRIES = 30
_PAUSE_SECONDS = (0.2, 1.0)
_STATEMENT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. ``breaks_before`` is a version, or None."""

    name: str
    sql: str
    checksum: str
    in_transaction: bool
    breaks_before: str | None


@dataclass(frozen=True, slots=True)
class _Applied:
    checksum: str
    breaks_before: str | None


def known_migrations() -> Sequence[Migration]:
    """The migrations of this version, in order: those in the wheel, else those of the checkout."""
    folder: Traversable = files("agentrt") / "migrations"
    if not folder.is_dir():
        folder = Path(__file__).parents[2] / "migrations"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [_read(file) for file in found]


def _read(file: Traversable) -> Migration:
    content = file.read_bytes()
    sql = content.decode()
    head = "\n".join(line for line in sql.split("\n\n", 1)[0].splitlines() if line.startswith("--"))
    breaks = re.search(r"^-- breaks before (\d+(?:\.\d+)*)", head, re.MULTILINE)
    return Migration(
        name=file.name.removesuffix(".sql"),
        sql=sql,
        checksum=hashlib.sha256(content).hexdigest(),
        in_transaction="-- no transaction" not in head,
        breaks_before=breaks[1] if breaks else None,
    )


async def migrate(url: str, *, notice: Callable[[str], None] | None = None) -> list[str]:
    """Apply what is pending and return its names, in order.

    Args:
        url: The server itself: advisory locks do not work through a transaction pooler.
        notice: Told what PostgreSQL says meanwhile, such as a role that the user may not create.

    Raises:
        ConfigurationError: the database does not store text as UTF-8.
        SchemaMismatch: an applied file was changed afterwards, or is newer than one that is missing.
        DatabaseUnavailable: no answer, or tables that stayed locked by others.
    """
    applied = []
    async with _connected(url) as connection:
        if notice is not None:
            tell = notice
            connection.add_log_listener(lambda _, message: tell(str(message)))
        await _with_lock_tries(partial(connection.execute, "select pg_advisory_lock($1)", _LOCK), "another migration")
        for migration in await _pending(connection):
            await _with_lock_tries(partial(_apply, connection, migration), migration.name)
            applied.append(migration.name)
    return applied


async def pending(url: str) -> list[str]:
    """Names of the migrations that ``migrate`` would apply; changes nothing. Raises as ``migrate`` does."""
    async with _connected(url) as connection:
        return [migration.name for migration in await _pending(connection)]


async def check_schema(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Refuse a database that this version cannot work on.

    Later migrations are accepted, unless one of them breaks this version.

    Raises:
        ConfigurationError: the database does not store text as UTF-8.
        SchemaMismatch: says what is missing or too new, and what to run.
    """
    _check_encoding(connection)
    applied = await _applied(connection)
    if missing := [m.name for m in _missing(applied)]:
        raise SchemaMismatch(
            f"the schema is older than this version of agentrt, {', '.join(missing)} not applied: run `agentrt migrate`"
        )
    ours = version("agentrt")
    names = {migration.name for migration in known_migrations()}
    for name, row in applied.items():
        if name not in names and row.breaks_before is not None and _numbers(ours) < _numbers(row.breaks_before):
            raise SchemaMismatch(
                f"the schema's migration {name} needs agentrt {row.breaks_before} or newer, this is {ours}: "
                f"run `pip install --upgrade 'agentrt>={row.breaks_before}'`"
            )


def _numbers(text: str) -> tuple[int, ...]:
    """A version's numbers, without zeros at the end: 1.2 is 1.2.0."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _check_encoding(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    encoding = getattr(connection.get_settings(), "server_encoding", "UTF8")
    if encoding != "UTF8":
        raise ConfigurationError(
            f"the database stores text as {encoding}, which has no place for most characters: create one with "
            "`create database … encoding 'UTF8' template template0`"
        )


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    options = DatabaseOptions(
        url=url, lock_seconds=_LOCK_SECONDS, statement_seconds=_STATEMENT_SECONDS, idle_transaction_seconds=60
    )
    connection = await connect(options, Role.MIGRATE)
    try:
        _check_encoding(connection)
        with translated(url):
            yield connection
    finally:
        await close(connection)


async def _applied(connection: asyncpg.Connection[asyncpg.Record]) -> Mapping[str, _Applied]:
    if await connection.fetchval("select to_regclass('agentrt.schema_migrations')") is None:
        return {}
    rows = await connection.fetch("select name, checksum, breaks_before from agentrt.schema_migrations order by name")
    return {row["name"]: _Applied(row["checksum"], row["breaks_before"]) for row in rows}


def _missing(applied: Mapping[str, _Applied]) -> Sequence[Migration]:
    known = known_migrations()
    for migration in known:
        row = applied.get(migration.name)
        if row is not None and row.checksum != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied with other contents (checksum {row.checksum[:12]}, this "
                f"version has {migration.checksum[:12]}): install the version of agentrt that applied it; an applied "
                "migration is never edited"
            )
    return [migration for migration in known if migration.name not in applied]


async def _pending(connection: asyncpg.Connection[asyncpg.Record]) -> Sequence[Migration]:
    return _missing(await _applied(connection))


async def _with_lock_tries(step: Callable[[], Awaitable[object]], what: str) -> None:
    """Waiting long for a table lock would block everybody behind it: wait shortly, and often."""
    for _ in range(_LOCK_TRIES):
        try:
            await step()
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 - spreads retries, no secret
        else:
            return
    raise DatabaseUnavailable(
        f"{what} held its locks for {_LOCK_TRIES} tries of {_LOCK_SECONDS:g} s: end the long transactions, run it again"
    )


async def _apply(connection: asyncpg.Connection[asyncpg.Record], migration: Migration) -> None:
    record = "insert into agentrt.schema_migrations (name, checksum, breaks_before) values ($1, $2, $3)"
    values = (migration.name, migration.checksum, migration.breaks_before)
    if migration.in_transaction:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(record, *values)
        return
    await connection.execute("set lock_timeout = 0")  # a concurrent index build waits long, but blocks nobody
    try:
        for statement in re.split(r";\s*$", migration.sql, flags=re.MULTILINE):
            if re.sub(r"--[^\n]*", "", statement).strip():
                await connection.execute(statement)
    finally:
        await connection.execute("reset lock_timeout")
    await connection.execute(record, *values)
