"""Workers' clocks: none of them decides anything that another worker could see."""

import time

import pytest

from tests.postgres.owner import may_judge
from tests.worker.keepers import kept
from tests.worker.ownership import Ground


async def test_clocks_that_are_ten_minutes_wrong_steal_nothing_and_keep_nothing_alive(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 19: every time in the database is the database's own."""
    true_time = time.time
    async with kept(ground, lease_seconds=3600) as fast, kept(ground, lease_seconds=3600) as slow:
        for one, wrong in ((fast, 600), (slow, -600)):
            monkeypatch.setattr(time, "time", lambda wrong=wrong: true_time() + wrong)
            one.clock.now += wrong
            await one.beat()
            await one.hold()
        for one in (fast, slow):
            await may_judge(ground.connection, one.id)
            await one.beat()
            await one.keeper.reap_once()
            assert [await ground.state(other.id) for other in (fast, slow)] == ["alive", "alive"]
        leases = await ground.connection.fetch("select lease_expires_at - clock_timestamp() from agentrt.workers")
        assert all(3300 < lease[0].total_seconds() <= 3600 for lease in leases), "not ten minutes more, nor less"
        for silent, judge in ((slow, fast), (fast, slow)):
            await ground.connection.execute("update agentrt.workers set state = 'alive'")
            await ground.silence(silent.id, seconds=3601)
            await judge.beat()
            await may_judge(ground.connection, judge.id)
            await judge.keeper.reap_once()
            assert await ground.state(silent.id) == "dead"
