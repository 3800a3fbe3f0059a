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
from agentrt.postgres.writing import answers, append_arguments

_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, the session row stayed locked

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
        self._broken = False

    async def connection(self) -> Any:
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
        connection = await self.connection()
        with self._watched():
            async with asyncio.timeout(self._options.statement_seconds + self._options.lock_seconds):
                written = await self._last_statement(connection, write)
                if written.answer is Answer.WRITTEN and self._transaction is not None:
                    await self._transaction.commit()
                    self._transaction = None
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
            present = await connection.fetchval(
                "select pg_current_xact_id_if_assigned()::text from "
                "set_config('idle_in_transaction_session_timeout', $1, true) i, set_config('lock_timeout', $2, true) l",
                str(round(self._options.idle_transaction_seconds * 1000)),
                str(round(self._options.lock_seconds * 1000)),
            )
        except asyncpg.InFailedSQLTransactionError as error:
            raise ToolTransactionBroken(
                "a statement on ctx.connection failed and the tool went on: let the error out, or use a savepoint "
                "(`async with connection.transaction()`)"
            ) from error
        if present != self._transaction_id or not connection.is_in_transaction():
            raise ToolTransactionBroken(
                "the tool committed, rolled back or began a transaction on ctx.connection: the transaction belongs "
                "to agentrt, use `async with connection.transaction()` for savepoints"
            )
        rows = await connection.fetch(statements.APPEND_WAITING, *append_arguments(self._worker_id, [write]))
        return answers(rows)[0]

    async def rollback(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not self._broken:
            with self._watched():
                async with asyncio.timeout(self._options.statement_seconds):
                    await transaction.rollback()

    async def close(self) -> None:
        """Roll back what was not committed, and give the connection back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self.rollback()
        except DatabaseUnavailable:
            pass  # cut: the server rolls back
        finally:
            await self._connections.release(connection, broken=self._broken)
