"""The load of the soak, what clients were told, and the judgement at the end: nothing lost, nothing doubled."""

import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import asyncpg

from tests.system.chaos import Chaos, Loss
from tests.system.soak_agents import CALLS

OPEN = "select count(*) from agentrt.sessions where status in ('queued', 'running', 'suspended')"
CREATE = "select agentrt.create_session('soaked', $1, '{\"max_attempts\": 20}')"

# What a session holds beside what its clients were told.
HELD = """
select s.id, s.status, s.outcome ->> 'text' as text,
  array(
    select j.data -> 'content' -> 0 ->> 'text' from agentrt.journal j
    where j.session_id = s.id and j.type = 'user_message' order by j.seq
  ) as messages,
  array(
    select s.id::text || ':' || (b ->> 'call_id') from agentrt.journal j, jsonb_array_elements(j.data -> 'content') b
    where j.session_id = s.id and j.type = 'assistant_message' and b ->> 'type' = 'tool_call'
  ) as calls
from agentrt.sessions s
"""
RESULTS = """
select session_id::text || ':' || (data ->> 'call_id') as call, data ->> 'tool' as tool, data ->> 'outcome' as outcome
from agentrt.journal where type = 'tool_result'
"""
TAKEN_OVER = """
select extract(epoch from c.created_at - $2)::float8
from agentrt.journal o
cross join lateral (
  select created_at, attempt from agentrt.journal c
  where c.session_id = o.session_id and c.seq > o.seq and c.type = 'session_claimed' order by c.seq limit 1
) c
where o.type = 'session_orphaned' and o.data ->> 'worker_id' = $1::uuid::text and c.attempt = 2
  and o.created_at >= $2 and o.created_at < $3
"""


@dataclass
class Load:
    """Clients that keep so many sessions open, and send messages into some; ``told`` is what was acknowledged."""

    pool: asyncpg.Pool
    dice: random.Random
    sessions: int
    told: dict[UUID, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    sent: int = 0
    over: bool = False
    """Send no more. A call that is cut would leave a message that nobody was told about."""

    async def run(self) -> None:
        """Until it is ``over``."""
        while not self.over:
            missing = self.sessions - await self.pool.fetchval(OPEN)
            for _ in range(missing):
                await self._create()
            for session in self.dice.sample(
                list(self.told)[-self.sessions :], min(self.sessions // 50, len(self.told))
            ):
                await self._send(session)
            await asyncio.sleep(0.5)

    def _text(self) -> str:
        self.sent += 1
        return f"message {self.sent}"

    async def _create(self) -> None:
        text = self._text()
        session = await self.pool.fetchval(CREATE, text)
        self.told[session].append((2, text))

    async def _send(self, session: UUID) -> None:
        text = self._text()
        seq = await self.pool.fetchval("select agentrt.send_message($1, $2)", session, text)
        self.told[session].append((seq, text))


@dataclass(frozen=True)
class Figures:
    """Of one soak."""

    sessions_completed: int
    messages: int
    events: dict[str, int]
    takeovers: int
    takeover_seconds: dict[str, list[float]]
    lost: Sequence[str]
    doubled: Sequence[str]
    unfinished: int

    def lines(self) -> list[str]:
        """For people."""
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.events.items()))
        lines = [
            f"sessions completed {self.sessions_completed}, unfinished {self.unfinished}, messages {self.messages}",
            f"events: {kills}",
            f"takeovers of sessions {self.takeovers}",
        ]
        for kind, seconds in self.takeover_seconds.items():
            if seconds:
                median, worst = statistics.median(seconds), max(seconds)
                lines.append(
                    f"takeover after {kind}: median {median:.1f} s, worst {worst:.1f} s ({len(seconds)} sessions)"
                )
        return [
            *lines,
            f"entries lost {len(self.lost)}, doubled {len(self.doubled)}",
            *self.lost[:5],
            *self.doubled[:5],
        ]


async def judge(connection: asyncpg.Connection, load: Load, chaos: Chaos, effects: Sequence[str]) -> Figures:
    """Compare what clients were told and tools did with what the database holds."""
    lost: list[str] = []
    doubled: list[str] = []
    completed, unfinished = 0, 0
    calls: set[str] = set()
    for row in await connection.fetch(HELD):
        completed += row["status"] == "completed"
        unfinished += row["status"] != "completed"
        told = [text for _, text in sorted(load.told[row["id"]])]
        _compare(f"messages of {row['id']}", told, row["messages"], lost=lost, doubled=doubled)
        if row["status"] == "completed":
            _compare(f"answer of {row['id']}", told, row["text"].split(" | "), lost=lost, doubled=doubled)
        if len(row["calls"]) != CALLS:
            (lost if len(row["calls"]) < CALLS else doubled).append(f"{row['id']} has calls {row['calls']}")
        calls |= set(row["calls"])
    await _judge_effects(connection, calls, effects, lost=lost, doubled=doubled)
    return Figures(
        sessions_completed=completed,
        messages=load.sent,
        events=dict(chaos.events),
        takeovers=await connection.fetchval("select count(*) from agentrt.journal where type = 'session_orphaned'"),
        takeover_seconds=await _takeover_seconds(connection, chaos.losses),
        lost=lost,
        doubled=doubled,
        unfinished=unfinished,
    )


def _compare(what: str, want: Sequence[str], have: Sequence[str], *, lost: list[str], doubled: list[str]) -> None:
    missing, more = set(want) - set(have), len(have) - len(set(have))
    if missing:
        lost.append(f"{what}: {sorted(missing)} of {want}")
    if more or set(have) - set(want):
        doubled.append(f"{what}: {have} instead of {want}")


async def _judge_effects(
    connection: asyncpg.Connection, calls: set[str], effects: Sequence[str], *, lost: list[str], doubled: list[str]
) -> None:
    results = await connection.fetch(RESULTS)
    ok = {row["call"]: row["tool"] for row in results if row["outcome"] == "ok"}
    booked = [row["call"] for row in await connection.fetch("select call from bookings")]
    _compare("results", sorted(calls), [row["call"] for row in results], lost=lost, doubled=doubled)
    for what, tool, happened in (("bookings", "book", booked), ("payments", "pay", effects)):
        wanted = {call for call, name in ok.items() if name == tool}
        if wanted - set(happened):
            lost.append(f"{what}: {sorted(wanted - set(happened))[:5]}")
        if len(happened) != len(set(happened)):
            doubled.append(f"{what}: {len(happened) - len(set(happened))}")
    if set(booked) - ok.keys():
        doubled.append(f"bookings without a result: {sorted(set(booked) - ok.keys())[:5]}")


async def _takeover_seconds(connection: asyncpg.Connection, losses: Sequence[Loss]) -> dict[str, list[float]]:
    """From the kill or stop to the claim by the next owner, of sessions that waited for no back-off. A worker that was
    stopped for less than its lease goes on, and may be lost once more."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number, loss in enumerate(losses):
        again = [later.at for later in losses[number + 1 :] if later.worker_id == loss.worker_id]
        until = again[0] if again else datetime.max.replace(tzinfo=UTC)
        rows = await connection.fetch(TAKEN_OVER, loss.worker_id, loss.at, until)
        seconds[loss.kind] += [row[0] for row in rows]
    return dict(seconds)
