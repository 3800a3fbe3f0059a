"""A worker that dies before or after any port call leaves nothing behind that the next one cannot finish."""

import os
from random import Random

import pytest

from tests.crash.figures import crash_points
from tests.crash.invariants import ending_of, wrong
from tests.crash.points import Point, Stage, breaks, calls_without_a_crash, several, single, staged
from tests.crash.scripts import SCRIPTS
from tests.history import assert_sound

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(300)]

LEAST_POINTS = {
    "plain": 32, "tools": 40, "at once": 34, "asking": 42, "shipping": 34, "ordering": 28,
    "steered": 34, "stopped": 28, "cancelled": 32, "cancelled unheard": 32, "stormy": 36,
    "late": 16, "repeating": 16, "blocked": 20, "failing": 40, "budget": 30, "obsolete": 34, "abandoned": 24,
    "crowded": 44,
}  # fmt: skip
"""Distinct (script, port, n, moment) at which a worker must have died."""


async def found_in(stage: Stage, points: list[Point]) -> list[str]:
    found = [words for point in points for words in wrong(await ending_of(stage, point))]
    await assert_sound(stage.connection)
    return found


def test_the_scripts_hold_at_least_three_hundred_points():
    assert LEAST_POINTS.keys() == SCRIPTS.keys()
    assert sum(LEAST_POINTS.values()) >= 300


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_worker_may_die_before_or_after_any_port_call(database_url, name):
    """Case 70."""
    async with staged(database_url) as stage:
        unharmed = await calls_without_a_crash(stage, SCRIPTS[name])
        calls = unharmed.lives[0].calls
        points = [await stage.point(SCRIPTS[name], doom) for doom in single(len(calls))]
        await stage.play(points)
        assert await found_in(stage, [unharmed, *points]) == []
        reached = {point.reached for point in points} - {None}
        print(f"{name}: {len(reached)} points in {len(calls)} port calls")
        assert len(reached) >= LEAST_POINTS[name]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_database_call_that_fails_changes_nothing_and_makes_nothing_unknown(database_url, name):
    """Case 31 and F5, at every call and with everything that a worker does: not sent, or sent and not answered."""
    async with staged(database_url) as stage:
        calls = (await calls_without_a_crash(stage, SCRIPTS[name])).lives[0].calls
        points = [await stage.point(SCRIPTS[name], doom) for doom in breaks(calls)]
        await stage.play(points)
        assert await found_in(stage, points) == []
        reached = {point.reached for point in points} - {None}
        print(f"{name}: {len(reached)} broken calls")
        assert len(reached) >= len(points) // 2


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_next_owners_may_die_too(database_url, name):
    """Case 70, with two or three deaths in one session."""
    seed = int(os.environ.get("CRASH_SEED", "0")) or Random().randrange(1, 2**32)
    print(f"{name}: seed {seed}")
    dice = Random(seed)
    async with staged(database_url) as stage:
        calls = (await calls_without_a_crash(stage, SCRIPTS[name])).lives[0].calls
        points = [await stage.point(SCRIPTS[name], *several(len(calls), dice.randint(2, 3), dice)) for _ in range(12)]
        await stage.play(points)
        assert await found_in(stage, points) == [], f"seed {seed}"
        assert sum(point.crashes for point in points) >= 12


async def test_a_hundred_random_crashes_lose_and_double_no_message(database_url):
    seed = Random().randrange(1, 2**32)
    figures = await crash_points(database_url, 100, seed)
    print(figures)
    assert figures.wrong == (), f"seed {seed}"
    assert (figures.lost, figures.doubled) == (0, 0)
    assert figures.crashes >= 100
    assert figures.points >= 80
