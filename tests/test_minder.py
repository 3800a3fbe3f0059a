"""What becomes of a process that is minded."""

import os
import signal
import subprocess

import pytest

from agentrt import minder
from agentrt.minder import minded
from tests.commandline import SECONDS


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_that_an_interrupt_has_left_running_is_sent_the_signal(sleeper):
    """A second Ctrl-C is quicker than the code that would have ended it."""
    with pytest.raises(KeyboardInterrupt), minded(sleeper.pid, signal.SIGTERM):
        raise KeyboardInterrupt
    assert sleeper.wait(SECONDS) == -signal.SIGTERM


def test_a_process_that_has_ended_is_sent_nothing(sleeper, tmp_path, monkeypatch):
    """Its number may be another one's by now."""
    monkeypatch.setattr(minder, "_WAIT_AND_TELL", f"read -r _; touch {tmp_path}/$1")
    with minded(sleeper.pid, signal.SIGTERM):
        sleeper.kill()
        sleeper.wait(SECONDS)
    assert list(tmp_path.iterdir()) == []
    with minded(os.getpid(), signal.SIGTERM):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())], "what the other one would have done"
