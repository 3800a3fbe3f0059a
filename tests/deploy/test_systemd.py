"""The unit: systemd accepts it, it may do little, and it gives a worker the time that it needs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrt.settings import PREFIX, Settings
from tests.deploy import unit

MOST_EXPOSURE = 1.5


@pytest.fixture
def analyze(tmp_path: Path):
    """Runs systemd-analyze on a copy of the unit that starts a program of this machine."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    copy = tmp_path / "agentrt-worker@shop.service"
    text = unit.UNIT.read_text(encoding="utf-8")
    copy.write_text(text.replace(unit.INSTALLED, f"{Path(sys.executable).parent}/"), encoding="utf-8")

    def run(*words: str) -> str:
        command = [program, *words, str(copy)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_systemd_accepts_the_unit(analyze):
    assert analyze("verify", "--man=no") == ""


def test_the_unit_is_little_exposed(analyze):
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", analyze("security", "--offline=true"))
    assert exposure
    assert float(exposure[1]) <= MOST_EXPOSURE


def test_systemd_gives_the_drain_its_time_and_fifteen_seconds():
    settings = Settings()
    [seconds] = unit.service()["TimeoutStopSec"]
    assert float(seconds) == max(settings.drain_seconds, settings.drain_tool_seconds) + 15


def test_the_watchdog_waits_until_a_stalled_worker_has_had_the_time_to_end_itself():
    settings = Settings()
    [seconds] = unit.service()["WatchdogSec"]
    assert float(seconds) > settings.stall_seconds + settings.lease_seconds


def test_a_worker_is_started_again_however_it_ended_and_for_as_long_as_it_takes():
    assert unit.service()["Restart"] == ["always"]
    assert "\nStartLimitIntervalSec=0\n" in unit.UNIT.read_text(encoding="utf-8")


def test_only_the_worker_is_told_to_stop_so_that_its_tool_servers_outlive_the_drain():
    assert unit.service()["KillMode"] == ["mixed"]
    assert unit.service()["NotifyAccess"] == ["main"]
    assert unit.service()["Type"] == ["notify"]


def test_the_example_of_the_environment_file_holds_settings_that_are_accepted():
    given = unit.environment(unit.EXAMPLE.read_text(encoding="utf-8"))
    assert unit.service()["EnvironmentFile"] == ["/etc/agentrt/%i.env"]
    assert all(name.startswith(PREFIX) for name in given)
    settings = Settings(**{name.removeprefix(PREFIX).lower(): value for name, value in given.items()})
    assert settings.agents == ("agentrt.demo.hello",)
    assert settings.http_port == Settings().http_port
