"""The worker's store on PostgreSQL: claim, read, append, end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from agentrt.core.errors import AgentrtError
from agentrt.core.journal import Entry
from agentrt.core.session import Seq, Session, SessionId, WorkerId
from agentrt.ports import (
    Claimed,
    KeeperStore,
    Offer,
    ReaperStore,
    SessionStore,
    ToolTransaction,
    UnstorableBatch,
    WakeupHandlers,
    Wakeups,
    Write,
    Written,
)
from agentrt.postgres import statements
from agentrt.postgres.faults import LockTimeout
from agentrt.postgres.keeping import PostgresKeeperStore, PostgresReaperStore
from agentrt.postgres.listener import PostgresWakeups
from agentrt.postgres.migrate import check_schema
from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection
from agentrt.postgres.rows import entry_of, session_of
from agentrt.postgres.tooltransaction import ToolConnections
from agentrt.postgres.writing import answers, append_arguments, busy, end_arguments

SIDE_LOCK_SECONDS = 0.5
"""For how long a write waits for a row that a client holds, before others get their turn on the side connection."""

_PAGE_ENTRIES = 5000
_PAGE_BYTES = 8 * 2**20
_MOST_SEEN = 100_000


@dataclass(frozen=True, slots=True)
class PostgresStores:
    """Opens the stores of one worker; each belongs to the event loop that opened it."""

    options: DatabaseOptions

    async def sessions(self) -> SessionStore:
        """Raises ``SchemaMismatch`` when this version cannot work on the database, or another ``ConfigurationError``;
        what was opened raises none later, however the database changes."""
        first = PostgresSessionStore(self.options)
        try:
            await first.check()
        finally:
            await first.close()
        return PostgresSessionStore(replace(self.options, proven=True))

    async def keeper(self) -> KeeperStore:
        return PostgresKeeperStore(self.options)

    async def reaper(self) -> ReaperStore:
        return PostgresReaperStore(self.options)


class PostgresSessionStore:
    """Connections: one for appends, one for endings, one for what waits for row locks, one to claim and read."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self._appends = RoleConnection(options, Role.COMMIT)
        self._endings = RoleConnection(options, Role.COMMIT)
        hasty = replace(options, lock_seconds=min(options.lock_seconds, SIDE_LOCK_SECONDS))
        self._side = RoleConnection(hasty, Role.COMMIT)
        self._reads = RoleConnection(options, Role.CLAIM)
        self._tools = ToolConnections(options)

    async def check(self) -> None:
        """Refuse a database that this version cannot work on. Raises ``SchemaMismatch``."""
        async with self._reads.using() as connection:
            await check_schema(connection)

    async def claim(self, worker_id: WorkerId, offer: Offer, *, limit: int, fragile_limit: int) -> Claimed:
        agents = tuple(offer.agents)
        versions = tuple(offer.agents[agent] for agent in agents)
        queues = tuple(dict.fromkeys(offer.queues))
        seen = limit + (3 * limit + 32) // max(1, len(agents) * len(queues)) + 1
        alive, more, whole, sessions = True, True, True, list[Session]()
        while more:
            free, fragile = limit - len(sessions), fragile_limit - sum(session.fragile for session in sessions)
            try:
                rows = await self._reads.fetch(
                    statements.CLAIM, worker_id, queues, agents, versions, free, min(free, fragile), seen
                )
            except (AgentrtError, UnstorableBatch):
                if not sessions:
                    raise
                whole = False  # those of the first look are ours, and perhaps more
                break
            sessions += [session_of(row) for row in rows if row["id"] is not None]
            alive, more = rows[0]["alive"], rows[0]["more"] and seen < _MOST_SEEN
            seen *= 8  # all of these are held by others: look further
        return Claimed(alive=alive, sessions=tuple(sessions), whole=whole)

    async def read(self, session_id: SessionId, after_seq: Seq) -> Sequence[Entry]:
        entries: list[Entry] = []
        while True:
            rows = await self._reads.fetch(statements.READ, session_id, after_seq, _PAGE_ENTRIES, _PAGE_BYTES)
            entries.extend(entry_of(row) for row in rows)
            if not rows or (len(rows) < _PAGE_ENTRIES and rows[-1]["bytes"] < _PAGE_BYTES):
                return entries
            after_seq = entries[-1].seq

    async def head(self, session_id: SessionId) -> Session | None:
        rows = await self._reads.fetch(statements.HEAD, session_id)
        return session_of(rows[0]) if rows else None

    async def append(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        arguments = append_arguments(worker_id, writes)
        if not side:
            return answers(await self._appends.fetch(statements.APPEND, *arguments))
        try:
            return answers(await self._side.fetch(statements.APPEND_WAITING, *arguments))
        except LockTimeout:
            return busy(writes)

    async def end(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        arguments = end_arguments(worker_id, writes)
        if not side:
            return answers(await self._endings.fetch(statements.END, *arguments))
        try:
            return answers(await self._side.fetch(statements.END_WAITING, *arguments))
        except LockTimeout:
            return busy(writes)

    async def wrote(self, session_id: SessionId, dedup_key: str) -> bool:
        rows = await self._reads.fetch(statements.WROTE, session_id, dedup_key)
        return bool(rows[0]["wrote"])

    async def withdraw_agent(self, worker_id: WorkerId, agent: str, *, queue: str) -> bool:
        rows = await self._reads.fetch(statements.WITHDRAW_AGENT, worker_id, agent, queue)
        return bool(rows[0]["elsewhere"])

    def tool_transaction(self, worker_id: WorkerId) -> AbstractAsyncContextManager[ToolTransaction]:
        return self._tools.transaction(worker_id)

    def wakeups(self, handlers: WakeupHandlers) -> Wakeups:
        return PostgresWakeups(self._options, handlers)

    async def close(self) -> None:
        await self._tools.close()
        for connection in (self._appends, self._endings, self._side, self._reads):
            await connection.close()
