"""Real worker processes for system tests: started, killed, stopped and continued as an operator or a kernel would."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.databases import CHECKOUT

CALM = {"heartbeat_seconds": 0.5, "stop_seconds": 2, "lease_seconds": 30, "poll_seconds": 1}
"""What workers have unless a test says otherwise. Who is killed is replaced after some heartbeats, since its liveness
lock is free; but nobody is fenced or declared dead because the machine kept it waiting. Only a test that waits for the
end of a lease has a shorter one."""

MOST_SECONDS = 120.0
"""For whatever is waited for; it only ends a test that would never end, on however slow a machine."""


@dataclass
class Worker:
    """One worker process and where it logs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: drain."""
        self.process.terminate()

    async def exit_code(self) -> int:
        """Wait for the process to end, in some time."""
        async with asyncio.timeout(MOST_SECONDS):
            return await self.exited()

    async def exited(self) -> int:
        """Wait for the process to end, without a thread: one may wait for ever, and be cancelled."""
        while (code := self.process.poll()) is None:  # noqa: ASYNC110 - a child tells nobody
            await asyncio.sleep(0.05)
        return code

    def logged(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged as JSON; a line that is still being written is not among them."""
        whole, _, _ = self.logged().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    async def says(self, words: str) -> None:
        """Until it has logged the words: its log is written beside its work, and behind it."""
        async with asyncio.timeout(MOST_SECONDS):
            while words not in self.logged():  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0.05)


@dataclass
class Fleet:
    """Workers on one database. ``env`` goes to the agents' code, ``settings`` become AGENTRT_ variables."""

    url: str
    agents: str
    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)

    def start(self, name: str | None = None, **settings: object) -> Worker:
        """Start one more worker; it is up when its row is there (``wait_for_workers``)."""
        name = name or f"worker-{len(self.workers) + 1}"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AGENTRT_")}
        ours = {"http_port": 0, "log_format": "json", "worker_name": name, "agents": self.agents}
        given = {**CALM, **ours, **self.settings, **settings, "database_url": self.url}
        environ |= {f"AGENTRT_{key.upper()}": str(value) for key, value in given.items()} | self.env
        log = self.folder / f"{name}-{len(self.workers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "agentrt", "worker"],
                cwd=CHECKOUT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        worker = Worker(name, process, log)
        self.workers.append(worker)
        return worker

    def stop_all(self) -> None:
        """End whatever still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()


@asynccontextmanager
async def fleet(
    url: str, agents: str, folder: Path, *, env: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[Fleet]:
    """A fleet without workers yet; all are ended when the block is left."""
    running = Fleet(url, agents, folder, settings=settings, env=env or {})
    try:
        yield running
    finally:
        running.stop_all()


async def until(
    connection: asyncpg.Connection, query: str, *arguments: object, want: object = True, seconds: float = MOST_SECONDS
) -> None:
    """Wait until a query's first value is ``want``; the bound only ends a test that would never end."""
    value: object = None
    try:
        async with asyncio.timeout(seconds):
            while (value := await connection.fetchval(query, *arguments)) != want:  # noqa: ASYNC110 - a database tells nobody
                await asyncio.sleep(0.03)
    except TimeoutError:
        raise AssertionError(
            f"{query} is {value!r} after {seconds} s, not {want!r}; {await _situation(connection)}"
        ) from None


async def _situation(connection: asyncpg.Connection) -> str:
    """What a reader of a failure asks first: the workers, and the sessions that are not completed."""
    workers = await connection.fetch(
        "select name, state, lease_expires_at - clock_timestamp() as lease from agentrt.workers order by started_at"
    )
    sessions = await connection.fetch(
        "select s.id, s.agent, s.status, s.suspension, s.attempt, s.last_seq, w.name as owner from agentrt.sessions s "
        "left join agentrt.workers w on w.id = s.lease_owner where s.status <> 'completed' limit 10"
    )
    return f"workers: {[tuple(row) for row in workers]}; not completed: {[tuple(row) for row in sessions]}"


async def wait_for_workers(connection: asyncpg.Connection, count: int) -> None:
    """Until that many workers are alive."""
    await until(connection, "select count(*) from agentrt.workers where state = 'alive'", want=count)
