"""How much work gets through, against bare asyncpg on the same server in the same run.

Run it on a machine that has nothing else to do: python -m tests.benchmarks.throughput [--json] [--quick]
"""

import asyncio
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg

from agentrt.core.session import Completed
from agentrt.postgres.pool import DatabaseOptions
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding
from tests.benchmarks.figures import Figure, Report, arguments
from tests.benchmarks.place import benchmark_database, benchmark_server
from tests.benchmarks.raw import RawLimit, measure_raw_limit, repeat
from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.postgres.owner import OFFER, Owner, create, hiring, result
from tests.system.fleet import fleet, until, wait_for_workers
from tests.system.sessions import DEFAULTS, UNFINISHED, create_many

AGENTS = str(CHECKOUT / "tests" / "system" / "agents.py")
BATCH = 50
BY_TEN = "ten raw connections"
SPAN = """
select extract(epoch from max(created_at) filter (where type = 'session_completed')
  - min(created_at) filter (where type = 'session_claimed')) from agentrt.journal
"""


async def appends(url: str, *, sessions: int, seconds: float) -> float:
    """Entries per second of one worker whose sessions each append one entry after another. They begin in step, and
    share a core with the committer: what making the entries costs is part of it."""
    async with benchmark_database(url) as database, hiring(DatabaseOptions(url=database)) as hire:
        connection = await asyncpg.connect(database)
        await create(connection, sessions)
        owner = await hire()
        claimed = await owner.store.claim(owner.id, OFFER, limit=sessions, fragile_limit=1)
        committer = Committer(owner.store, owner.id, emit=lambda _: None)
        running = asyncio.create_task(committer.run())
        await asyncio.sleep(0)
        holdings = [Holding(session) for session in claimed.sessions]
        written = [0]

        async def append(holding: Holding) -> None:
            written[0] += 1
            await committer.append(holding, [result(f"{written[0]:09}", "a result of an ordinary length")])

        begun = time.perf_counter()
        await repeat([partial(append, holding) for holding in holdings], seconds)
        taken = time.perf_counter() - begun
        running.cancel()
        await asyncio.wait({running})
        await assert_sound(connection)
        await connection.close()
        return written[0] / taken


async def claims(url: str, *, workers: int, seconds: float) -> float:
    """Sessions per second that workers claim and complete, 50 at a time, without running them."""
    async with benchmark_database(url) as database, hiring(DatabaseOptions(url=database)) as hire:
        connection = await asyncpg.connect(database)
        await connection.execute(
            "insert into agentrt.sessions (id, agent) select agentrt.uuid7(), 'auditor' from generate_series(1, $1)",
            int(12_000 * workers * seconds) + 1_000,
        )
        await connection.execute("analyze agentrt.sessions")
        done = [0]

        async def work(owner: Owner) -> None:
            held = await owner.claim(BATCH)
            await owner.store.end(owner.id, [one.write(ending=Completed({"text": "done"})) for one in held])
            done[0] += len(held)

        owners = [await hire(f"worker-{number}") for number in range(workers)]
        begun = time.perf_counter()
        await repeat([partial(work, owner) for owner in owners], seconds)
        taken = time.perf_counter() - begun
        await connection.close()
        return done[0] / taken


async def end_to_end(url: str, *, workers: int, sessions: int) -> float:
    """Sessions of three model calls and two tools per second, from the first claim to the last completion."""
    with TemporaryDirectory(prefix="agentrt-benchmark-") as folder:
        settings = {**DEFAULTS, "slots": 50, "log_level": "warning"}
        async with (
            benchmark_database(url) as database,
            fleet(database, AGENTS, Path(folder), env={}, **settings) as running,
        ):
            connection = await asyncpg.connect(database)
            await create_many(connection, sessions)
            for _ in range(workers):
                running.start()
            await wait_for_workers(connection, workers)
            await until(connection, UNFINISHED, want=0, seconds=600)
            seconds = await connection.fetchval(SPAN)
            await assert_sound(connection)
            await connection.close()
    return sessions / float(seconds)


async def clients(url: str, report: Report, raw: RawLimit, *, seconds: float) -> None:
    """Creating sessions and sending messages by the SQL functions."""
    async with benchmark_database(url) as database:
        connections = [await asyncpg.connect(database) for _ in range(10)]
        session = await connections[0].fetchval("select agentrt.create_session('greeter', 'hello')")
        calls = {
            "create": [partial(c.fetchval, "select agentrt.create_session('greeter', 'hello')") for c in connections],
            "send": [partial(connections[0].fetchval, "select agentrt.send_message($1, 'more')", session)],
        }
        for name, functions in calls.items():
            median = statistics.median(await repeat(functions[:1], seconds))
            ratio = median / raw.commit_seconds
            report.add(
                Figure(name=f"{name}, median", value=median * 1e3, unit="ms", ratio=ratio, against="a raw commit")
            )
        rate = len(await repeat(calls["create"], seconds)) / seconds
        report.add(per_second("create, ten connections", rate, raw))
        for connection in connections:
            await connection.close()


def per_second(name: str, value: float, raw: RawLimit) -> Figure:
    """A rate against the commits of ten raw connections."""
    return Figure(name=name, value=value, unit="/s", ratio=value / raw.commits_per_second_by_ten, against=BY_TEN)


async def main() -> int:
    given = arguments("How much work gets through, against bare asyncpg.")
    report = Report(as_json=given.json)
    seconds = 1.0 if given.quick else 5.0
    async with benchmark_server() as url:
        async with benchmark_database(url) as database:
            raw = await measure_raw_limit(database, seconds=seconds)
        report.add(*raw.figures())
        for count in (1, 100, 500):
            name = f"group commit: entries appended, {count} sessions"
            report.add(per_second(name, await appends(url, sessions=count, seconds=seconds), raw))
        for workers in (1, 2):
            name = f"claimed and completed, {workers} connections"
            report.add(per_second(name, await claims(url, workers=workers, seconds=seconds), raw))
        for workers in (1, 2):
            name = f"sessions of three turns from end to end, {workers} workers"
            sessions = (200 if given.quick else 2000) * workers
            report.add(per_second(name, await end_to_end(url, workers=workers, sessions=sessions), raw))
        await clients(url, report, raw, seconds=seconds)
    return report.end()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
