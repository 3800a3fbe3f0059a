"""Transactional tools: rows and result together, exactly once, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import WorkerId
from agentrt.ports import Answer, ToolTransactionBroken, ToolTransactionConflict, Write, Written
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.tooltransaction import Connection, ToolConnections, _PostgresToolTransaction
from tests.looptime import let_pass
from tests.postgres.owner import Held, HireOwner, Owner, answer, expire_lease, hiring, may_judge, result
from tests.postgres.proxy import proxied
from tests.postgres.stage import HANGS_AFTER_SECONDS, Stage, blocked, until

Connect = Callable[[], Awaitable[asyncpg.Connection]]


@pytest.fixture
async def calling(hire_patient: HireOwner, stage: Stage) -> tuple[Owner, Held]:
    """A worker that holds a session with one open call, and a table for the tool."""
    await stage.connection.execute("create table report (line text)")
    await stage.create()
    owner = await hire_patient()
    held = await owner.take()
    await owner.append(held, answer("hm", "write"))
    return owner, held


async def lines(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("select line from report order by line")]


async def test_what_a_tool_wrote_commits_together_with_its_result(calling: tuple[Owner, Held], stage: Stage) -> None:
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        connection = await transaction.connection()
        await connection.execute("insert into report values ('a')")
        async with connection.transaction():  # a savepoint
            await connection.execute("insert into report values ('b')")
        assert await lines(stage.connection) == []
        written = await transaction.commit(held.write(result()))

    assert (written.answer, written.last_seq) == (Answer.WRITTEN, 5)
    assert await lines(stage.connection) == ["a", "b"]
    transactions = await stage.connection.fetch(
        "select xmin from report where line = 'a' union select xmin from agentrt.journal where type = 'tool_result'"
    )
    assert len(transactions) == 1


async def test_a_tool_that_never_used_the_connection_commits_its_result_all_the_same(
    calling: tuple[Owner, Held], stage: Stage
) -> None:
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        assert (await transaction.commit(held.write(result()))).answer is Answer.WRITTEN
    assert (await stage.types(held.id))[-1] == "tool_result"


async def test_a_tool_that_raises_leaves_nothing(calling: tuple[Owner, Held], stage: Stage) -> None:
    owner, held = calling

    async def run() -> None:
        async with owner.store.tool_transaction(owner.id) as transaction:
            await (await transaction.connection()).execute("insert into report values ('a')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run()
    assert await lines(stage.connection) == []
    async with owner.store.tool_transaction(owner.id) as transaction:  # the same connection, as new
        await (await transaction.connection()).execute("insert into report values ('b')")
        await transaction.rollback()
    assert await lines(stage.connection) == []
    assert len(await stage.entries(held.id)) == 4


async def test_a_worker_that_lost_the_session_loses_what_its_tool_wrote(
    calling: tuple[Owner, Held], stage: Stage
) -> None:
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute("insert into report values ('a')")
        await stage.cancel(held.id)
        assert (await transaction.commit(held.write(result()))).answer is Answer.LOST
    assert await lines(stage.connection) == []


async def test_a_tool_that_is_run_again_after_a_commit_that_nobody_heard_has_written_once(
    calling: tuple[Owner, Held], stage: Stage, database_url: str
) -> None:
    owner, held = calling

    async def run(owner: Owner) -> Answer:
        async with owner.store.tool_transaction(owner.id) as transaction:
            await (await transaction.connection()).execute("insert into report values ('a')")
            return (await transaction.commit(held.write(result()))).answer

    async with proxied(database_url) as proxy, hiring(DatabaseOptions(url=proxy.url)) as hire_behind:
        behind = replace(await hire_behind(), info=owner.info)
        proxy.deaf_after = b"COMMIT;"
        running = asyncio.create_task(run(behind))
        async with asyncio.timeout(HANGS_AFTER_SECONDS):
            while not await owner.store.wrote(held.id, "w:result:000004001"):
                pass
        await proxy.cut()
        with pytest.raises(DatabaseUnavailable):
            await running

        assert await run(behind) is Answer.ALREADY

    assert await lines(stage.connection) == ["a"]
    assert (await stage.types(held.id))[4:] == ["tool_result"]


@pytest.mark.parametrize("statement", ["commit", "rollback", "commit; begin", "rollback; begin; select 1"])
async def test_a_tool_that_ends_the_transaction_itself_is_told(
    calling: tuple[Owner, Held], stage: Stage, statement: str
) -> None:
    owner, held = calling

    async def run() -> None:
        async with owner.store.tool_transaction(owner.id) as transaction:
            connection = await transaction.connection()
            await connection.execute("insert into report values ('a')")
            await connection.execute(statement)
            await transaction.commit(held.write(result()))

    with pytest.raises(ToolTransactionBroken, match="savepoints"):
        await run()
    assert len(await stage.entries(held.id)) == 4


async def test_a_tool_that_swallows_a_failed_statement_is_told(calling: tuple[Owner, Held], stage: Stage) -> None:
    owner, held = calling

    async def run() -> None:
        async with owner.store.tool_transaction(owner.id) as transaction:
            connection = await transaction.connection()
            with pytest.raises(asyncpg.UndefinedTableError):
                await connection.execute("insert into nothing values (1)")
            await transaction.commit(held.write(result()))

    with pytest.raises(ToolTransactionBroken, match="savepoint"):
        await run()
    assert len(await stage.entries(held.id)) == 4


async def test_a_deadlock_between_two_tools_is_a_conflict_and_the_tool_can_run_again(
    calling: tuple[Owner, Held], stage: Stage, connect: Connect
) -> None:
    owner, held = calling
    await stage.connection.execute("insert into report values ('a'), ('b')")
    other = await connect()
    await other.execute("set deadlock_timeout = '60s'")  # the tool's side finds it
    blocking = other.transaction()
    await blocking.start()
    await other.execute("update report set line = line where line = 'b'")
    async with owner.store.tool_transaction(owner.id) as transaction:
        connection = await transaction.connection()
        await connection.execute("set local deadlock_timeout = '10ms'")
        await connection.execute("update report set line = line where line = 'a'")
        waiting = asyncio.create_task(other.execute("update report set line = line where line = 'a'"))
        await blocked(stage.connection, other)  # the tool looks once: from now on it closes the circle
        with pytest.raises(asyncpg.DeadlockDetectedError) as caught:
            await connection.execute("update report set line = line where line = 'b'")
        assert transaction.is_conflict(caught.value)
        assert not transaction.is_conflict(ValueError())
        await transaction.rollback()
    await waiting
    await blocking.rollback()
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute("update report set line = 'c' where line = 'b'")
        assert (await transaction.commit(held.write(result()))).answer is Answer.WRITTEN


async def test_a_session_that_a_client_holds_too_long_is_a_conflict(
    stage: Stage, connect: Connect, database_url: str
) -> None:
    await stage.create()
    client = Stage(await connect())
    async with hiring(DatabaseOptions(url=database_url, lock_seconds=0.1)) as hire_hasty:
        owner = await hire_hasty()
        held = await owner.take()
        async with client.connection.transaction():
            await client.send(held.id)
            with pytest.raises(ToolTransactionConflict):
                async with owner.store.tool_transaction(owner.id) as transaction:
                    await transaction.commit(held.write(result()))
        async with owner.store.tool_transaction(owner.id) as transaction:
            assert (await transaction.commit(held.write(result()))).answer is Answer.WRITTEN


async def test_the_session_row_is_free_while_a_tool_works(calling: tuple[Owner, Held], stage: Stage) -> None:
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute("insert into report values ('a')")
        await stage.connection.execute("set lock_timeout = '10ms'")
        await stage.send(held.id)
        await owner.renew()


async def test_a_tool_waits_for_a_free_connection_for_longer_than_a_transaction_may_take(
    stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.create()
    options = DatabaseOptions(url=database_url, transactional_connections=1, transactional_seconds=60)
    async with hiring(options) as hire_narrow:
        owner = await hire_narrow()
        async with owner.store.tool_transaction(owner.id) as first:
            await first.connection()
            order = ["first"]

            async def wait_and_use() -> None:
                async with owner.store.tool_transaction(owner.id) as second:
                    order.append("second")
                    assert await (await second.connection()).fetchval("select 1") == 1

            waiting = asyncio.create_task(wait_and_use())
            await asyncio.sleep(0)
            let_pass(monkeypatch, seconds=100)
            assert await (await first.connection()).fetchval("select 1") == 1
            order.append("first is over")
        await waiting
        assert order == ["first", "first is over", "second"]


@pytest.mark.parametrize(
    "setting",
    [
        "set local role agentrt_observer",
        "set local client_encoding = latin1",
        "set local statement_timeout = 200",
        "set local lock_timeout = 1",
        "set local search_path = pg_temp",
    ],
)
async def test_what_a_tool_sets_does_not_reach_our_own_statement(
    calling: tuple[Owner, Held], stage: Stage, connect: Connect, setting: str
) -> None:
    owner, held = calling
    other = await connect()
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute(setting)
        await other.execute("begin; select from agentrt.sessions for update")
        committing = asyncio.ensure_future(transaction.commit(held.write(result("é"))))
        await until(stage.connection, _WAITS_LONG)
        await other.execute("rollback")
        assert (await committing).answer is Answer.WRITTEN
    assert (await stage.types(held.id))[-1] == "tool_result"


_WAITS_LONG = """
  select exists (
    select from pg_stat_activity
    where datname = current_database() and application_name = 'agentrt tool' and wait_event_type = 'Lock'
      and clock_timestamp() - query_start > interval '300 ms'
  )
"""


async def test_a_transaction_in_which_nothing_can_be_written_is_told_once(
    calling: tuple[Owner, Held], stage: Stage
) -> None:
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute("set transaction read only")
        with pytest.raises(ToolTransactionBroken, match="read-only"):
            await transaction.commit(held.write(result()))
    assert (await stage.types(held.id))[-1] != "tool_result"


async def test_a_call_that_has_ended_opens_no_transaction(calling: tuple[Owner, Held], stage: Stage) -> None:
    """What is left of it would believe its writes to be kept, and nobody would give its connection back."""
    owner, held = calling
    async with owner.store.tool_transaction(owner.id) as rolled_back:
        await rolled_back.rollback()
        with pytest.raises(ToolTransactionBroken, match="ended"):
            await rolled_back.connection()
    async with owner.store.tool_transaction(owner.id) as committed:
        assert (await committed.commit(held.write(result()))).answer is Answer.WRITTEN
    for transaction in (rolled_back, committed):
        with pytest.raises(ToolTransactionBroken, match="ended"):
            await transaction.connection()


async def test_a_rollback_under_a_running_statement_cuts_the_connection(
    calling: tuple[Owner, Held], stage: Stage
) -> None:
    owner, _ = calling
    async with owner.store.tool_transaction(owner.id) as transaction:
        connection = await transaction.connection()
        await connection.execute("insert into report values ('a')")
        sleeping = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
        await asyncio.sleep(0)
        await transaction.rollback()
    async with asyncio.timeout(HANGS_AFTER_SECONDS):
        await asyncio.wait({sleeping})
    assert sleeping.exception() is not None
    assert await lines(stage.connection) == []


async def test_a_transaction_that_is_closed_before_its_commit_is_never_taken_for_committed(
    calling: tuple[Owner, Held], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has waited long enough for a commit closes: perhaps just when the last statement is answered."""
    owner, held = calling
    last_statement = _PostgresToolTransaction._last_statement

    async def and_then_it_is_closed(
        transaction: _PostgresToolTransaction, connection: Connection, write: Write
    ) -> Written:
        written = await last_statement(transaction, connection, write)
        await transaction.close()
        return written

    monkeypatch.setattr(_PostgresToolTransaction, "_last_statement", and_then_it_is_closed)
    async with owner.store.tool_transaction(owner.id) as transaction:
        await (await transaction.connection()).execute("insert into report values ('a')")
        with pytest.raises(DatabaseUnavailable):
            await transaction.commit(held.write(result()))
    assert await lines(stage.connection) == []
    assert (await stage.types(held.id))[-1] == "assistant_message"


async def test_a_connection_on_which_no_transaction_could_be_begun_is_given_to_nobody(
    stage: Stage, database_url: str
) -> None:
    """On such a one each statement of a tool that tries again would commit by itself."""
    await stage.connection.execute("create table report (line text)")
    connections = ToolConnections(DatabaseOptions(url=database_url, statement_seconds=0))
    async with connections.transaction(WorkerId(uuid4())) as transaction:
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                await (await transaction.connection()).execute("insert into report values ('a')")
    await connections.close()
    assert await lines(stage.connection) == []


async def test_an_owner_frozen_between_its_last_statement_and_its_commit_keeps_the_row_for_a_bounded_time(
    database_url: str, stage: Stage
) -> None:
    """Case 74: the one moment at which an owner holds a row across a round trip."""
    await stage.connection.execute("create table report (line text)")
    session = await stage.create()
    async with hiring(DatabaseOptions(url=database_url, idle_transaction_seconds=60)) as hire:
        frozen = await hire("frozen")
        held = await frozen.take()
        await frozen.append(held, answer("hm", "write"))
        async with frozen.store.tool_transaction(frozen.id) as transaction:
            connection = await transaction.connection()
            await connection.execute("insert into report values ('a')")
            assert isinstance(transaction, _PostgresToolTransaction)
            written = await transaction._last_statement(connection, held.write(result()))
            assert written.answer is Answer.WRITTEN
            free = "select id from agentrt.sessions where id = $1 for no key update skip locked"
            assert await stage.connection.fetchval(free, session) is None

            # It does nothing more. Whoever waits gets the row when the server ends the frozen one's transaction.
            assert await connection.fetchval("show idle_in_transaction_session_timeout") == "1min"
            await connection.execute("set local idle_in_transaction_session_timeout = '10ms'")  # that minute passes
            waits = free.removesuffix(" skip locked")
            assert await stage.connection.fetchval(waits, session) == session
            assert await lines(stage.connection) == []
            assert (await stage.types(session))[-1] == "assistant_message"

            other = await hire("other")
            await expire_lease(stage.connection, frozen.id)
            await may_judge(stage.connection, other.id)
            assert list(await other.reaper.mark(other.id)) == [frozen.id]
            assert (await other.reaper.sweep(other.id)).requeued == 1
    assert (await stage.head(session))["status"] == "queued"
