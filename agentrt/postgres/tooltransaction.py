"""Transactional tools: what a tool writes commits together with its result, under the fence, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import WorkerId
from agentrt.ports import Answer, ToolTransaction, ToolTransactionBroken, ToolTransactionConflict, Write, Written
from agentrt.postgres import statements
from agentrt.postgres.faults import CONNECTION_ERRORS, translate, translated
from agentrt.postgres.pool import DatabaseOptions, Role, opener
from agentrt.postgres.rows import session_of
from agentrt.postgres.writing import answers, append_arguments

_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, the session row stayed locked
_DISTURBED = ("25", "42")  # our own statement, in a state of the transaction that only the tool can have made
_TOO_LATE = "ctx.connection was used after its call had ended"

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"


class ToolConnections:
    """Connections of their own for transactional tools, opened only when one runs."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()
        self._free = asyncio.Semaphore(max(1, options.transactional_connections))

    @asynccontextmanager
    async def transaction(self, worker_id: WorkerId) -> AsyncIterator[ToolTransaction]:
        """A transaction that is rolled back at the end of the block unless it was committed. Waits for a connection to
        be free, so that a tool's time limit, which counts inside, is its own."""
        async with self._free:
            transaction = _PostgresToolTransaction(self, worker_id)
            try:
                yield transaction
            finally:
                await transaction.close()

    @property
    def options(self) -> DatabaseOptions:
        return self._options

    async def acquire(self) -> Connection:
        """A connection; there is a free one."""
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
        with translated(self._options.url, proven=self._options.proven):
            return await self._pool.acquire(timeout=self._options.transactional_seconds)

    async def release(self, connection: Connection, *, broken: bool) -> None:
        """Give a connection back; a broken one is cut. What the tool did is settled by now, so nothing is raised."""
        if self._pool is None:
            return
        with suppress(*CONNECTION_ERRORS):  # also when the pool itself took back a connection that had died
            if broken:
                connection.terminate()
            await self._pool.release(connection, timeout=5)

    async def _open(self) -> asyncpg.Pool[asyncpg.Record]:
        options = self._options
        # The session row is not locked while the tool works: the last statement sets the short limit again.
        patient = replace(options, idle_transaction_seconds=options.transactional_seconds + 2)
        with translated(options.url, proven=options.proven):
            return await asyncpg.create_pool(
                options.url,
                connect=opener(patient, Role.TOOL),
                min_size=0,
                max_size=options.transactional_connections,
                max_inactive_connection_lifetime=60,
            )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()


class _PostgresToolTransaction:
    def __init__(self, connections: ToolConnections, worker_id: WorkerId) -> None:
        self._connections = connections
        self._options = connections.options
        self._worker_id = worker_id
        self._connection: Connection | None = None
        self._transaction: Transaction | None = None
        self._transaction_id: str | None = None
        self._opening = asyncio.Lock()
        self._broken = False
        self._over = False
        self._closed = False

    async def connection(self) -> Any:
        if self._over:
            raise ToolTransactionBroken(_TOO_LATE)
        return await self._begun()

    async def _begun(self) -> Connection:
        async with self._opening:
            if self._closed:
                raise ToolTransactionBroken(_TOO_LATE)
            if self._broken:  # perhaps with no transaction on it: each statement would commit by itself
                raise DatabaseUnavailable("the connection of this call broke: the call is run again")
            if self._connection is None:
                self._connection = await self._connections.acquire()
                with self._watched():
                    async with asyncio.timeout(self._options.statement_seconds):
                        self._transaction = self._connection.transaction(isolation="read_committed")
                        await self._transaction.start()
                        self._transaction_id = await self._connection.fetchval("select pg_current_xact_id()::text")
            return self._connection

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _CONFLICTS

    async def commit(self, write: Write) -> Written:
        self._over = True
        connection = await self._begun()
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            raise ToolTransactionBroken(_TOO_LATE)
        self._broken = True  # until all of it is answered: whoever closes meanwhile cuts the connection
        with self._watched():
            async with asyncio.timeout(self._options.statement_seconds + self._options.lock_seconds):
                written = await self._last_statement(connection, write)
                if written.answer is Answer.WRITTEN:
                    await transaction.commit()
                else:
                    await transaction.rollback()
                if written.answer is Answer.LOST:
                    await self._blame(connection, write)
        self._broken = False
        return written

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Our errors; whatever goes wrong, the connection is cut, and the server rolls back."""
        try:
            yield
        except CONNECTION_ERRORS as error:
            self._broken = True
            if self.is_conflict(error):
                raise ToolTransactionConflict(str(error)) from error
            raise translate(error, url=self._options.url, proven=self._options.proven) from error
        except BaseException:
            self._broken = True
            raise

    async def _last_statement(self, connection: Connection, write: Write) -> Written:
        try:
            present = await self._in_our_way(connection)
            if present != self._transaction_id or not connection.is_in_transaction():
                raise ToolTransactionBroken(
                    "the tool committed, rolled back or began a transaction on ctx.connection: the transaction belongs "
                    "to agentrt, use `async with connection.transaction()` for savepoints"
                )
            rows = await connection.fetch(statements.APPEND_WAITING, *append_arguments(self._worker_id, [write]))
        except asyncpg.InFailedSQLTransactionError as error:
            raise ToolTransactionBroken(
                "a statement on ctx.connection failed and the tool went on: let the error out, or use a savepoint "
                "(`async with connection.transaction()`)"
            ) from error
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "").startswith(_DISTURBED):
                raise ToolTransactionBroken(
                    f"the tool left the transaction on ctx.connection in a state in which its result cannot be "
                    f"written: {error}"
                ) from error
            raise
        return answers(rows)[0]

    async def _blame(self, connection: Connection, write: Write) -> None:
        """Tell a session that is lost from one that the tool has changed in its own transaction."""
        head = await connection.fetchrow(statements.HEAD, write.lease.session_id)
        if head is None:
            return
        session = session_of(head)
        ours = (self._worker_id, write.lease.fencing_token, write.owner_writes)
        if (session.lease_owner, session.fencing_token, session.owner_writes) == ours:
            raise ToolTransactionBroken(
                "the tool changed its own session on ctx.connection, by a function of agentrt or otherwise: the "
                "transaction was rolled back"
            )

    async def _in_our_way(self, connection: Connection) -> Any:
        """Undo what the tool may have set; returns the id of the present transaction."""
        settings = {
            "role": "none",
            "client_encoding": "UTF8",
            "statement_timeout": str(round(self._options.statement_seconds * 1000)),
            "idle_in_transaction_session_timeout": str(round(self._options.idle_transaction_seconds * 1000)),
            "lock_timeout": str(round(self._options.lock_seconds * 1000)),
        }
        return await connection.fetchval(
            "select pg_current_xact_id_if_assigned()::text from "
            "(select count(set_config(s.name, s.value, true)) from unnest($1::text[], $2::text[]) s (name, value)) c",
            list(settings),
            list(settings.values()),
        )

    async def rollback(self) -> None:
        self._over = True
        transaction, self._transaction = self._transaction, None
        if transaction is None or self._broken:
            return
        try:
            with self._watched():
                async with asyncio.timeout(self._options.statement_seconds):
                    await transaction.rollback()
        except DatabaseUnavailable:
            if self._is_gone():
                raise
            # else a statement of the tool's still runs: the connection is cut, and the server rolls back

    def _is_gone(self) -> bool:
        try:
            return self._connection is None or self._connection.is_closed()
        except asyncpg.InterfaceError:  # the pool itself took back a connection that had died
            return True

    async def close(self) -> None:
        """Roll back what was not committed, and give the connection back."""
        self._over = True
        async with self._opening:
            self._closed = True
            connection = self._connection
        if connection is None:
            return
        try:
            await self.rollback()
        except DatabaseUnavailable:
            pass  # cut: the server rolls back
        finally:
            await self._connections.release(connection, broken=self._broken)
