"""How ``agentrt demo`` refuses, and how it ends before its time."""

import subprocess
import sys

import psutil
import pytest

from tests.commandline import assert_one_sentence, environment, run


def test_a_model_that_does_not_exist_is_refused_before_anything_is_started():
    assert_one_sentence(run("demo", "--model", "foo"), code=2, names=("foo",))


@pytest.mark.system
def test_a_demo_that_is_terminated_leaves_no_process_behind():
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "demo"], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    with demo, demo.stdout as lines:
        try:
            assert any("Two workers run" in line for line in lines)
            started = psutil.Process(demo.pid).children(recursive=True)
            demo.terminate()
            assert demo.wait(60) == 143
        finally:
            demo.kill()
    assert len(started) >= 2
    assert psutil.wait_procs(started, timeout=10)[1] == []
