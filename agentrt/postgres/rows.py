"""Between rows and values: what goes to the database as JSON, and what comes back. Reading never raises on content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import asyncpg

from agentrt.core.codec import decode
from agentrt.core.journal import Entry
from agentrt.core.session import (
    Completed,
    Crashed,
    Failed,
    FencingToken,
    Outcome,
    Released,
    Seq,
    Session,
    SessionId,
    Status,
    Suspended,
    WorkerId,
)
from agentrt.core.storable import storable_json
from agentrt.ports import NewEntry


def load(text: str | None) -> Any:
    """Stored JSON; what Python cannot hold becomes a text that says so (numbers become their digits)."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except RecursionError:
        return f"[unreadable: nested too deep, {len(text)} characters]"
    except ValueError:
        pass
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        return f"[unreadable: {error}]"


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 300 else digits


def entries_json(entries: Sequence[NewEntry]) -> str:
    """The entries of one write, as ``append.sql`` takes them."""
    return f"[{','.join([entry.json for entry in entries])}]"


def ending_json(outcome: Outcome) -> str:
    """An ending, as ``end.sql`` takes it."""
    match outcome:
        case Completed(outcome=result):
            ending: dict[str, Any] = {"kind": "complete", "outcome": result}
        case Failed(code=code, message=message):
            ending = {"kind": "fail", "outcome": {"code": code, "message": message}}
        case Suspended(reason=reason, message=message, waits_for=waits_for):
            suspension = {"reason": reason.value, "message": message, "waits_for": waits_for}
            ending = {"kind": "suspend", "suspension": suspension}
        case Released(reason=why, delay_seconds=delay_seconds, message=message):
            ending = {"kind": "release", "reason": str(why), "delay_seconds": delay_seconds, "message": message}
        case Crashed(message=message):
            ending = {"kind": "crash", "message": message}
        case _:
            assert_never(outcome)
    return storable_json(ending)


def session_of(row: asyncpg.Record) -> Session:
    """A row of ``claim.sql`` or ``head.sql``."""
    return Session(
        id=SessionId(row["id"]),
        agent=row["agent"],
        queue=row["queue"],
        priority=row["priority"],
        status=Status(row["status"]),
        run=row["run"],
        attempt=row["attempt"],
        takeovers=row["takeovers"],
        max_attempts=row["max_attempts"],
        fencing_token=FencingToken(row["fencing_token"]),
        owner_writes=row["owner_writes"],
        lease_owner=None if row["lease_owner"] is None else WorkerId(row["lease_owner"]),
        ready_at=row["ready_at"],
        last_seq=Seq(row["last_seq"]),
        suspension=_object_or_none(row["suspension"]),
        outcome=_object_or_none(row["outcome"]),
        config=_object(row["config"]),
        labels=_object(row["labels"]),
        tenant=row["tenant"],
        parent_id=None if row["parent_id"] is None else SessionId(row["parent_id"]),
        turns=row["turns"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cost=row["cost"],
        running_seconds=row["running_seconds"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        archived_at=row["archived_at"],
    )


def _object(text: str | None) -> Mapping[str, Any]:
    loaded = load(text)
    if isinstance(loaded, dict):
        return loaded
    return {} if loaded is None else {"unreadable": loaded}


def _object_or_none(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else _object(text)


def entry_of(row: asyncpg.Record) -> Entry:
    """A row of the journal."""
    seq = row["seq"]
    return Entry(
        seq=Seq(seq),
        run=row["run"],
        attempt=row["attempt"],
        fencing_token=FencingToken(row["fencing_token"]),
        worker_id=None if row["worker_id"] is None else WorkerId(row["worker_id"]),
        data=decode(row["type"], load(row["data"]), seq=seq),
        created_at=row["created_at"],
        dedup_key=row.get("dedup_key"),
    )
