"""Brings an exported session into a database, as a session that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from agentrt.core.adopt import adopted
from agentrt.core.codec import encode
from agentrt.core.errors import Conflict, InvalidArgument
from agentrt.core.journal import (
    TERMINAL,
    Entry,
    MessageQueued,
    SessionCancelled,
    SessionCompleted,
    SessionFailed,
    SessionRetried,
    UserMessage,
)
from agentrt.core.session import Seq, SessionId, Status
from agentrt.core.storable import storable_json, storable_text
from agentrt.ports import UnstorableBatch
from agentrt.postgres.faults import translated
from agentrt.postgres.pool import DatabaseOptions, Role, close, connect

_SESSION = """
insert into agentrt.sessions (id, agent, queue, priority, status, run, fencing_token, last_seq, outcome, config, labels,
  tenant, created_at, finished_at, due)
values (coalesce($1, agentrt.uuid7()), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, coalesce($13, clock_timestamp()),
  clock_timestamp(), false)
on conflict do nothing
returning id
"""
_ENTRIES = """
insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data, dedup_key, created_at)
select $1, t.seq, t.run, t.attempt, t.token, t.worker_id, t.type, t.data, t.dedup_key,
  coalesce(t.created_at, clock_timestamp())
from unnest($2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::uuid[], $7::text[], $8::jsonb[], $9::text[],
  $10::timestamptz[]) t(seq, run, attempt, token, worker_id, type, data, dedup_key, created_at)
"""

_MOST_NAME_BYTES = 600
"""Of agent, queue and tenant each, so that the indexes can hold all of them."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What is to be stored: ``entries`` without a gap from 1 on, as ``lint`` wants them."""

    agent: str
    queue: str
    priority: int
    config: Mapping[str, Any]
    labels: Mapping[str, str]
    tenant: str | None
    entries: Sequence[Entry]


def imported_of(head: Mapping[str, Any], entries: Sequence[Entry]) -> tuple[UUID, Imported]:
    """The id and the rest of a session whose ``head`` is as an export has it.

    Raises:
        InvalidArgument: the head is not usable.
    """
    try:
        return UUID(head["id"]), Imported(
            agent=_name(head, "agent"),
            queue=_name(head, "queue"),
            priority=_priority(head["priority"]),
            config=dict(head["config"]),
            labels={key: _label(head["labels"], key) for key in head["labels"]},
            tenant=None if head.get("tenant") is None else _name(head, "tenant"),
            entries=entries,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidArgument(f"the exported session has no usable head: {error!r:.200}") from None


def _label(values: Mapping[str, Any], key: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r:.50}, and no text")
    return value


def _name(head: Mapping[str, Any], key: str) -> str:
    value = _label(head, key)
    if not value and key != "tenant":
        raise ValueError(f"{key} is empty")
    if (size := len(value.encode("utf-8", "surrogatepass"))) > _MOST_NAME_BYTES:
        raise ValueError(f"{key} has {size} bytes, at most {_MOST_NAME_BYTES} are taken")
    return value


def _priority(value: Any) -> int:
    priority = int(value)
    if not -(2**15) <= priority < 2**15:
        raise ValueError(f"priority {priority} is not from -32768 to 32767")
    return priority


async def import_session(options: DatabaseOptions, imported: Imported, *, session_id: UUID | None) -> SessionId:
    """Store the session under ``session_id``, or a new id, and return it.

    It does not go on by itself: a run that was on is cancelled (reason ``imported``); a message or a retry begins the
    next one. Call ids become ours, and what was done under a dedup key is known by it again.

    Raises:
        Conflict: there is a session with this id.
        InvalidArgument: an entry cannot be stored.
        DatabaseUnavailable: nobody answers.
    """
    entries = _ended(adopted(imported.entries))
    status, outcome = _end(_last_terminal(entries))
    try:
        with translated(options.url):
            connection = await connect(options, Role.CLIENT)
            try:
                async with connection.transaction():
                    stored = await _insert(connection, imported, entries, status=status, outcome=outcome, id=session_id)
            finally:
                await close(connection)
    except UnstorableBatch as error:
        raise InvalidArgument(f"the journal cannot be stored: {error}") from error
    if stored is None:
        raise Conflict(f"there is a session {session_id} already: import without its id to get a new one")
    return stored


async def _insert(
    connection: asyncpg.Connection[asyncpg.Record],
    imported: Imported,
    entries: Sequence[Entry],
    *,
    status: Status,
    outcome: Mapping[str, Any],
    id: UUID | None,
) -> SessionId | None:
    last = entries[-1]
    stored: UUID | None = await connection.fetchval(
        _SESSION,
        id,
        storable_text(imported.agent),
        storable_text(imported.queue),
        imported.priority,
        status,
        last.run,
        max(entry.fencing_token for entry in entries),
        last.seq,
        storable_json(outcome),
        storable_json(imported.config),
        storable_json(imported.labels),
        None if imported.tenant is None else storable_text(imported.tenant),
        entries[0].created_at,
    )
    if stored is None:
        return None
    await connection.execute(
        _ENTRIES,
        stored,
        [entry.seq for entry in entries],
        [entry.run for entry in entries],
        [entry.attempt for entry in entries],
        [entry.fencing_token for entry in entries],
        [entry.worker_id for entry in entries],
        [storable_text(entry.type) for entry in entries],
        [storable_json(encode(entry.data)) for entry in entries],
        [None if entry.dedup_key is None else storable_text(entry.dedup_key) for entry in entries],
        [entry.created_at for entry in entries],
    )
    return SessionId(stored)


def _ended(entries: Sequence[Entry]) -> Sequence[Entry]:
    """``entries``, with a cancel behind them if a run is on, which lists the messages that waited for the next one."""
    running = True
    queued: set[int] = set()
    for entry in entries:
        if isinstance(entry.data, TERMINAL):
            running = False
        elif isinstance(entry.data, UserMessage | SessionRetried):
            running = True
        match entry.data:
            case MessageQueued():
                queued.add(entry.seq)
            case UserMessage(message_seq=int(begun)):
                queued.discard(begun)
            case SessionCancelled():
                queued.clear()
            case _:
                pass
    if not running:
        return entries
    last = entries[-1]
    cancel = Entry(
        seq=Seq(last.seq + 1),
        run=last.run,
        attempt=last.attempt,
        fencing_token=last.fencing_token,
        data=SessionCancelled(reason="imported", dropped=tuple(sorted(queued))),
    )
    return [*entries, cancel]


def _last_terminal(entries: Sequence[Entry]) -> Entry:
    return next(entry for entry in reversed(entries) if isinstance(entry.data, TERMINAL))


def _end(entry: Entry) -> tuple[Status, Mapping[str, Any]]:
    match entry.data:
        case SessionCompleted(outcome=outcome):
            return Status.COMPLETED, outcome
        case SessionFailed(outcome=outcome):
            return Status.FAILED, outcome
        case SessionCancelled(reason=reason):
            return Status.CANCELLED, {"reason": reason} if reason else {}
        case _:
            raise ValueError(f"{entry.data.type} ends nothing")
