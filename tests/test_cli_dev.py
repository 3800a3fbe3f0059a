"""``agentrt dev`` and ``agentrt demo`` end together with what they started, however they end."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from agentrt.cli.dev import _end, _Supervisor, only_dev_in, with_database
from agentrt.core.errors import ConfigurationError
from agentrt.demo.run import _end as end_workers
from agentrt.demo.run import _workers
from agentrt.postgres import embedded
from agentrt.settings import Settings
from tests.commandline import SECONDS, assert_one_sentence, environment, run
from tests.servers import ended, new_folder
from tests.workerprocess import write_agents

pytestmark = pytest.mark.one_server


def test_a_file_of_agents_that_does_not_exist_is_named_before_anything_is_started(tmp_path):
    folder = tmp_path / "data"
    ran = run("dev", "--agents", str(tmp_path / "nofile.py"), "--folder", str(folder))
    assert_one_sentence(ran, code=2, names=("nofile.py", "there is no such file"))
    assert not folder.exists()


def test_a_second_dev_in_the_same_folder_is_refused_until_the_first_has_ended(capsys):
    folder = new_folder()
    try:
        with with_database(Settings(), folder):
            capsys.readouterr()
            with (
                pytest.raises(
                    ConfigurationError, match=rf"another agentrt dev runs in {folder}: .*--folder.*{folder}/url"
                ),
                with_database(Settings(), folder),
            ):
                pass
            assert capsys.readouterr().out == ""
        with only_dev_in(folder):
            pass
    finally:
        shutil.rmtree(folder)


def interrupted_behind(monkeypatch, module, name):
    """A Ctrl-C as soon as this function of the module has first given something; all that it gave."""
    given, function = [], getattr(module, name)

    def call(*arguments, **options):
        given.append(function(*arguments, **options))
        if len(given) == 1:
            signal.raise_signal(signal.SIGINT)
        return given[-1]

    monkeypatch.setattr(module, name, call)
    return given


@pytest.mark.usefixtures("before_a_terminal")
def test_ctrl_c_in_the_instant_in_which_dev_has_started_its_worker_ends_that_too(tmp_path, monkeypatch):
    started = interrupted_behind(monkeypatch, subprocess, "Popen")
    environ = environment(url="postgresql://127.0.0.1:1/nowhere", http_port="0", log_level="error")
    assert _Supervisor((write_agents(tmp_path),), environ, own=None).run() == 0
    assert [process.poll() is None for process in started] == [False, False]  # the worker, and who minds it


@pytest.mark.usefixtures("before_a_terminal")
@pytest.mark.parametrize("end", [_end, lambda process: end_workers([process])], ids=["dev", "demo"])
def test_a_worker_that_is_not_waited_for_is_killed_before_its_database_is_stopped(monkeypatch, end):
    deaf = subprocess.Popen(["sh", "-c", 'trap "" TERM; echo deaf; exec sleep 600'], stdout=subprocess.PIPE)
    with deaf:
        try:
            assert deaf.stdout is not None
            assert deaf.stdout.readline() == b"deaf\n"

            def two_more_ctrl_c():
                for _ in range(2):
                    signal.raise_signal(signal.SIGINT)

            monkeypatch.setattr(deaf, "terminate", two_more_ctrl_c)
            with pytest.raises(KeyboardInterrupt):
                end(deaf)
            assert deaf.returncode == -signal.SIGKILL
        finally:
            deaf.kill()


def test_ctrl_c_in_the_instant_in_which_the_demo_has_started_a_worker_ends_that_too(monkeypatch):
    started = interrupted_behind(monkeypatch, subprocess, "Popen")
    with pytest.raises(KeyboardInterrupt), _workers("postgresql://127.0.0.1:1/nowhere", model=None):
        pass
    assert [process.poll() is None for process in started] == [False] * 4


def test_ctrl_c_in_the_instant_in_which_a_server_has_started_stops_it(monkeypatch):
    data = new_folder() / "data"
    started = interrupted_behind(monkeypatch, embedded, "start")
    try:
        with pytest.raises(KeyboardInterrupt), embedded.running(data):
            pass
        assert len(started) == 1
        assert not (data / "postmaster.pid").exists()
    finally:
        shutil.rmtree(data.parent)


@dataclass
class Dev:
    process: subprocess.Popen[str]
    folder: Path
    worker: psutil.Process
    postgres: psutil.Process

    def end(self) -> tuple[int, str]:
        """Wait for the end of all three; the exit code, and what was told from here on."""
        _, told = self.process.communicate(timeout=SECONDS)
        assert all(map(ended, (self.worker, self.postgres)))
        return self.process.returncode, told


@contextmanager
def dev(folder: Path) -> Iterator[Dev]:
    """A ``dev`` whose worker runs, with SIGINT ignored as a shell starts what stands in its background."""
    data = new_folder()
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh",
         sys.executable, "-u", "-m", "agentrt", "dev", "--agents", write_agents(folder), "--folder", str(data)],
        env=environment(http_port="0", log_format="json"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    started: list[psutil.Process] = []
    try:
        assert process.stderr is not None
        assert any("worker.started" in line for line in process.stderr)
        (worker,) = (each for each in psutil.Process(process.pid).children() if "worker" in each.cmdline())
        postgres = psutil.Process(int((data / "postgres" / "postmaster.pid").read_text().split()[0]))
        started = [worker, postgres]
        yield Dev(process, data, worker, postgres)
    finally:
        process.kill()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate()
        shutil.rmtree(data, ignore_errors=True)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_dev_in_a_shells_background_ends_by_a_signal_with_all_that_it_started(tmp_path, number):
    with dev(tmp_path) as running:
        running.process.send_signal(signal.SIGINT)  # is ignored, and stays so
        running.process.send_signal(number)
        code, told = running.end()
    assert code == 0
    assert "worker.stopped" in told
    assert "Stopped." in told


@pytest.mark.system
def test_what_a_dev_has_started_ends_when_it_is_killed(tmp_path):
    with dev(tmp_path) as running:
        running.process.kill()
        running.process.wait()
        with only_dev_in(running.folder):  # is nobody's, though the worker is still ending
            pass
        code, told = running.end()
    assert code == -signal.SIGKILL
    assert "worker.stopped" in told


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_dev_ends_with_one_sentence_when_its_own_postgres_does(tmp_path, number):
    with dev(tmp_path) as running:
        running.postgres.send_signal(number)
        code, told = running.end()
    assert code == 1
    sentence, *more = [line for line in told.splitlines() if line.startswith("error: ")]
    assert more == []
    assert "has ended: run agentrt dev again" in sentence


@pytest.mark.system
def test_what_a_demo_has_started_ends_when_it_is_killed():
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "demo"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    started: list[psutil.Process] = []
    assert demo.stdout is not None
    with demo, demo.stdout as lines:
        try:
            assert any("Two workers run" in line for line in lines)
            started = [each for each in psutil.Process(demo.pid).children() if "worker" in each.cmdline()]
        finally:
            demo.kill()
    assert len(started) == 2
    assert all(map(ended, started))
