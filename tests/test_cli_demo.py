"""How ``agentrt demo`` refuses, and how it ends before its time."""

import subprocess
import sys

import psutil
import pytest

from agentrt import connect
from agentrt.core.errors import ConfigurationError
from agentrt.demo.run import introduce
from agentrt.demo.show import Show
from tests.commandline import assert_one_sentence, environment, run


def test_a_model_that_does_not_exist_is_refused_before_anything_is_started():
    assert_one_sentence(run("demo", "--model", "foo"), code=2, names=("foo",))


@pytest.fixture
def ended_process():
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        process.wait(20)
        yield process


def test_a_folder_that_is_a_file_is_named_as_one(tmp_path):
    file = tmp_path / "a.py"
    file.touch()
    assert_one_sentence(run("demo", "--folder", str(file)), code=2, names=(f"{file} is a file",))


async def test_a_worker_that_ends_before_it_works_ends_the_demo_with_its_exit_code(database_url, ended_process):
    async with connect(database_url) as client:
        with pytest.raises(ConfigurationError, match="worker-1 has ended with exit code 7"):
            await introduce(client, {"worker-1": ended_process}, show=Show(quiet=True))


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
            assert demo.wait(60) == 130  # as after Ctrl-C
        finally:
            demo.kill()
    assert len(started) >= 2
    assert psutil.wait_procs(started, timeout=10)[1] == []
