"""How quickly a dead worker is replaced, and that nothing is lost: exit code 1 when a target is missed.

Run it on a machine that has nothing else to do: python -m tests.benchmarks.recovery [--json] [--quick] [--seed N]
"""

import asyncio
import random
import secrets
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg

from tests.benchmarks.figures import Figure, Report, arguments
from tests.benchmarks.lanes import Lane, lane
from tests.benchmarks.place import benchmark_database, benchmark_server
from tests.benchmarks.raw import RawLimit, measure_raw_limit
from tests.crash.figures import crash_points
from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.system.chaos import Chaos, supervised
from tests.system.fleet import fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.soaking import OPEN, Load, judge

LANES = 4
HEARTBEAT, LEASE = 2.0, 15.0
SOAK_AGENTS = str(CHECKOUT / "tests" / "system" / "soak_agents.py")
QUICK_FLEET = {"heartbeat_seconds": 0.5, "stop_seconds": 1, "lease_seconds": 5, "poll_seconds": 1}

Round = Callable[[Lane], Awaitable[float]]


async def rounds(
    url: str, dice: random.Random, measure: Round, *, count: int, pair: bool = True, **settings: object
) -> list[float]:
    """``count`` recoveries on lanes beside each other. ``pair``: somebody is there to take over."""

    async def one(share: int) -> list[float]:
        async with lane(url, random.Random(dice.random()), **settings) as running:
            seconds = []
            for number in range(share):
                if pair or number == 0:
                    await running.hire()
                if pair and number == 0:
                    await running.hire()
                seconds.append(await measure(running))
            return seconds

    shares = [count // LANES + (number < count % LANES) for number in range(LANES)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(share)) for share in shares if share]
    return [seconds for task in running for seconds in task.result()]


def takeover(name: str, seconds: list[float], heartbeat: float, *, median: float, worst: float) -> list[Figure]:
    """In heartbeats, with their targets."""
    beats = [value / heartbeat for value in seconds]
    return [
        Figure(name=f"{name}, median of {len(beats)}", value=statistics.median(beats), unit="heartbeats", most=median),
        Figure(name=f"{name}, worst", value=max(beats), unit="heartbeats", most=worst),
        Figure(name=f"{name}, median", value=statistics.median(seconds), unit="s"),
    ]


async def takeovers(url: str, dice: random.Random, report: Report, raw: RawLimit, *, quick: bool) -> None:
    """Of sessions whose worker was killed, stopped, drained or restarted."""
    seconds = await rounds(url, dice, Lane.after_kill, count=4 if quick else 20)
    report.add(*takeover("takeover after SIGKILL, default settings", seconds, HEARTBEAT, median=3, worst=4))
    seconds = await rounds(url, dice, Lane.after_kill, count=4 if quick else 20, heartbeat_seconds=0.5)
    report.add(*takeover("takeover after SIGKILL, heartbeat 0.5 s", seconds, 0.5, median=3, worst=4))
    seconds = await rounds(url, dice, Lane.after_stop, count=4 if quick else 8)
    most = LEASE + 3 * HEARTBEAT
    report.add(Figure(name=f"takeover after SIGSTOP, worst of {len(seconds)}", value=max(seconds), unit="s", most=most))
    seconds = await rounds(url, dice, Lane.after_restart, count=4 if quick else 8, pair=False)
    report.add(
        *takeover("replacement of a single worker, from its registration", seconds, HEARTBEAT, median=4, worst=4)
    )
    seconds = await rounds(url, dice, Lane.after_drain, count=4 if quick else 20, drain_seconds=0)
    handover = raw.commit_seconds * 3 + raw.notify_seconds  # release, claim, result; and the wake-up
    ratio = statistics.median(seconds) / handover
    against = "three raw commits and a notification"
    name = "from SIGTERM to the next owner's first commit"
    report.add(
        Figure(name=f"{name}, median", value=statistics.median(seconds), unit="s", ratio=ratio, against=against),
        Figure(name=f"{name}, worst of {len(seconds)}", value=max(seconds), unit="s", most=1),
    )


async def crashes(url: str, seed: int, report: Report, *, quick: bool) -> None:
    """Messages over crashes at every call of a port."""
    async with benchmark_database(url) as database:
        figures = await crash_points(database, 60 if quick else 950, seed)
    report.add(
        Figure(name="crashes at calls of a port", value=figures.crashes, unit="crashes"),
        Figure(name="distinct points of a crash", value=figures.points, unit="points"),
        Figure(name="messages of these sessions", value=figures.messages, unit="messages"),
        Figure(name="messages lost", value=figures.lost, unit="messages", most=0),
        Figure(name="messages doubled", value=figures.doubled, unit="messages", most=0),
        Figure(name="promises broken otherwise", value=len(figures.wrong), unit="promises", most=0),
    )
    for words in figures.wrong[:5]:
        report.say(words)


async def kills(url: str, dice: random.Random, report: Report, *, quick: bool) -> None:
    """Messages and entries over SIGKILLs under load."""
    count = 5 if quick else 50
    with TemporaryDirectory(prefix="agentrt-benchmark-") as folder:
        env = {"GATES": folder, "SOAK_MODEL_SECONDS": "0.6"}
        async with (
            benchmark_database(url) as database,
            asyncpg.create_pool(database, min_size=1, max_size=4) as pool,
            fleet(database, SOAK_AGENTS, Path(folder), env=env, slots=40, **QUICK_FLEET) as workers,
            supervised(workers, 4) as supervisor,
        ):
            connection = await asyncpg.connect(database)
            await connection.execute("create table bookings (call text not null)")
            await wait_for_workers(connection, 4)
            load = Load(pool, dice, 60)
            chaos = Chaos(supervisor, connection, dice, (0.5, 2.5), (0, 0), {"SIGKILL": 1})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run())
                happening = tasks.create_task(chaos.run())
                while supervisor.exits[-9] < count:  # noqa: ASYNC110 - a child tells nobody
                    await asyncio.sleep(0.1)
                happening.cancel()
                load.over = True
            await until(connection, OPEN, want=0, seconds=300)
            figures = await judge(connection, load, chaos, Gates(Path(folder)).effects())
            await assert_sound(connection)
            await connection.close()
    report.add(
        Figure(name="SIGKILLs under load", value=supervisor.exits[-9], unit="kills"),
        Figure(name="sessions taken over by them", value=figures.takeovers, unit="takeovers"),
        Figure(name="messages of these sessions", value=figures.messages, unit="messages"),
        Figure(name="messages and entries lost", value=len(figures.lost), unit="entries", most=0),
        Figure(name="messages and entries doubled", value=len(figures.doubled), unit="entries", most=0),
        Figure(name="sessions not completed", value=figures.unfinished, unit="sessions", most=0),
    )
    for words in (*figures.lost[:5], *figures.doubled[:5]):
        report.say(words)


async def main() -> int:
    given = arguments("How quickly a dead worker is replaced, and that nothing is lost.")
    report = Report(as_json=given.json)
    seed = given.seed or secrets.randbits(32)
    report.say(f"seed {seed}")
    dice = random.Random(seed)
    async with benchmark_server() as url:
        async with benchmark_database(url) as database:
            raw = await measure_raw_limit(database, seconds=1 if given.quick else 3)
        report.add(*raw.figures())
        await takeovers(url, dice, report, raw, quick=given.quick)
        await crashes(url, seed, report, quick=given.quick)
        await kills(url, dice, report, quick=given.quick)
    return report.end()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
