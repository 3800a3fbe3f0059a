"""A PostgreSQL server of a test's own, for what no other test could bear: stopped at once, or set up differently."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agentrt.postgres import embedded
from agentrt.postgres.migrate import migrate
from tests import servers


@dataclass
class OwnServer:
    """``url`` stays the same across a restart."""

    folder: Path
    settings: Mapping[str, str | int]
    url: str = ""
    _running: list[embedded.EmbeddedServer] = field(default_factory=list)

    async def start(self) -> None:
        server = await asyncio.to_thread(embedded.start, self.folder / "data", settings=self.settings)
        self._running = [server]
        self.url = server.url

    async def stop_immediately(self) -> None:
        """As ``pg_ctl stop -m immediate``: no session is ended in order, and the next start recovers."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGQUIT)
        assert await asyncio.to_thread(servers.ended, process)

    async def stop(self) -> None:
        for server in self._running:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def own_server(**settings: str | int) -> AsyncIterator[OwnServer]:
    """A running server with a migrated database."""
    folder = servers.new_folder()
    server = OwnServer(folder, servers.SETTINGS | settings)
    try:
        await server.start()
        await migrate(server.url)
        yield server
    finally:
        await server.stop()
        shutil.rmtree(folder, ignore_errors=True)
