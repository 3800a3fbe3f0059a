"""A real pgbouncer in transaction mode before a test's database."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from tests.system.scraping import free_port

PROGRAM = shutil.which("pgbouncer")


def _configuration(url: str, port: int, folder: Path) -> str:
    """One database, by its own name; the client's user is nobody's business."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = query["host"][0] if "host" in query else parts.hostname or "127.0.0.1"
    server_port = query.get("port", [str(parts.port or 5432)])[0]
    database = parts.path.lstrip("/")
    password = f" password={parts.password}" if parts.password else ""
    return f"""
[databases]
{database} = host={host} port={server_port} dbname={database} user={parts.username or "postgres"}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
pidfile = {folder}/pgbouncer.pid
"""


def _start(url: str, port: int, place: Path) -> subprocess.Popen[bytes]:
    """It refuses to run as root, so it runs as whom the server's folder is."""
    assert PROGRAM is not None
    place.mkdir()
    file = place / "pgbouncer.ini"
    file.write_text(_configuration(url, port, place))
    user = None
    if os.geteuid() == 0:
        socket_folder = Path(parse_qs(urlsplit(url).query).get("host", ["/nonexistent"])[0])
        user = socket_folder.stat().st_uid if socket_folder.exists() else 65534
        for path in (place, file):
            os.chown(path, user, -1)
        for parent in list(place.parents)[:-1]:  # pytest's folders are for their owner alone
            parent.chmod(parent.stat().st_mode | 0o011)
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [PROGRAM, file], stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, start_new_session=True
        )


@asynccontextmanager
async def pooled(url: str, folder: Path) -> AsyncIterator[str]:
    """The URL of a pooler before ``url``."""
    port = free_port()
    process = _start(url, port, folder / "pgbouncer")
    pooled_url = f"postgresql://anybody@127.0.0.1:{port}{urlsplit(url).path}"
    try:
        await _answers(pooled_url, process)
        yield pooled_url
    finally:
        process.kill()
        process.wait()


async def _answers(url: str, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                connection = await asyncpg.connect(url, statement_cache_size=0)
            except OSError:
                assert process.poll() is None, "pgbouncer ended; see its log"
                await asyncio.sleep(0.05)
            else:
                await connection.close()
                return
