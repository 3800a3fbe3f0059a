"""Workers as the store sees them: the real stores, and what a worker keeps of the sessions that it holds."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID, uuid4

import asyncpg

from agentrt.core.content import Text, ToolCall
from agentrt.core.journal import AssistantMessage, EntryData, StopReason, ToolResult, Usage
from agentrt.core.session import CallId, Completed, Lease, Outcome, Seq, Session, SessionId, WorkerId
from agentrt.ports import Answer, KeeperStore, NewEntry, Offer, ReaperStore, Renewal, WorkerInfo, Write, Written
from agentrt.postgres.pool import DatabaseOptions
from agentrt.postgres.store import PostgresSessionStore, PostgresStores

AGENT = "auditor"
OFFER = Offer(queues=("default",), agents={AGENT: "v1"})
DONE = Completed({"text": "done"})


def answer(text: str = "hm", *tools: str, **more: Any) -> AssistantMessage:
    """An answer with one call for each tool."""
    return AssistantMessage(
        content=(Text(text), *(ToolCall(tool, "{}") for tool in tools)),
        model="scripted",
        stop_reason=StopReason.TOOL_CALLS if tools else StopReason.STOP,
        **{"usage": Usage(10, 5), **more},
    )


def result(call_id: str = "000004001", content: str = "42") -> NewEntry:
    return NewEntry(data=ToolResult(CallId(call_id), "measure", content), dedup_key=f"w:result:{call_id}")


@dataclass
class Held:
    """A session that a worker holds."""

    id: SessionId
    lease: Lease
    last_seq: Seq
    owner_writes: int = 0

    @classmethod
    def of(cls, session: Session) -> "Held":
        return cls(session.id, Lease(session.id, session.fencing_token), session.last_seq)

    def write(
        self, *entries: EntryData | NewEntry, ending: Outcome | None = None, planned_from: int | None = None
    ) -> Write:
        return Write(
            lease=self.lease,
            owner_writes=self.owner_writes,
            entries=tuple(e if isinstance(e, NewEntry) else NewEntry(data=e) for e in entries),
            ending=ending,
            planned_from=self.last_seq if planned_from is None else Seq(planned_from),
        )

    def note(self, written: Written) -> None:
        if written.answer in (Answer.WRITTEN, Answer.ALREADY):
            self.owner_writes += 1
            self.last_seq = written.last_seq


@dataclass
class Owner:
    """One worker incarnation, registered, with all of its stores."""

    info: WorkerInfo
    store: PostgresSessionStore
    keeper: KeeperStore
    reaper: ReaperStore
    liveness_key: int | None

    @property
    def id(self) -> WorkerId:
        return self.info.id

    async def claim(self, limit: int = 1, *, fragile_limit: int = 1, offer: Offer = OFFER) -> list[Held]:
        claimed = await self.store.claim(self.id, offer, limit=limit, fragile_limit=fragile_limit)
        return [Held.of(session) for session in claimed.sessions]

    async def take(self, limit: int = 1) -> Held:
        """Claim exactly one."""
        (held,) = await self.claim(limit)
        return held

    async def append(self, held: Held, *entries: EntryData | NewEntry) -> Written:
        """One group commit of one session."""
        (written,) = await self.store.append(self.id, [held.write(*entries)])
        held.note(written)
        return written

    async def append_all(self, held: Sequence[Held], *entries: EntryData | NewEntry) -> list[Written]:
        """One group commit of many sessions, the same entries for each."""
        written = await self.store.append(self.id, [h.write(*entries) for h in held])
        for h, w in zip(held, written, strict=True):
            h.note(w)
        return list(written)

    async def end(self, held: Held, outcome: Outcome = DONE, **more: Any) -> Written:
        (written,) = await self.store.end(self.id, [held.write(ending=outcome, **more)])
        held.note(written)
        return written

    async def reborn(self) -> "Owner":
        """A new incarnation, on the same connections."""
        born = replace(self, info=replace(self.info, id=WorkerId(uuid4())), liveness_key=None)
        await self.keeper.register(born.info, None)
        return born

    async def renew(self, *, draining: bool = False) -> Renewal:
        return await self.keeper.renew(self.info, self.liveness_key, draining=draining)


class HireOwner(Protocol):
    async def __call__(self, name: str = ..., *, lease_seconds: float = ...) -> Owner: ...


@asynccontextmanager
async def hiring(options: DatabaseOptions) -> AsyncIterator[HireOwner]:
    """A function that registers workers; all of their connections are closed at the end of the block."""
    stores = PostgresStores(options)
    async with AsyncExitStack() as stack:

        async def hire(name: str = "anna", *, lease_seconds: float = 3_600.0) -> Owner:
            store = PostgresSessionStore(options)
            stack.push_async_callback(store.close)
            keeper, reaper = await stores.keeper(), await stores.reaper()
            stack.push_async_callback(keeper.close)
            stack.push_async_callback(reaper.close)
            info = WorkerInfo(
                id=WorkerId(uuid4()),
                name=name,
                host="host",
                pid=1,
                version="1.0",
                agents=(AGENT,),
                queues=("default",),
                slots=20,
                heartbeat_seconds=2.0,
                lease_seconds=lease_seconds,
            )
            key = await keeper.lock_liveness()
            await keeper.register(info, key)
            return Owner(info, store, keeper, reaper, key)

        yield hire


# --- time passes ----------------------------------------------------------------------------------------------------


async def expire_lease(connection: asyncpg.Connection, worker: UUID) -> None:
    await connection.execute(
        "update agentrt.workers set lease_expires_at = clock_timestamp() - interval '1 s', "
        "renewed_at = clock_timestamp() - interval '16 s' where id = $1",
        worker,
    )


async def may_judge(connection: asyncpg.Connection, worker: UUID) -> None:
    """The worker has renewed without a gap for a while; and no pause of the machine is a gap between its heartbeats."""
    await connection.execute(
        "update agentrt.workers set heartbeat_seconds = 3600, renewing_since = renewed_at - interval '1 day' "
        "where id = $1",
        worker,
    )


NO_LOCK = """
  select not exists (
    select from pg_locks
    where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
  )
"""
"""Nobody here holds a liveness lock; the server frees that of a closed connection when it comes to it."""


async def make_due(connection: asyncpg.Connection, session: UUID) -> None:
    """The session's time has come."""
    await connection.execute(
        "update agentrt.sessions set ready_at = clock_timestamp() - interval '1 s' where id = $1", session
    )


async def create(connection: asyncpg.Connection, count: int) -> list[UUID]:
    """So many queued sessions, oldest first."""
    rows = await connection.fetch(
        "select agentrt.create_session($1, 'hello') from generate_series(1, $2)", AGENT, count
    )
    return [row[0] for row in rows]
