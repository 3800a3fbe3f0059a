"""Crashes by the hundred, for benchmarks: what became of the messages of all these sessions."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.crash.invariants import ending_of, messages, wrong
from tests.crash.mortality import Doom
from tests.crash.points import Point, Stage, calls_without_a_crash, several, single, staged
from tests.crash.scripts import SCRIPTS
from tests.crash.world import Script
from tests.history import problems

_TOGETHER = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``points`` are distinct (script, port, n, moment) of first deaths; ``wrong`` names what broke a promise."""

    seed: int
    crashes: int
    sessions: int
    points: int
    messages: int
    lost: int
    doubled: int
    seconds: float
    wrong: tuple[str, ...]


async def crash_points(url: str, count: int, seed: int) -> Figures:
    """Crash workers at port calls ``count`` times on a migrated database: once at every call of every script, in
    random order, then two or three times in one session, at random calls."""
    begun = time.monotonic()
    dice = Random(seed)
    played: list[Point] = []
    found: list[str] = []
    sent = lost = doubled = crashes = 0
    async with staged(url) as stage:
        ways = await _ways(stage, dice)
        while crashes < count:
            points: list[Point] = []
            while len(points) < _TOGETHER and crashes + sum([len(point.dooms) for point in points]) < count:
                script, dooms = next(ways)
                points.append(await stage.point(script, *dooms))
            await stage.play(points)
            crashes += sum([point.crashes for point in points])
            played += points
            for point in points:
                ending = await ending_of(stage, point)
                found += wrong(ending)
                told = messages(ending)
                sent, lost, doubled = sent + told.sent, lost + told.lost, doubled + told.doubled
        found += [str(problem) for problem in await problems(stage.connection)]
    return Figures(
        seed=seed,
        crashes=crashes,
        sessions=len(played),
        points=len({point.reached for point in played} - {None}),
        messages=sent,
        lost=lost,
        doubled=doubled,
        seconds=time.monotonic() - begun,
        wrong=tuple(found),
    )


async def _ways(stage: Stage, dice: Random) -> Iterator[tuple[Script, tuple[Doom, ...]]]:
    lengths = {}
    for script in SCRIPTS.values():
        lengths[script.name] = len((await calls_without_a_crash(stage, script)).lives[0].calls)
    return _forever(lengths, dice)


def _forever(lengths: dict[str, int], dice: Random) -> Iterator[tuple[Script, tuple[Doom, ...]]]:
    once = [(script, (doom,)) for script in SCRIPTS.values() for doom in single(lengths[script.name])]
    dice.shuffle(once)
    yield from once
    while True:
        script = dice.choice(list(SCRIPTS.values()))
        yield script, several(lengths[script.name], dice.randint(2, 3), dice)
