"""The demo's course: a database, two workers, one session, one SIGKILL, one takeover, a summary.

Everything is real: PostgreSQL 18 in a temporary folder, two worker processes as an operator would start them, and the
journal read by the same client that users have.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentrt import interrupts
from agentrt.app import connect, embedded_server, migrate
from agentrt.client import Client
from agentrt.core.codec import encode
from agentrt.core.errors import AgentrtError, ConfigurationError
from agentrt.core.journal import TERMINAL, Entry, SessionClaimed, SessionSuspended
from agentrt.core.session import Seq, SessionId, Status
from agentrt.demo.report import Report
from agentrt.demo.show import Show
from agentrt.minder import minded

WORKERS = ("worker-1", "worker-2")
START_SECONDS = 120.0
TIME_LIMIT_SECONDS = 300.0  # a scripted run takes some fifteen seconds; a real model may think

# A lease so short that the demo does not depend on the fast path of a takeover, and so long that a machine which stands
# still for some seconds does not cost both workers their lives; see AGENTRT_LEASE_SECONDS.
WORKER_SETTINGS = {
    "AGENTRT_AGENTS": "agentrt.demo.agent",
    "AGENTRT_SLOTS": "4",
    "AGENTRT_HEARTBEAT_SECONDS": "0.5",
    "AGENTRT_STOP_SECONDS": "1",
    "AGENTRT_LEASE_SECONDS": "10",
    "AGENTRT_HTTP_PORT": "0",
    "AGENTRT_LOG_LEVEL": "error",
}


@dataclass(slots=True, kw_only=True)
class Summary:
    """What the demo found. ``takeover_seconds`` runs from the SIGKILL to the next owner's ``session_claimed``;
    ``entries_lost`` counts entries that were seen live and later were absent or changed, and gaps; ``effects_doubled``
    the report rows above one per call."""

    status: str = "not_finished"
    killed: str | None = None
    takeover_seconds: float | None = None
    entries: int = 0
    entries_lost: int = 0
    effects_doubled: int = 0

    @property
    def passed(self) -> bool:
        return (
            self.status == Status.COMPLETED
            and self.killed is not None
            and self.takeover_seconds is not None
            and self.entries_lost == 0
            and self.effects_doubled == 0
        )


@dataclass(slots=True)
class _Seen:
    """What the follower saw, and when the kill was."""

    hashes: dict[int, str] = field(default_factory=dict)
    killed_at: float | None = None


def run(*, folder: Path, model: str | None, as_json: bool) -> bool:
    """Run the demo and print it; True if the session completed, nothing was lost and nothing was doubled.

    Raises:
        ConfigurationError: the folder holds no Python file, a worker does not start, or the embedded PostgreSQL is
            not installed.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise ConfigurationError(f"{what}: name a folder that holds Python files with --folder")
    if next(folder.rglob("*.py"), None) is None:
        raise ConfigurationError(f"{folder} holds no Python file: name another folder with --folder")
    show = Show(quiet=as_json)
    show.say("Starting PostgreSQL 18 in a temporary folder …")
    with embedded_server() as url, tempfile.TemporaryDirectory(prefix="agentrt-demo-") as temporary:
        markers = Path(temporary) / "inside"
        markers.mkdir()
        interrupts.run(_prepare(url))
        with _workers(url, model=model) as processes:
            summary = interrupts.run(_course(url, folder, markers, processes=processes, show=show))
    show.end(summary)
    if as_json:
        print(json.dumps(asdict(summary)))  # noqa: T201 - the one line that --json promises
    return summary.passed


async def _prepare(url: str) -> None:
    await migrate(url)
    await Report(url).create()


@contextmanager
def _workers(url: str, *, model: str | None) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    """Two worker processes by name, ended when the block is left."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRT_")}
    settings = inherited | WORKER_SETTINGS | {"AGENTRT_DATABASE_URL": url} | ({"DEMO_MODEL": model} if model else {})
    command = [sys.executable, "-m", "agentrt", "worker"]
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as minders:
        try:
            with interrupts.held():
                for name in WORKERS:
                    environ = settings | {"AGENTRT_WORKER_NAME": name}
                    processes[name] = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
                    minders.enter_context(minded(processes[name].pid, signal.SIGTERM))
            yield processes
        finally:
            _end(processes.values())


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    try:
        with interrupts.held():
            for process in processes:
                process.terminate()
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
    finally:  # or whoever waits insists
        with interrupts.held():
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


async def _course(
    url: str, folder: Path, markers: Path, *, processes: Mapping[str, subprocess.Popen[bytes]], show: Show
) -> Summary:
    """One session from its creation to the figures."""
    summary, seen = Summary(), _Seen()
    workers = {process.pid: name for name, process in processes.items()}
    async with connect(url) as client:
        await introduce(client, processes, show=show)
        session_id = await client.create(
            "auditor",
            f"Audit the Python files in {folder}.",
            labels={"folder": str(folder), "markers": str(markers)},
        )
        show.say(f"Session {session_id}\n")
        show.heading()
        await _watch(client, session_id, workers, markers, show=show, seen=seen, summary=summary)
        await _check(client, Report(url), session_id, seen=seen, summary=summary)
    return summary


async def introduce(client: Client, processes: Mapping[str, subprocess.Popen[bytes]], *, show: Show) -> None:
    """Wait until both workers have registered, and learn their ids."""
    until = time.monotonic() + START_SECONDS
    while len(registered := await client.workers()) < len(processes):
        for name, process in processes.items():
            if (code := process.poll()) is not None:
                raise ConfigurationError(f"{name} has ended with exit code {code}: what it printed above says why")
        if time.monotonic() > until:
            raise ConfigurationError(
                f"{len(processes) - len(registered)} of {len(processes)} workers did not start within "
                f"{START_SECONDS:.0f} s: run the demo again when the machine is less busy"
            )
        await asyncio.sleep(0.05)
    show.know({worker.id: worker.name for worker in registered})
    show.say(f"Two workers run: {', '.join(f'{name} (pid {process.pid})' for name, process in processes.items())}.")


async def _watch(
    client: Client,
    session_id: SessionId,
    workers: Mapping[int, str],
    markers: Path,
    *,
    show: Show,
    seen: _Seen,
    summary: Summary,
) -> None:
    """Show the journal as it grows until the session ends, and kill the working process inside a tool."""
    try:
        async with asyncio.timeout(TIME_LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
            killer = tasks.create_task(_kill_inside_a_tool(workers, markers, show=show, seen=seen, summary=summary))
            async for entry in client.follow(session_id):
                _note(entry, seen=seen, summary=summary)
                show.entry(entry)
                if isinstance(entry.data, (*TERMINAL, SessionSuspended)):
                    break
            killer.cancel()
    except TimeoutError:
        show.say(f"The session did not end within {TIME_LIMIT_SECONDS:.0f} s.")


async def _kill_inside_a_tool(
    workers: Mapping[int, str], markers: Path, *, show: Show, seen: _Seen, summary: Summary
) -> None:
    """SIGKILL the worker that says it stands between a report row and its commit."""
    while not (inside := os.listdir(markers)):  # noqa: ASYNC110, PTH208 - a glance at a folder, which tells nobody
        await asyncio.sleep(0.02)
    pid = int(inside[0])
    seen.killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    os.rename(markers, markers.with_name("killed"))  # noqa: PTH104 - the tool looks for the folder: no second kill
    summary.killed = workers[pid]
    show.kill(summary.killed, pid)


def _note(entry: Entry, *, seen: _Seen, summary: Summary) -> None:
    seen.hashes[entry.seq] = _hash(entry)
    if (
        summary.takeover_seconds is None
        and seen.killed_at is not None
        and isinstance(entry.data, SessionClaimed)
        and entry.created_at is not None
        and entry.created_at.timestamp() > seen.killed_at
    ):
        summary.takeover_seconds = round(entry.created_at.timestamp() - seen.killed_at, 2)


def _hash(entry: Entry) -> str:
    text = json.dumps([entry.seq, entry.fencing_token, str(entry.worker_id), encode(entry.data)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


async def _check(client: Client, report: Report, session_id: SessionId, *, seen: _Seen, summary: Summary) -> None:
    """Compare what was seen live with what is stored, and count the report's rows."""
    try:
        summary.status = (await client.get(session_id)).status
        kept = [entry async for entry in client.read(session_id, after_seq=Seq(0))]
    except AgentrtError as error:
        summary.status = f"unreadable: {error}"
        return
    stored = {entry.seq: _hash(entry) for entry in kept}
    gaps = len(set(range(1, max(stored, default=0) + 1)) - set(stored))
    changed = sum(stored.get(Seq(seq)) != digest for seq, digest in seen.hashes.items())
    summary.entries, summary.entries_lost = len(kept), gaps + changed
    summary.effects_doubled = await report.doubled()
