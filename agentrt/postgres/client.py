"""The client's store: the SQL functions of the schema, one method each, and its views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

import asyncpg

from agentrt.core.errors import ConfigurationError, DatabaseUnavailable, InvalidArgument, NotFound
from agentrt.core.journal import Entry
from agentrt.core.session import Seq, Session, SessionId, Status, WorkerId
from agentrt.core.storable import storable_json, storable_text
from agentrt.ports import QueueDepth, UnstorableBatch, WorkerRow
from agentrt.postgres.faults import CONNECTION_ERRORS, translate
from agentrt.postgres.following import FOLLOW_SECONDS, PAGE_ENTRIES, Follower
from agentrt.postgres.pool import CONNECT_SECONDS, DatabaseOptions, Role, opener
from agentrt.postgres.rows import entry_of, load, session_of

_CONNECTIONS = 10
_CALL_SECONDS = 30.0
_COMMANDS = {
    "resume_session": "select agentrt.resume_session($1, $2)",
    "retry_session": "select agentrt.retry_session($1, $2)",
    "archive_session": "select agentrt.archive_session($1, $2)",
    "release_session": "select agentrt.release_session($1, $2)",
}
_GET = """
select id, agent, queue, priority, status, run, attempt, takeovers, max_attempts, fencing_token, 0 as owner_writes,
  lease_owner, ready_at, last_seq, suspension, outcome, config, labels, tenant, parent_id, turns, input_tokens,
  output_tokens, cost, running_seconds, created_at, finished_at, archived_at
from agentrt.session_list
where id = $1
"""
LIST = """
select *
from agentrt.session_list
where ($1::text is null or status = $1) and ($2::text is null or agent = $2) and ($3::text is null or queue = $3)
  and ($4::text is null or tenant = $4) and ($5::jsonb is null or labels @> $5)
  and ($6::text is null or suspension ->> 'reason' = $6)
  and ($7::uuid is null or (created_at, id) < (select b.created_at, b.id from agentrt.session_list b where b.id = $7))
order by created_at desc, id desc
limit $8
"""
_APPROVALS = """
select *
from agentrt.pending_approvals
where $1::uuid is null or session_id = $1
order by requested_at, id
limit $2
"""
_WORKERS = """
select id, name, host, pid, version, agents, queues, slots, busy, state, started_at, renewed_at,
  state in ('alive', 'draining') and lease_expires_at < statement_timestamp() as expired
from agentrt.worker_list
order by started_at, id
"""
# Two parts, one for each of the partial indexes that claims use: what has ended costs nothing.
_DEPTHS = """
select queue, agent, sum(waiting)::bigint as waiting,
  greatest(extract(epoch from clock_timestamp() - min(oldest)), 0)::float8 as oldest_seconds
from (
  select queue, agent, count(*) as waiting, min(ready_at) as oldest
    from agentrt.sessions where status = 'queued' and due and attempt < 3 group by queue, agent
  union all
  select queue, agent, count(*), min(ready_at)
    from agentrt.sessions where status = 'queued' and due and attempt >= 3 group by queue, agent
) waiting group by queue, agent order by queue, agent
"""
_JSON_COLUMNS = frozenset({"suspension", "outcome", "config", "labels"})


class PostgresClientStore:
    """A pool of connections and, while something is followed, one that listens. Belongs to one event loop."""

    def __init__(
        self,
        options: DatabaseOptions,
        pool: asyncpg.Pool[asyncpg.Record],
        *,
        outage: Callable[[str | None], object] = lambda _: None,
    ) -> None:
        self._options = options
        self._pool = pool
        self._follower = Follower(options, read=self._read_page, renew=self._renew, outage=outage)

    @classmethod
    async def connect(
        cls, url: str, *, direct_url: str = "", outage: Callable[[str | None], object] = lambda _: None
    ) -> Self:
        """Connect, and see whether somebody answers. ``direct_url``: see ``DatabaseOptions``; ``outage``: ``Follower``.

        Raises:
            DatabaseUnavailable: nobody answers there.
            ConfigurationError: the URL, the user or the database is wrong; a standby.
        """
        _check_given(url)
        options = DatabaseOptions(url=url, direct_url=direct_url, statement_seconds=_CALL_SECONDS, lock_seconds=10)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                # No floor: the driver would restore it at once, over and over, while the server is away.
                pool = await asyncpg.create_pool(
                    url, connect=opener(options, Role.CLIENT), min_size=0, max_size=_CONNECTIONS
                )
                async with pool.acquire():
                    pass
        except CONNECTION_ERRORS as error:
            raise translate(error, url=url) from error
        return cls(options, pool, outage=outage)

    async def create_session(self, agent: str, message: str | None, options: Mapping[str, Any]) -> SessionId:
        called = "select agentrt.create_session($1, $2, $3)"
        return SessionId(await self._scalar(called, storable_text(agent), _text(message), storable_json(options)))

    async def send_message(self, session_id: SessionId, message: str | None, options: Mapping[str, Any]) -> Seq:
        called = "select agentrt.send_message($1, $2, $3)"
        return Seq(await self._scalar(called, session_id, _text(message), storable_json(options)))

    async def cancel_session(self, session_id: SessionId, options: Mapping[str, Any]) -> Status:
        return Status(await self._scalar("select agentrt.cancel_session($1, $2)", session_id, storable_json(options)))

    async def command(self, name: str, session_id: SessionId, options: Mapping[str, Any]) -> Status:
        return Status(await self._scalar(_COMMANDS[name], session_id, storable_json(options)))

    async def decide_approval(
        self, approval_id: UUID, verdict: str, *, reviewer: str, options: Mapping[str, Any]
    ) -> Status:
        called = "select agentrt.decide_approval($1, $2, $3, $4)"
        status = await self._scalar(called, approval_id, _text(verdict), _text(reviewer), storable_json(options))
        return Status(status)

    async def complete_tool_call(
        self, session_id: SessionId, call_id: str, *, result: str, options: Mapping[str, Any]
    ) -> Status:
        called = "select agentrt.complete_tool_call($1, $2, $3, $4)"
        return Status(await self._scalar(called, session_id, _text(call_id), _text(result), storable_json(options)))

    async def get(self, session_id: SessionId) -> Session:
        rows = await self._fetch(_GET, session_id)
        if not rows:
            raise NotFound(f"no session {session_id}: it never was, or was deleted")
        return session_of(rows[0])

    async def list(self, filters: Mapping[str, Any], *, limit: int) -> Sequence[Mapping[str, Any]]:
        texts = [_text(filters.get(name)) for name in ("status", "agent", "queue", "tenant")]
        labels = filters.get("labels")
        more = (None if labels is None else storable_json(labels), _text(filters.get("reason")), filters.get("before"))
        return [_plain(row) for row in await self._fetch(LIST, *texts, *more, limit)]

    async def pending_approvals(self, session_id: SessionId | None, *, limit: int) -> Sequence[Mapping[str, Any]]:
        return [_plain(row) for row in await self._fetch(_APPROVALS, session_id, limit)]

    async def workers(self) -> Sequence[WorkerRow]:
        return [
            WorkerRow(
                **{**row, "id": WorkerId(row["id"]), "agents": tuple(row["agents"]), "queues": tuple(row["queues"])}
            )
            for row in map(dict, await self._fetch(_WORKERS))
        ]

    async def queue_depths(self) -> Sequence[QueueDepth]:
        return [QueueDepth(**row) for row in map(dict, await self._fetch(_DEPTHS))]

    async def prune_sessions(self, older_than_seconds: float, *, max_sessions: int) -> int:
        called = "select agentrt.prune_sessions(make_interval(secs => $1), $2)"
        return int(await self._scalar(called, older_than_seconds, max_sessions))

    async def read_journal(self, session_id: SessionId, after_seq: int, *, max_entries: int) -> Sequence[Entry]:
        called = "select * from agentrt.read_journal($1, $2, $3)"
        return [entry_of(row) for row in await self._fetch(called, session_id, after_seq, max_entries)]

    def follow(self, session_id: SessionId, after_seq: int) -> AsyncGenerator[Entry, None]:
        return self._follower.follow(session_id, after_seq)

    async def _read_page(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        return await self.read_journal(session_id, after_seq, max_entries=PAGE_ENTRIES)

    async def _renew(self, session_id: SessionId) -> None:
        await self._scalar("select agentrt.follow_session($1, $2)", session_id, FOLLOW_SECONDS)

    async def _scalar(self, statement: str, *arguments: object) -> Any:
        return (await self._fetch(statement, *arguments))[0][0]

    async def _fetch(self, statement: str, *arguments: object) -> Sequence[asyncpg.Record]:
        try:
            async with asyncio.timeout(_CALL_SECONDS + 2), self._pool.acquire() as connection:
                return await connection.fetch(statement, *arguments)
        except CONNECTION_ERRORS as error:
            ours = translate(error, url=self._options.url)
            if isinstance(ours, UnstorableBatch):
                raise InvalidArgument(str(ours)) from error
            raise ours from error

    async def close(self) -> None:
        await self._follower.close()
        try:
            async with asyncio.timeout(2):
                await self._pool.close()
        except (*CONNECTION_ERRORS, DatabaseUnavailable):
            self._pool.terminate()


def _text(text: str | None) -> str | None:
    return None if text is None else storable_text(text)


def _plain(row: asyncpg.Record) -> Mapping[str, Any]:
    return {name: load(value) if name in _JSON_COLUMNS else value for name, value in row.items()}


def _check_given(url: object) -> None:
    """The driver would take an empty one for that of the server of this machine."""
    if not isinstance(url, str) or not url.strip():
        shown = repr(url) if url is None or isinstance(url, str) else type(url).__name__  # its value may be a secret
        raise ConfigurationError(
            f"url={shown} is not the URL of a database: give one such as postgresql://user:password@host:5432/database"
            "; if you take it from a variable such as AGENTRT_DATABASE_URL, set that"
        )
