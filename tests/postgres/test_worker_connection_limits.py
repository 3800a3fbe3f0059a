"""No call of the driver waits without a limit, and no error of the server's carries rows out."""

import asyncio

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.ports import UnstorableBatch
from agentrt.postgres import pool
from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection, connect
from tests.looptime import let_pass
from tests.postgres.proxy import proxied
from tests.postgres.stage import HANGS_AFTER_SECONDS


async def test_a_call_without_a_limit_of_its_own_is_given_up_on_a_server_that_does_not_answer(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case F17."""
    async with proxied(database_url) as proxy:
        for call in (
            lambda opened: opened.execute("select 1"),
            lambda opened: opened.fetchval("select $1::int", 1),
            lambda opened: opened.add_listener("anything", print),
            lambda opened: opened.transaction().start(),
        ):
            opened = await connect(DatabaseOptions(url=proxy.url, statement_seconds=60), Role.PROBE)
            proxy.deaf = True
            calling = asyncio.ensure_future(call(opened))
            await asyncio.sleep(0)
            with monkeypatch.context() as patch:
                let_pass(patch, seconds=100)
                with pytest.raises(TimeoutError):
                    await calling
            opened.terminate()
            proxy.deaf = False


async def test_waiting_for_a_connection_that_others_use_is_limited_too_and_harms_nobody(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = RoleConnection(DatabaseOptions(url=database_url), Role.CLIENT)
    async with ours.using() as connection:
        pid = await connection.fetchval("select pg_backend_pid()")
        monkeypatch.setattr(pool, "CONNECT_SECONDS", 0.1)
        with pytest.raises(DatabaseUnavailable, match="in time"):
            await asyncio.wait_for(ours.fetch("select 1", seconds=-1.9), HANGS_AFTER_SECONDS)
        assert await connection.fetchval("select pg_backend_pid()") == pid
    assert (await ours.fetch("select pg_backend_pid()"))[0][0] == pid
    await ours.close()


async def test_the_row_that_the_server_complains_about_stays_out_of_our_error(database_url: str) -> None:
    ours = RoleConnection(DatabaseOptions(url=database_url), Role.CLIENT)
    with pytest.raises(UnstorableBatch) as caught:
        await ours.fetch("insert into agentrt.schema_migrations select * from agentrt.schema_migrations")
    assert isinstance(caught.value.__cause__, asyncpg.UniqueViolationError)
    assert "0001_initial" in str(caught.value.__cause__)
    assert "0001_initial" not in str(caught.value)
    assert "schema_migrations_pkey" in str(caught.value)
    await ours.close()
