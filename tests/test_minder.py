"""What becomes of a process that is minded."""

import signal
import subprocess

import pytest

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


def test_a_process_that_has_ended_is_sent_nothing(sleeper):
    with minded(sleeper.pid, signal.SIGTERM):
        sleeper.kill()
        sleeper.wait(SECONDS)
    assert sleeper.returncode == -signal.SIGKILL
