"""Signals that come while a command is still being imported, or ends."""

import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.commandline import SECONDS, environment
from tests.servers import new_folder
from tests.workerprocess import write_agents

pytestmark = pytest.mark.one_server

ROOT = Path(__file__).parents[1]

# Sends this process the signal at the moment when a module is about to be imported.
PROGRAM = """
import os, sys

module, number = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = sys.argv[3:]

class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Signals())
from agentrt.__main__ import main
main()
"""


def signalled(
    number: signal.Signals, module: str, *arguments: str, in_background: bool = False, **settings: str
) -> subprocess.CompletedProcess[str]:
    """The command, which gets the signal when it is about to import the module for the first time. ``in_background``:
    with SIGINT ignored, as a shell starts what does not stand before its terminal."""
    command = [sys.executable, "-c", PROGRAM, module, str(int(number)), *arguments]
    if in_background:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, check=False, timeout=SECONDS
    )


def test_the_command_starts_where_signals_are_expected():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"agentrt": "agentrt.__main__:main"}


def test_ctrl_c_in_pythons_own_last_moments_does_not_take_the_exit_code():
    program = """
import os, signal, sys

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

last = Last()
sys.argv[1:] = ["version"]
from agentrt.__main__ import main
main()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_imported_before_signals_are_expected_is_next_to_nothing():
    program = (
        "import sys; before = {*sys.modules, *sys.builtin_module_names}; import agentrt.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), cwd=ROOT,
                          capture_output=True, text=True, check=True, timeout=SECONDS)  # fmt: skip
    assert done.stdout.split() == ["__future__", "agentrt", "agentrt.__main__"]


@pytest.mark.parametrize("module", ["agentrt.cli", "typer", "agentrt.cli.worker", "asyncpg", "agentrt.client"])
def test_ctrl_c_while_a_command_is_imported_ends_it_quietly(database_url, module):
    done = signalled(signal.SIGINT, module, "sessions", "list", url=database_url)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.usefixtures("before_a_terminal")
@pytest.mark.parametrize(
    ("number", "module"),
    [
        (signal.SIGTERM, "agentrt.cli"),
        (signal.SIGTERM, "typer"),
        (signal.SIGTERM, "agentrt.app"),
        (signal.SIGTERM, "asyncpg"),
        (signal.SIGTERM, "agentrt.worker.daemon"),
        (signal.SIGHUP, "typer"),
        (signal.SIGHUP, "asyncpg"),
    ],
)
def test_a_worker_that_is_ended_while_it_is_imported_is_drained(database_url, tmp_path, number, module):
    agents = write_agents(tmp_path)
    done = signalled(number, module, "worker", url=database_url, agents=agents, http_port="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.system
@pytest.mark.parametrize(
    ("number", "in_background"),
    [
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
        (signal.SIGINT, False),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
    ],
)
def test_dev_that_is_ended_while_it_starts_leaves_no_server_behind(number, in_background):
    folder = new_folder()
    line = ("dev", "--folder", str(folder))
    try:
        done = signalled(number, "agentrt.postgres.migrate", *line, in_background=in_background, http_port="0")
        assert (done.returncode, done.stderr) == (130, "")
        assert "PostgreSQL runs in" in done.stdout
        assert not (folder / "postgres" / "postmaster.pid").exists()
    finally:
        shutil.rmtree(folder)


def test_a_signal_that_a_shell_has_made_ignored_stays_so():
    done = signalled(signal.SIGINT, "typer", "version", in_background=True)
    assert (done.returncode, done.stderr) == (0, "")
