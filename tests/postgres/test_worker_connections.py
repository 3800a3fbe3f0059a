"""Connections set what correctness rests on by themselves, refuse a standby, and come back after they broke."""

import asyncio
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote
from uuid import uuid4

import asyncpg
import pytest

from agentrt.core.errors import ClientError, ConfigurationError, DatabaseUnavailable, NotFound, SchemaMismatch
from agentrt.core.session import SessionId
from agentrt.ports import UnstorableBatch, WorkerState
from agentrt.postgres import keeping, pool
from agentrt.postgres.faults import LockTimeout, location
from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection, close, connect
from agentrt.postgres.store import PostgresStores
from tests.postgres.owner import HireOwner
from tests.postgres.proxy import proxied
from tests.postgres.stage import HANGS_AFTER_SECONDS, until
from tests.servers import Server, new_folder


@pytest.fixture
def options(database_url: str) -> DatabaseOptions:
    return DatabaseOptions(url=database_url)


async def test_the_databases_defaults_do_not_decide_about_durability_and_limits(
    options: DatabaseOptions, connection: asyncpg.Connection
) -> None:
    """Case 89."""
    name = await connection.fetchval("select current_database()")
    for setting in ("synchronous_commit = off", "lock_timeout = 0", "default_transaction_isolation = 'serializable'"):
        await connection.execute(f"alter database {name} set {setting}")
    for role in (Role.COMMIT, Role.CLAIM, Role.KEEPER, Role.REAPER, Role.TOOL):
        opened = await connect(options, role)
        found = [
            await opened.fetchval(f"show {setting}")
            for setting in ("synchronous_commit", "transaction_isolation", "lock_timeout", "statement_timeout")
        ]
        found.append(await opened.fetchval("show idle_in_transaction_session_timeout"))
        await close(opened)
        assert found == ["on", "read committed", "2s", "10s", "5s"]


async def test_a_pooled_connection_that_does_not_tell_its_settings_is_closed(
    options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has it, so nobody else would close it: each try would leave one behind."""
    opened = []

    async def silent(self: asyncpg.Connection, *_: object, **__: object) -> None:
        opened.append(self)
        raise TimeoutError

    monkeypatch.setattr(asyncpg.Connection, "fetchval", silent)
    with pytest.raises(DatabaseUnavailable):
        await connect(replace(options, direct_url="postgresql://elsewhere/app"), Role.CLAIM)
    assert [connection.is_closed() for connection in opened] == [True]


@pytest.fixture
def standby(server: Server) -> Iterator[str]:
    """The URL of a server in recovery: a cluster of its own with a standby signal."""
    folder = new_folder()
    owner = pwd.getpwnam("postgres" if server.name == "pg15" else "pgserver") if os.geteuid() == 0 else None
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        with (folder / "output").open("a") as output:
            subprocess.run(
                [server.program(program), "-D", data, *arguments],
                check=True,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
            )

    run("initdb", "-U", "postgres", "--auth=trust", "--no-sync")
    (data / "standby.signal").touch()
    with (data / "postgresql.conf").open("a") as file:
        file.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\nrestore_command = 'false'\n")
    run("pg_ctl", "-w", "-l", str(folder / "log"), "start")
    try:
        yield f"postgresql://postgres@/postgres?host={quote(str(folder))}"
    finally:
        run("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.one_server
async def test_a_standby_is_refused_at_the_start(standby: str) -> None:
    """Case 89."""
    with pytest.raises(ConfigurationError, match="standby"):
        await PostgresStores(DatabaseOptions(url=standby)).sessions()


@pytest.mark.one_server
async def test_a_standby_in_the_place_of_what_has_worked_before_is_an_outage(standby: str) -> None:
    """Case 89, after the start: a failover."""
    with pytest.raises(DatabaseUnavailable, match="standby"):
        await connect(DatabaseOptions(url=standby, proven=True), Role.COMMIT)


async def test_what_a_store_that_has_worked_does_not_find_any_more_is_an_outage(
    database_url: str, connection: asyncpg.Connection
) -> None:
    store = await PostgresStores(DatabaseOptions(url=database_url)).sessions()
    await connection.execute("drop schema agentrt cascade")
    with pytest.raises(DatabaseUnavailable, match="does not exist"):
        await store.head(SessionId(uuid4()))
    await store.close()


async def test_a_schema_that_is_missing_is_refused_with_the_command_to_run(empty_database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="agentrt migrate"):
        await PostgresStores(DatabaseOptions(url=empty_database_url)).sessions()


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://user:secret@127.0.0.1:1/app", DatabaseUnavailable, "127.0.0.1:1 "),
        ("postgresql://user:secret@nowhere.invalid/app", DatabaseUnavailable, "nowhere.invalid"),
        ("mysql://user:secret@127.0.0.1/app", ConfigurationError, "mysql://127.0.0.1/app"),
        ("postgresql://user:secret@127.0.0.1:port/app", ConfigurationError, "127.0.0.1:port"),
    ],
)
async def test_a_url_that_leads_nowhere_is_named_without_its_password(
    url: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        await connect(DatabaseOptions(url=url), Role.CLAIM)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "secret" not in location(url)


@pytest.mark.parametrize("password", ["geh/eim", "geh?eim", "geh#eim", "geh[eim", "5432/eim", "5432/g@eim"])
async def test_a_password_that_is_not_encoded_is_not_shown_either(password: str) -> None:
    url = f"postgresql://me:{password}@127.0.0.1:1/app"
    with pytest.raises((ConfigurationError, DatabaseUnavailable)) as caught:
        await connect(DatabaseOptions(url=url), Role.CLAIM)
    for shown in (str(caught.value), location(url)):
        assert not {"geh", "eim", "5432"} & set(re.split(r"[^a-z0-9]+", shown))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:secret@127.0.0.1:1/app", r"at 127\.0\.0\.1:1 \(connection refused\): start it, or correct"),
        ("postgresql:///app?host=/nowhere/postgres", r"at /nowhere/postgres \(no such socket\): .*agentrt dev"),
        ("postgresql://nowhere.invalid/app", r"at nowhere\.invalid \(no such host\)"),
    ],
)
async def test_a_server_that_does_not_answer_is_named_with_the_reason_and_what_to_do(url: str, words: str) -> None:
    with pytest.raises(DatabaseUnavailable, match=f"no Postgres answers {words}"):
        await connect(DatabaseOptions(url=url), Role.CLAIM)


def test_of_a_urls_options_only_the_host_is_shown() -> None:
    url = "postgresql://me@/app?password=secret&host=/run/postgres"
    assert location(url) == "postgresql:///app?host=/run/postgres"


async def test_a_database_that_does_not_exist_is_a_configuration_error(server: Server) -> None:
    url = server.url.replace("/postgres?", "/nothing?") if "?" in server.url else f"{server.url}_nothing"
    with pytest.raises(ConfigurationError, match=r"nothing.*create it"):
        await connect(DatabaseOptions(url=url), Role.CLAIM)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("do $$ begin raise exception using errcode = 'AR001', message = 'no session x'; end $$", NotFound),
        ("select 1 / 0", UnstorableBatch),
        ("select jsonb '1' || repeat('x', 10)::jsonb", UnstorableBatch),
        ("select * from agentrt.nothing", SchemaMismatch),
        ("select agentrt.nothing(1)", SchemaMismatch),
        ("set role postgres_nobody", UnstorableBatch),
        ("do $$ begin lock table agentrt.sessions; end $$", LockTimeout),
        ("select pg_sleep(60)", DatabaseUnavailable),
    ],
)
async def test_every_foreign_error_becomes_one_of_ours_and_the_connection_goes_on(
    database_url: str,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(pool, "_GRACE_SECONDS", 60.0)  # the limits are the server's
    seconds = 0.5 if "pg_sleep" in statement else 60
    options = DatabaseOptions(url=database_url, lock_seconds=0.1, statement_seconds=seconds)
    ours = RoleConnection(options, Role.CLAIM)
    pid = (await ours.fetch("select pg_backend_pid()"))[0][0]
    async with connection.transaction():
        await connection.execute("lock table agentrt.sessions in access share mode")
        with pytest.raises(error) as caught:
            await ours.fetch(statement)
    assert not isinstance(caught.value, ClientError) or caught.value.sqlstate == "AR001"
    assert (await ours.fetch("select pg_backend_pid()"))[0][0] == pid
    await ours.close()


async def test_a_connection_that_was_ended_is_made_again_by_the_next_call(
    options: DatabaseOptions, connection: asyncpg.Connection
) -> None:
    ours = RoleConnection(options, Role.CLAIM)
    pid = (await ours.fetch("select pg_backend_pid()"))[0][0]
    sleeping = asyncio.create_task(ours.fetch("select pg_sleep(60)"))
    await until(connection, "select wait_event = 'PgSleep' from pg_stat_activity where pid = $1", pid)
    await connection.execute("select pg_terminate_backend($1)", pid)
    with pytest.raises(DatabaseUnavailable):
        await sleeping

    assert (await ours.fetch("select pg_backend_pid()"))[0][0] != pid
    await ours.close()
    with pytest.raises(DatabaseUnavailable):
        await ours.fetch("select 1")


async def test_a_server_that_does_not_answer_is_given_up_after_the_time_limit(database_url: str) -> None:
    async with proxied(database_url) as proxy:
        options = DatabaseOptions(url=proxy.url)
        ours = RoleConnection(options, Role.CLAIM)
        await ours.fetch("select 1")
        proxy.deaf = True
        with pytest.raises(DatabaseUnavailable, match="in time"):
            await ours.fetch("select 1", seconds=-1.9)  # the server's limit plus 2 s: 0.1 s from now
        proxy.deaf = False
        assert len(await ours.fetch("select 1")) == 1
        await ours.close()


async def test_a_call_that_is_cancelled_leaves_no_answer_for_the_next(options: DatabaseOptions) -> None:
    ours = RoleConnection(options, Role.CLAIM)
    await ours.fetch("select 1")
    for _ in range(20):
        call = asyncio.create_task(ours.fetch("select 'old'"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        assert (await ours.fetch("select 'new'"))[0][0] == "new"
    await ours.close()


async def test_the_keepers_connection_is_not_made_again_since_its_lock_is_gone(
    hire: HireOwner, connection: asyncpg.Connection, options: DatabaseOptions
) -> None:
    """Case 78."""
    owner = await hire()
    assert (await owner.renew()).state is WorkerState.ALIVE
    assert not await connection.fetchval("select pg_try_advisory_lock_shared($1)", owner.liveness_key)

    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'agentrt keeper' and datname = current_database()"
    )
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await owner.renew()

    again = await PostgresStores(options).keeper()
    key = await again.lock_liveness()
    assert key not in (None, owner.liveness_key)
    assert (await again.renew(owner.info, key, draining=False)).state is WorkerState.ALIVE
    await again.close()


async def test_one_look_proves_a_lock_on_the_server_itself_which_may_be_far_away(
    options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that connects anew has three seconds until its worker stops everything."""
    monkeypatch.setattr(keeping, "_LOOKS", sys.maxsize)
    store = await PostgresStores(options).keeper()
    async with asyncio.timeout(HANGS_AFTER_SECONDS):
        assert await store.lock_liveness() is not None
    await store.close()


async def test_the_time_that_a_call_waited_for_the_others_is_not_taken_from_its_statement(
    options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be cut in the middle, and the connection with it, for no fault of its own."""
    connection = RoleConnection(options, Role.CLAIM)
    before = await connection.fetch("select pg_backend_pid()")
    monkeypatch.setattr(pool, "CONNECT_SECONDS", -options.statement_seconds - pool._GRACE_SECONDS)  # waited long enough
    assert await connection.fetch("select pg_backend_pid()") == before
    await connection.close()
