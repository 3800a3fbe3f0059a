"""Until when a worker may act."""

import pytest

from agentrt.worker.fence import Fence


def fence(**values: float | bool) -> Fence:
    known: dict[str, float | bool] = {"heartbeat_seconds": 2, "lease_seconds": 15, "stop_seconds": 3, "renewed_at": 100}
    return Fence(**(known | values))  # type: ignore[arg-type]


def test_with_the_defaults_everything_stops_after_twelve_seconds_and_the_process_is_gone_after_fifteen() -> None:
    assert fence().stop_at == 112
    assert fence(locked=True).stop_at == 112
    assert fence().exit_at == 115


def test_when_others_may_see_the_lock_free_everything_stops_before_two_heartbeats_of_silence() -> None:
    assert fence(locked=True, broken=True).stop_at == 103
    assert fence(locked=True, broken=True).exit_at == 115
    assert fence(locked=True, broken=True, heartbeat_seconds=0.5).stop_at == pytest.approx(100.75)


def test_a_broken_connection_changes_nothing_when_nobody_watches_a_lock() -> None:
    assert fence(locked=False, broken=True).stop_at == 112


def test_the_lease_ends_the_work_even_when_two_heartbeats_would_take_longer() -> None:
    assert fence(locked=True, broken=True, heartbeat_seconds=8).stop_at == 112
