"""The keeper's and the reaper's stores: the worker's lease, and what becomes of the sessions of the dead."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.session import FencingToken, Seq, SessionId, WorkerId
from agentrt.ports import Exhausted, Grant, Renewal, Swept, WorkerInfo, WorkerState
from agentrt.postgres import statements
from agentrt.postgres.faults import translated
from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection, close, connect
from agentrt.postgres.rows import load

SWEEP_ROWS = 500
_LOOKS = 5
"""Through a pooler. A server that we reach ourselves tells its process's pid at the start: one look will do."""


class PostgresKeeperStore:
    """One connection, which is not made again: with it goes the liveness lock."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self._connection = RoleConnection(options, Role.KEEPER, direct=True, reconnects=False)
        self._server: int | None = None  # the pid of the server process that holds the lock
        self._agents: Sequence[str] | None = None  # as the worker's row had them when we saw it last

    async def lock_liveness(self, *, looks: int = 0) -> int | None:
        """``looks``: how often to look at least through a pooler, for who is told nothing by renewals."""
        key = secrets.randbits(63)
        async with self._connection.using() as connection:  # one statement: the next one may run in another process
            row = await connection.fetchrow("select pg_try_advisory_lock($1), pg_backend_pid()", key)
            announced = connection.get_server_pid()
        locked, self._server = row or (False, None)
        if not locked:
            raise DatabaseUnavailable(f"the liveness key {key} is taken: draw another")
        if await self._is_seen_from_outside(key, looks=1 if announced == self._server else max(looks, _LOOKS)):
            return key
        await self._scalar("select pg_advisory_unlock($1)", key)  # not all: behind a pooler others have some here, too
        return None

    async def _is_seen_from_outside(self, key: int, *, looks: int) -> bool:
        """Whether the lock is ours alone, and ours still when another connection is busy. A transaction pooler gives
        the server connection that holds the lock to whoever asks next, and us another; it gives the probe yet another
        one while somebody else is just using that one, hence more than one look."""
        probe = await connect(self._options, Role.PROBE, direct=True)
        try:
            with translated(self._options.listen_url):
                for _ in range(looks):
                    async with probe.transaction():
                        free = await probe.fetchval("select pg_try_advisory_xact_lock_shared($1)", key, timeout=5)
                        if free or await self._scalar("select pg_backend_pid()") != self._server:
                            return False
            return True
        finally:
            await close(probe)

    async def _scalar(self, statement: str, *arguments: object) -> object:
        return (await self._connection.fetch(statement, *arguments))[0][0]

    async def register(self, worker: WorkerInfo, liveness_key: int | None) -> None:
        await self._connection.fetch(
            statements.REGISTER_WORKER,
            worker.id,
            worker.name,
            worker.host,
            worker.pid,
            worker.version,
            worker.agents,
            worker.queues,
            worker.slots,
            worker.heartbeat_seconds,
            worker.lease_seconds,
            liveness_key,
        )
        self._agents = worker.agents

    async def renew(self, worker: WorkerInfo, liveness_key: int | None, *, draining: bool) -> Renewal:
        rows = await self._connection.fetch(
            statements.RENEW,
            worker.id,
            worker.lease_seconds,
            liveness_key,
            draining,
            worker.agents,
            self._server,
            self._agents,
        )
        if not rows:
            return Renewal(state=WorkerState.GONE, locked=False, grants=())
        self._agents = rows[0]["agents"]
        grants = tuple(
            Grant(
                session_id=SessionId(row["id"]),
                fencing_token=FencingToken(row["fencing_token"]),
                last_seq=Seq(row["last_seq"]),
                owner_writes=row["owner_writes"],
            )
            for row in rows
            if row["id"] is not None
        )
        return Renewal(state=WorkerState(rows[0]["state"]), locked=rows[0]["locked"], grants=grants)

    async def stop(self, worker_id: WorkerId) -> None:
        await self._connection.fetch(statements.STOP_WORKER, worker_id)

    async def close(self) -> None:
        await self._connection.close()


class PostgresReaperStore:
    """One connection, made again when it broke."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._connection = RoleConnection(options, Role.REAPER)

    async def mark(self, worker_id: WorkerId) -> Mapping[WorkerId, str]:
        return {WorkerId(row["id"]): row["name"] for row in await self._connection.fetch(statements.MARK, worker_id)}

    async def sweep(self, worker_id: WorkerId) -> Swept:
        row = (await self._connection.fetch(statements.SWEEP, worker_id, SWEEP_ROWS))[0]
        return Swept(
            requeued=row["requeued"],
            failed=row["failed"],
            due=row["due"],
            expired=row["expired"],
            pruned=row["pruned"],
            more=row["more"],
            exhausted=tuple(_exhausted(run) for run in load(row["exhausted"])),
        )

    async def close(self) -> None:
        await self._connection.close()


def _exhausted(run: Mapping[str, Any]) -> Exhausted:
    return Exhausted(
        session_id=SessionId(UUID(run["session_id"])),
        agent=run["agent"],
        queue=run["queue"],
        run=run["run"],
        attempt=run["attempt"],
        fencing_token=FencingToken(run["fencing_token"]),
    )
