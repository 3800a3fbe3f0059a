"""Users, operators and deaths at random: whatever the order of things, every promise holds."""

import os
from random import Random

import pytest

from tests.crash.chaos import chaos
from tests.crash.invariants import ending_of, wrong
from tests.crash.points import staged
from tests.history import assert_sound

SESSIONS = 25


def drawn_seed() -> int:
    return int(os.environ.get("CRASH_SEED", "0")) or Random().randrange(1, 2**32)


async def run_chaos(url: str, seed: int, sessions: int) -> int:
    """Play so many sessions; returns how many workers died."""
    dice = Random(seed)
    async with staged(url) as stage:
        points = []
        for _ in range(sessions):
            script, dooms = chaos(dice.randrange(2**30))
            points.append(await stage.point(script, *dooms))
        await stage.play(points)
        found = [words for point in points for words in wrong(await ending_of(stage, point))]
        await assert_sound(stage.connection)
        assert found == [], f"CRASH_SEED={seed}"
        return sum(point.crashes for point in points)


@pytest.mark.one_server
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(2))
async def test_messages_cancels_releases_and_deaths_at_random_break_no_promise(database_url, part):
    """Cases 30, 34, 70 and 86 together."""
    seed = drawn_seed() + part
    deaths = await run_chaos(database_url, seed, SESSIONS)
    print(f"seed {seed}: {deaths} workers died")


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_two_thousand_sessions_at_random_break_no_promise(database_url):
    seed = drawn_seed()
    print(f"seed {seed}")
    deaths = sum([await run_chaos(database_url, seed + round_, SESSIONS) for round_ in range(80)])
    print(f"seed {seed}: {deaths} workers died")
