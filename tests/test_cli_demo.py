"""How ``agentrt demo`` refuses, and how it ends before its time."""

import io
import subprocess
import sys

import psutil
import pytest
from rich.console import Console

from agentrt import connect
from agentrt.core.errors import ConfigurationError
from agentrt.core.journal import Entry, SessionCompleted
from agentrt.core.session import FencingToken, Seq
from agentrt.demo.run import introduce
from agentrt.demo.show import Show
from tests.commandline import SECONDS, assert_one_sentence, environment, run
from tests.servers import ended


def test_a_model_that_does_not_exist_is_refused_before_anything_is_started():
    assert_one_sentence(run("demo", "--model", "foo"), code=2, names=("foo",))


@pytest.fixture
def ended_process():
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        process.wait(SECONDS)
        yield process


def test_a_folder_that_is_a_file_is_named_as_one(tmp_path):
    file = tmp_path / "a.py"
    file.touch()
    assert_one_sentence(run("demo", "--folder", str(file)), code=2, names=(f"{file} is a file",))


async def test_a_worker_that_ends_before_it_works_ends_the_demo_with_its_exit_code(database_url, ended_process):
    async with connect(database_url) as client:
        with pytest.raises(ConfigurationError, match="worker-1 has ended with exit code 7"):
            await introduce(client, {"worker-1": ended_process}, show=Show(quiet=True))


@pytest.fixture
def waiting_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_workers_that_do_not_start_in_time_end_the_demo_with_one_sentence(
    database_url, waiting_process, monkeypatch
):
    monkeypatch.setattr("agentrt.demo.run.START_SECONDS", 0)
    async with connect(database_url) as client:
        with pytest.raises(ConfigurationError, match="1 of 1 workers did not start within 0 s"):
            await introduce(client, {"worker-1": waiting_process}, show=Show(quiet=True))


def shown(entry: Entry, *, columns: int) -> list[str]:
    show, file = Show(quiet=False), io.StringIO()
    show._console = Console(file=file, width=columns, force_terminal=True, color_system=None, highlight=False)
    show.entry(entry)
    return file.getvalue().splitlines()


def test_the_demos_lines_use_the_terminals_width():
    text = "Audited 6 files with 2333 lines; 6 rows are in the report."
    entry = Entry(seq=Seq(23), run=1, fencing_token=FencingToken(3), data=SessionCompleted(outcome={"text": text}))
    first, second = shown(entry, columns=80)
    assert first == "  23     3  client    session_completed  Audited 6 files with 2333 lines; 6 rows"
    assert second.split() == ["are", "in", "the", "report."]
    assert second.index("are") == first.index("Audited")
    assert len(shown(entry, columns=120)) == 1
    long = Entry(seq=Seq(23), run=1, data=SessionCompleted(outcome={"text": "word " * 100}))
    assert [line[-1] for line in shown(long, columns=80)] == ["d", "…"]
    assert max(map(len, shown(long, columns=80))) <= 80


@pytest.mark.system
@pytest.mark.parametrize("sigint", ["-", ""], ids=["before a terminal", "in a shell's background"])
def test_a_demo_that_is_terminated_leaves_no_process_behind(sigint):
    demo = subprocess.Popen(
        ["sh", "-c", f'trap "{sigint}" INT; exec "$@"', "sh", sys.executable, "-u", "-m", "agentrt", "demo"],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    with demo, demo.stdout as lines:
        try:
            assert any("Two workers run" in line for line in lines)
            started = psutil.Process(demo.pid).children(recursive=True)
            demo.terminate()
            assert demo.wait(SECONDS) == 130  # as after Ctrl-C
        finally:
            demo.kill()
    assert len(started) >= 2
    assert all(map(ended, started))
