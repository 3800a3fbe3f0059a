"""Migrations: forward only, recorded in the transaction that applied them, safe while older workers run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from uuid import uuid4

import asyncpg
import pytest

from agentrt.core.errors import ConfigurationError, DatabaseUnavailable, SchemaMismatch
from agentrt.ports import UnstorableBatch
from agentrt.postgres import migrate as migrating
from agentrt.postgres.migrate import Migration, check_schema, known_migrations, migrate, pending
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresStores
from tests.databases import with_database
from tests.postgres.stage import NOBODY_WAITS, until, until_waiting
from tests.servers import Server

NAMES = [migration.name for migration in known_migrations()]


def later(sql: str, **more: object) -> Migration:
    """A migration of a version to come."""
    made = Migration(name="9000_later", sql=sql, checksum="c0ffee", in_transaction=True, breaks_before=None)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Migration]], None]:
    """Sets which migrations this version has."""
    return lambda migrations: monkeypatch.setattr(migrating, "known_migrations", lambda: migrations)


async def applied(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("select name from agentrt.schema_migrations order by name")
    finally:
        await connection.close()
    return [row["name"] for row in rows]


async def test_what_is_pending_is_told_applied_once_and_then_nothing_is(empty_database_url: str) -> None:
    assert await pending(empty_database_url) == NAMES
    assert await pending(empty_database_url) == NAMES  # asking changed nothing
    assert await migrate(empty_database_url) == NAMES
    assert await applied(empty_database_url) == NAMES
    assert await pending(empty_database_url) == []
    assert await migrate(empty_database_url) == []


async def test_of_two_migrations_at_once_one_applies(empty_database_url: str) -> None:
    both = await asyncio.gather(migrate(empty_database_url), migrate(empty_database_url))
    assert sorted(both, key=len) == [[], NAMES]


async def test_a_migration_that_fails_leaves_nothing_and_can_be_tried_again(
    database_url: str, known: Callable[[Sequence[Migration]], None]
) -> None:
    known([*known_migrations(), later("create table agentrt.more (i int); insert into agentrt.more values (1 / 0);")])
    with pytest.raises(UnstorableBatch, match="division by zero"):
        await migrate(database_url)
    assert await applied(database_url) == NAMES

    known([*known_migrations()[:-1], later("create table agentrt.more (i int)")])
    assert await migrate(database_url) == ["9000_later"]


async def test_an_applied_file_that_was_edited_is_refused(
    database_url: str, known: Callable[[Sequence[Migration]], None]
) -> None:
    first, *rest = known_migrations()
    known([replace(first, checksum="0" * 64), *rest])
    for look in (migrate, pending):
        with pytest.raises(SchemaMismatch, match=f"{first.name} was applied with other contents"):
            await look(database_url)


async def test_a_migration_waits_shortly_and_often_for_a_table_that_others_use(
    database_url: str,
    connection: asyncpg.Connection,
    known: Callable[[Sequence[Migration]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migrating, "_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(migrating, "_LOCK_TRIES", 1_000_000)
    monkeypatch.setattr(migrating, "_PAUSE_SECONDS", (0.1, 0.1))  # long enough to be seen
    known([*known_migrations(), later("alter table agentrt.workers add column more int")])
    using = connection.transaction()
    await using.start()
    await connection.execute("select count(*) from agentrt.workers")
    task = asyncio.create_task(migrate(database_url))
    looking = await asyncpg.connect(database_url)
    for _ in range(2):  # it waits, gives up so that others can pass, and waits again
        await until_waiting(looking)
        await until(looking, NOBODY_WAITS)
    await using.rollback()
    assert await task == ["9000_later"]
    await looking.close()


async def test_a_table_that_stays_in_use_makes_the_migration_give_up(
    database_url: str,
    connection: asyncpg.Connection,
    known: Callable[[Sequence[Migration]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migrating, "_LOCK_SECONDS", 0.02)
    monkeypatch.setattr(migrating, "_LOCK_TRIES", 3)
    monkeypatch.setattr(migrating, "_PAUSE_SECONDS", (0.0, 0.0))
    known([*known_migrations(), later("alter table agentrt.workers add column more int")])
    async with connection.transaction():
        await connection.execute("select count(*) from agentrt.workers")
        with pytest.raises(DatabaseUnavailable, match="9000_later"):
            await migrate(database_url)
    assert await applied(database_url) == NAMES


async def test_a_file_without_a_transaction_may_build_indexes_concurrently(
    database_url: str, connection: asyncpg.Connection, known: Callable[[Sequence[Migration]], None]
) -> None:
    sql = """-- no transaction
-- Two statements; each is repeatable.
drop index concurrently if exists agentrt.sessions_more;
create index concurrently if not exists sessions_more  -- a comment; with a semicolon
  on agentrt.sessions (tenant);
"""
    known([*known_migrations(), later(sql, in_transaction=False)])
    assert await migrate(database_url) == ["9000_later"]
    assert await connection.fetchval(
        "select indisvalid from pg_index where indexrelid = 'agentrt.sessions_more'::regclass"
    )


async def test_what_the_server_says_meanwhile_is_passed_on(
    database_url: str, known: Callable[[Sequence[Migration]], None]
) -> None:
    known([*known_migrations(), later("do $$ begin raise warning 'role x was not created'; end $$")])
    heard: list[str] = []
    await migrate(database_url, notice=heard.append)
    assert any("role x was not created" in line for line in heard)


# --- workers and schemas ----------------------------------------------------------------------------------------------


async def test_a_worker_starts_on_a_schema_that_is_one_expanding_migration_ahead(
    database_url: str, connection: asyncpg.Connection
) -> None:
    """Case 91."""
    await connection.execute("insert into agentrt.schema_migrations (name, checksum) values ('9000_later', 'x')")
    store = await PostgresStores(DatabaseOptions(url=database_url)).sessions()
    await store.close()


@pytest.mark.parametrize(
    ("breaks_before", "refused"),
    [("999.1", True), ("0.0.1", False), (version("agentrt"), False), (f"{version('agentrt')}.0.0", False)],
)
async def test_a_worker_refuses_a_schema_that_breaks_it_and_says_what_to_run(
    database_url: str, connection: asyncpg.Connection, breaks_before: str, refused: bool
) -> None:
    """Case 91."""
    await connection.execute(
        "insert into agentrt.schema_migrations (name, checksum, breaks_before) values ('9000_later', 'x', $1)",
        breaks_before,
    )
    if refused:
        with pytest.raises(SchemaMismatch, match=r"9000_later.*999\.1.*pip install --upgrade"):
            await PostgresStores(DatabaseOptions(url=database_url)).sessions()
    else:
        await check_schema(connection)


async def test_a_worker_refuses_a_schema_that_is_older_and_says_what_to_run(
    connection: asyncpg.Connection, known: Callable[[Sequence[Migration]], None]
) -> None:
    known([*known_migrations(), later("select 1")])
    with pytest.raises(SchemaMismatch, match=r"9000_later not applied: run `agentrt migrate`"):
        await check_schema(connection)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_does_not_store_utf8_is_refused_with_a_way_out(server: Server, encoding: str) -> None:
    name = f"agentrt_test_{uuid4().hex}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'")
    url = with_database(server.url, name)
    try:
        with pytest.raises(ConfigurationError, match=rf"{encoding}.*encoding 'UTF8'"):
            await migrate(url)
        assert not await _has_schema(url)
        with pytest.raises(ConfigurationError, match=encoding):
            await PostgresStores(DatabaseOptions(url=url)).sessions()
    finally:
        await admin.execute(f"drop database {name} with (force)")
        await admin.close()


async def _has_schema(url: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select to_regnamespace('agentrt') is not null"))
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("head", "in_transaction", "breaks_before"),
    [
        ("-- Adds a column.\n", True, None),
        ("-- Adds an index.\n-- no transaction\n", False, None),
        ("-- Drops a column.\n-- breaks before 0.3.1\n", True, "0.3.1"),
        ("-- Adds.\n\n-- no transaction\n-- breaks before 0.3\n", True, None),  # only the first comment counts
    ],
)
def test_a_files_first_comment_says_how_it_is_applied(
    tmp_path_factory: pytest.TempPathFactory, head: str, in_transaction: bool, breaks_before: str | None
) -> None:
    file = tmp_path_factory.mktemp("migrations") / "0001_x.sql"
    file.write_text(f"{head}select 1;\n")
    read = migrating._read(file)
    assert (read.name, read.in_transaction, read.breaks_before) == ("0001_x", in_transaction, breaks_before)


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [int(name[:4]) for name in NAMES] == list(range(1, len(NAMES) + 1))
