"""Sessions in any state, made by the real statements and functions only."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.databases import CHECKOUT

AGENT = "auditor"
HANGS_AFTER_SECONDS = 60
ARGUMENTS = '{"path": "x"}'
ARGUMENTS_HASH = "c0ffee"


def statement(name: str) -> str:
    return (CHECKOUT / "agentrt" / "postgres" / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@contextmanager
def refused(sqlstate: str, *words: str) -> Iterator[None]:
    """The database refuses with this SQLSTATE, and its message holds the words."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == sqlstate, caught.value
    for word in words:
        assert word in str(caught.value)


async def until(observer: asyncpg.Connection, question: str, *arguments: Any) -> Any:
    """Wait until a query says yes, and return what it says; the bound only ends a test that would never end."""
    async with asyncio.timeout(HANGS_AFTER_SECONDS):
        while not (answer := await observer.fetchval(question, *arguments)):
            pass
    return answer


async def blocked(observer: asyncpg.Connection, connection: asyncpg.Connection) -> None:
    """Wait until what the connection is doing waits for a lock."""
    await until(observer, "select cardinality(pg_blocking_pids($1)) > 0", connection.get_server_pid())


async def until_waiting(observer: asyncpg.Connection, count: int = 1) -> Sequence[int]:
    """Wait until so many connections to the test's own database wait for a lock; their server pids."""
    return tuple(await until(observer, _WAITING, count))


_WAITING = """
  select array_agg(pid) from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and wait_event_type = 'Lock'
  having count(*) >= $1
"""

NOBODY_WAITS = """
  select not exists (
    select from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and wait_event_type = 'Lock'
  )
"""


@dataclass(frozen=True)
class Entry:
    seq: int
    type: str
    run: int
    attempt: int
    token: int
    worker_id: UUID | None
    data: Mapping[str, Any]
    dedup_key: str | None


def answer(*tools: str, seen_seq: int = 0, text: str = "") -> dict[str, Any]:
    """An assistant_message entry with one call for each tool."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_call", "tool": tool, "arguments": ARGUMENTS} for tool in tools]
    return {"type": "assistant_message", "data": {"content": content, "stop_reason": "stop", "seen_seq": seen_seq}}


def approval_request(position: int, *, tool: str = "pay", **more: Any) -> dict[str, Any]:
    return {
        "type": "approval_requested",
        "data": {
            "approval_id": str(uuid4()),
            "position": position,
            "tool": tool,
            "arguments": ARGUMENTS,
            "arguments_hash": ARGUMENTS_HASH,
            **more,
        },
    }


def deferral(call_id: str, *, tool: str = "ask_boss", **more: Any) -> dict[str, Any]:
    data = {"call_id": call_id, "tool": tool, "effect": "read", "deferred": True, **more}
    return {"type": "tool_started", "data": data}


class Stage:
    """One connection, and what workers and clients do on it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    # --- clients ---

    async def call(self, function: str, *arguments: Any) -> Any:
        places = ", ".join(f"${n}" for n in range(1, len(arguments) + 1))
        values = [json.dumps(a) if isinstance(a, dict) else a for a in arguments]
        return await self.connection.fetchval(f"select agentrt.{function}({places})", *values)

    async def create(self, message: str | None = "hello", *, agent: str = AGENT, **options: Any) -> UUID:
        return UUID(str(await self.call("create_session", agent, message, options)))

    async def send(self, session: UUID, message: str | None = "more", **options: Any) -> int:
        return int(await self.call("send_message", session, message, options))

    async def cancel(self, session: UUID, **options: Any) -> str:
        return str(await self.call("cancel_session", session, options))

    async def decide(self, approval: UUID, verdict: str = "approved", reviewer: str = "ann", **options: Any) -> str:
        return str(await self.call("decide_approval", approval, verdict, reviewer, options))

    async def complete_call(self, session: UUID, call_id: str, result: str = "done", **options: Any) -> str:
        return str(await self.call("complete_tool_call", session, call_id, result, options))

    # --- workers ---

    async def worker(self, *, agents: Sequence[str] = (AGENT,), heartbeat_seconds: float = 2.0) -> UUID:
        worker = uuid4()
        await self.connection.execute(
            statement("register_worker"),
            *(worker, "anna", "host", 1, "1.0", list(agents), ["default"], 20, heartbeat_seconds, 3_600.0, None),
        )
        return worker

    async def claim(self, worker: UUID, *, queue: str = "default", agent: str = AGENT, limit: int = 1) -> list[UUID]:
        rows = await self.connection.fetch(statement("claim"), worker, [queue], [agent], ["v"], limit, 1, 100)
        return [row["id"] for row in rows if row["id"] is not None]

    async def take(self, session: UUID, worker: UUID | None = None) -> UUID:
        """Let a worker, which is new when none is given, claim this session, now if need be; returns the worker."""
        worker = worker or await self.worker()
        head = await self.head(session)
        await self.connection.execute("update agentrt.sessions set due = true where id = $1", session)
        assert await self.claim(worker, queue=head["queue"]) == [session]
        return worker

    async def append(self, session: UUID, *entries: dict[str, Any]) -> str:
        """The answer to a write by the session's owner."""
        head = await self.head(session)
        row = await self.connection.fetchrow(
            statement("append"),
            *([session], [head["fencing_token"]], [head["owner_writes"]], [json.dumps(entries)], head["lease_owner"]),
        )
        assert row is not None
        return str(row["answer"])

    async def end(self, session: UUID, kind: str, *, held: asyncpg.Record | None = None, **ending: Any) -> str:
        """The answer to an ending by the session's owner, planned from ``held``, which is the head as it is now."""
        held = held or await self.head(session)
        row = await self.connection.fetchrow(
            statement("end"),
            *([session], [held["fencing_token"]], [held["owner_writes"]], ["[]"], held["lease_owner"]),
            *([held["last_seq"]], [json.dumps({"kind": kind, **ending})]),
        )
        assert row is not None
        return str(row["answer"])

    async def complete(self, session: UUID, *, held: asyncpg.Record | None = None) -> str:
        return await self.end(session, "complete", held=held, outcome={"text": "done"})

    async def fail(self, session: UUID, *, held: asyncpg.Record | None = None) -> str:
        return await self.end(session, "fail", held=held, outcome={"code": "agent_error", "message": "no"})

    async def suspend(self, session: UUID, reason: str, *waits_for: str, held: asyncpg.Record | None = None) -> str:
        suspension = {"reason": reason, "message": "", "waits_for": list(waits_for)}
        return await self.end(session, "suspend", held=held, suspension=suspension)

    async def sweep(self) -> asyncpg.Record:
        row = await self.connection.fetchrow(statement("sweep"), uuid4(), 500)
        assert row is not None
        return row

    # --- whole stories ---

    async def running(self, **options: Any) -> UUID:
        """A session that a new worker owns; in a queue of its own."""
        session = await self.create(**{"queue": f"queue-{uuid4()}"} | options)
        await self.take(session)
        return session

    async def suspended(self, reason: str = "input", *waits_for: str) -> UUID:
        session = await self.running()
        assert await self.suspend(session, reason, *waits_for) == "written"
        return session

    async def ended(self, status: str) -> UUID:
        session = await self.running()
        match status:
            case "completed":
                await self.complete(session)
            case "failed":
                await self.fail(session)
            case _:
                await self.cancel(session)
        assert await self.status(session) == status
        return session

    async def with_approvals(self, count: int = 1, *, suspended: bool = True, **more: Any) -> tuple[UUID, list[UUID]]:
        """A session whose last answer has so many calls that need approval; their approvals in call order."""
        session = await self.running()
        requests = [approval_request(position, **more) for position in range(count)]
        assert await self.append(session, answer(*["pay"] * count), *requests) == "written"
        approvals = await self.connection.fetch(
            "select id, tool_call_id from agentrt.approvals where session_id = $1 order by tool_call_id", session
        )
        if suspended:
            assert await self.suspend(session, "approval", *(row["tool_call_id"] for row in approvals)) == "written"
        return session, [row["id"] for row in approvals]

    async def with_calls(self, count: int = 1, *, suspended: bool = True, **more: Any) -> tuple[UUID, list[str]]:
        """A session whose last answer has so many deferred calls, and their ids; ``more`` stands in each deferral."""
        session = await self.running()
        assert await self.append(session, answer(*["ask_boss"] * count)) == "written"
        calls = [block["call_id"] for block in (await self.entries(session))[-1].data["content"]]
        assert await self.append(session, *(deferral(call, **more) for call in calls)) == "written"
        if suspended:
            assert await self.suspend(session, "external", *calls) == "written"
        return session, calls

    # --- looking ---

    async def head(self, session: UUID) -> asyncpg.Record:
        row = await self.connection.fetchrow("select * from agentrt.sessions where id = $1", session)
        assert row is not None
        return row

    async def status(self, session: UUID) -> str:
        return str((await self.head(session))["status"])

    async def entries(self, session: UUID) -> list[Entry]:
        rows = await self.connection.fetch("select * from agentrt.journal where session_id = $1 order by seq", session)
        entries = [
            Entry(
                seq=r["seq"],
                type=r["type"],
                run=r["run"],
                attempt=r["attempt"],
                token=r["fencing_token"],
                worker_id=r["worker_id"],
                data=json.loads(r["data"]),
                dedup_key=r["dedup_key"],
            )
            for r in rows
        ]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        return entries

    async def types(self, session: UUID) -> list[str]:
        return [entry.type for entry in await self.entries(session)]

    async def approval_states(self, session: UUID) -> list[str]:
        rows = await self.connection.fetch(
            "select state from agentrt.approvals where session_id = $1 order by tool_call_id", session
        )
        return [row["state"] for row in rows]

    async def everything(self, session: UUID) -> list[list[tuple[Any, ...]]]:
        """All that the database holds of a session, to see that a refusal changed nothing."""
        tables = {"sessions": "id", "journal": "session_id", "approvals": "session_id", "followers": "session_id"}
        found = []
        for table, key in tables.items():
            rows = await self.connection.fetch(f"select * from agentrt.{table} where {key} = $1 order by 1, 2", session)
            found.append([tuple(row.values()) for row in rows])
        return found
