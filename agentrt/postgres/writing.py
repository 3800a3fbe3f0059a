"""Owners' writes as arguments of ``append.sql`` and ``end.sql``, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from agentrt.core.session import Seq, Status, WorkerId
from agentrt.ports import Answer, Write, Written
from agentrt.postgres.rows import ending_json, entries_json


def append_arguments(worker_id: WorkerId, writes: Sequence[Write]) -> tuple[Any, ...]:
    """The parameters of ``append.sql``, one element per session in the first four."""
    return (
        [write.lease.session_id for write in writes],
        [write.lease.fencing_token for write in writes],
        [write.owner_writes for write in writes],
        [entries_json(write.entries) for write in writes],
        worker_id,
    )


def end_arguments(worker_id: WorkerId, writes: Sequence[Write]) -> tuple[Any, ...]:
    """The parameters of ``end.sql``."""
    endings = [ending_json(write.ending) for write in writes if write.ending is not None]
    if len(endings) != len(writes):
        raise ValueError("a write without an ending was passed to end")
    return (*append_arguments(worker_id, writes), [write.planned_from for write in writes], endings)


def answers(rows: Sequence[asyncpg.Record]) -> Sequence[Written]:
    """What came of the writes, in their order."""
    return [
        Written(
            answer=_ANSWERS[row["answer"]],
            last_seq=Seq(row["last_seq"] or 0),
            status=_STATUSES[row["status"]],
            exhausted=bool(row.get("exhausted")),
        )
        for row in rows
    ]


_ANSWERS: Mapping[str, Answer] = {answer.value: answer for answer in Answer}
_STATUSES: Mapping[str | None, Status | None] = {None: None} | {status.value: status for status in Status}


def busy(writes: Sequence[Write]) -> Sequence[Written]:
    """The answer when somebody else held the rows for too long: nothing was written."""
    return [Written(answer=Answer.BUSY) for _ in writes]
