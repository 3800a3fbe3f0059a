"""What systemd does with the unit, done by hand: its command, its environment file, its socket, its signals."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.deploy import unit
from tests.history import assert_sound
from tests.system.fleet import MOST_SECONDS, Fleet, until, wait_for_workers
from tests.system.gates import Gates
from tests.system.load import HARMED, hold_up, under_load

pytestmark = pytest.mark.system

AGENTS = CHECKOUT / "tests" / "system" / "agents.py"
DRAIN_SECONDS, DRAIN_TOOL_SECONDS = 2, 4  # the unit's stop timeout is for 25 and 300


class Notified:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        # Always: a queue that is full, after ten datagrams, takes no more, and nobody is told.
        asyncio.get_running_loop().add_reader(self._socket, self.hear)
        self._changed = asyncio.Event()

    async def until(self, word: str) -> None:
        """Until the worker has sent a line, as systemd waits for READY=1."""
        async with asyncio.timeout(MOST_SECONDS):
            while word not in self.heard:
                self._changed.clear()
                await self._changed.wait()

    def hear(self) -> None:
        """Hear what was sent so far."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                self._changed.set()
                return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


@pytest.fixture
async def notified(tmp_path: Path) -> AsyncIterator[Notified]:
    listening = Notified(tmp_path / "notify")
    yield listening
    listening.close()


def environment(folder: Path, url: str, gates: Gates, **more: object) -> dict[str, str]:
    """The unit's environment file, as an operator would edit the example, read back as systemd reads it."""
    edited = {
        "AGENTRT_DATABASE_URL": f'"{url}"',
        "AGENTRT_AGENTS": f"{CHECKOUT}/agentrt/demo/hello.py,{AGENTS}",
        "AGENTRT_HTTP_PORT": 0,
    }
    lines = []
    for line in unit.EXAMPLE.read_text(encoding="utf-8").splitlines():
        name = line.partition("=")[0]
        lines.append(f"{name}={edited.pop(name)}" if name in edited else line)
    assert not edited, "the example has other settings now"
    lines += [f"{name}={value}" for name, value in ({"GATES": gates.folder} | more).items()]
    file = folder / "shop.env"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return unit.environment(file.read_text(encoding="utf-8"))


def start(environ: dict[str, str], folder: Path, *, notify: Path) -> subprocess.Popen[bytes]:
    """ExecStart in an environment that holds nothing but what systemd and the file put there."""
    given = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": "60000000"}
    with (folder / "journal.log").open("ab") as log:
        return subprocess.Popen(
            unit.command(str(Path(sys.executable).parent)),
            cwd=folder,
            env=given | environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


async def stop(process: subprocess.Popen[bytes]) -> float:
    """systemctl stop: SIGTERM, and the seconds until the end."""
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait) == 0
    return time.monotonic() - begun


async def test_a_unit_that_is_stopped_under_load_drains_in_its_time_and_harms_no_session(
    workers: Fleet, notified: Notified, gates: Gates, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    drain = {"AGENTRT_DRAIN_SECONDS": DRAIN_SECONDS, "AGENTRT_DRAIN_TOOL_SECONDS": DRAIN_TOOL_SECONDS}
    process = start(environment(tmp_path, workers.url, gates, **drain), tmp_path, notify=notified.path)
    try:
        await notified.until("READY=1")
        await notified.until("WATCHDOG=1")
        await hold_up(connection, gates)
        async with under_load(workers.url):
            await until(connection, "select count(*) >= 50 from agentrt.sessions where status = 'completed'")
            took = await stop(process)
    finally:
        process.kill()
        process.wait()
    notified.hear()
    assert notified.heard.index("READY=1") < notified.heard.index("STOPPING=1")
    [timeout] = unit.service()["TimeoutStopSec"]
    assert took < float(timeout)
    assert took < max(DRAIN_SECONDS, DRAIN_TOOL_SECONDS) + 15, "the unit's margin is not enough"
    assert await connection.fetchval(HARMED) == 0
    gates.open("model")
    gates.open("tool")
    workers.start()
    await until(connection, "select count(*) from agentrt.sessions where status <> 'completed'", want=0)
    assert await connection.fetchval(HARMED) == 0
    await assert_sound(connection)


async def test_a_socket_that_is_gone_harms_nothing(
    gates: Gates, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    process = start(environment(tmp_path, database_url, gates), tmp_path, notify=tmp_path / "gone")
    try:
        await wait_for_workers(connection, 1)
        await connection.execute("select agentrt.create_session('hello', 'good morning')")
        await until(connection, "select count(*) from agentrt.sessions where status = 'completed'", want=1)
        await stop(process)
    finally:
        process.kill()
        process.wait()
    assert await connection.fetchval("select state from agentrt.workers") == "stopped"
