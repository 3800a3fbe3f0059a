"""The machine's own limit: bare asyncpg against the same server in the same run. Ratios travel, seconds do not."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import asyncpg

from tests.benchmarks.figures import Figure

_NOTIFICATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLimit:
    """Of single-row commits and of notifications."""

    commit_seconds: float
    commits_per_second: float
    commits_per_second_by_ten: float
    notify_seconds: float

    def figures(self) -> list[Figure]:
        return [
            Figure(name="raw: single-row commit, one connection, median", value=self.commit_seconds * 1e3, unit="ms"),
            Figure(name="raw: single-row commits, one connection", value=self.commits_per_second, unit="/s"),
            Figure(name="raw: single-row commits, ten connections", value=self.commits_per_second_by_ten, unit="/s"),
            Figure(name="raw: NOTIFY to LISTEN, median", value=self.notify_seconds * 1e3, unit="ms"),
        ]


async def measure_raw_limit(url: str, *, seconds: float) -> RawLimit:
    """On a database that nothing else uses."""
    connections = [await asyncpg.connect(url) for _ in range(10)]
    try:
        await connections[0].execute(
            "create table raw (id bigint generated always as identity primary key, data jsonb)"
        )
        alone = await _commit(connections[:1], seconds)
        together = await _commit(connections, seconds)
        return RawLimit(
            commit_seconds=statistics.median(alone),
            commits_per_second=len(alone) / seconds,
            commits_per_second_by_ten=len(together) / seconds,
            notify_seconds=await _notify(*connections[:2]),
        )
    finally:
        for connection in connections:
            await connection.close()


async def _commit(connections: list[asyncpg.Connection], seconds: float) -> list[float]:
    insert = 'insert into raw (data) values (\'{"text": "one entry of an ordinary length"}\')'
    return await repeat([partial(connection.execute, insert) for connection in connections], seconds)


async def repeat(calls: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> list[float]:
    """Each call again and again beside the others; how long each took."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        while (begun := time.perf_counter()) < end:
            await call()
            latencies.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(one(call))
    return latencies


async def _notify(sender: asyncpg.Connection, listener: asyncpg.Connection) -> float:
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    await listener.add_listener("raw", hear)
    latencies = []
    for _ in range(_NOTIFICATIONS):
        heard.clear()
        begun = time.perf_counter()
        await sender.execute("notify raw")
        await heard.wait()
        latencies.append(time.perf_counter() - begun)
    await listener.remove_listener("raw", hear)
    return statistics.median(latencies)
