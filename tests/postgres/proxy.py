"""A TCP proxy before a server, for answers that get lost: the request arrives, and the client never hears of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """``deaf``: what the server says is thrown away; from the request on that holds ``deaf_after``, if that is set.
    ``cut`` ends all connections without a word. ``swallows``: nothing gets through in either direction, and nobody is
    told, as when packets are dropped. ``refuses``: who connects is sent away at once; ``arrivals`` counts everybody."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.deaf = False
        self.swallows = False
        self.refuses = False
        self.arrivals = 0
        self.deaf_after: bytes | None = None

    async def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self.deaf, self.deaf_after = False, None

    async def serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        self.arrivals += 1
        if self.refuses:
            client_writer.transport.abort()
            return
        server_reader, server_writer = await self._reach()
        self._writers |= {client_writer, server_writer}
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump(client_reader, server_writer, answers=False))
            pumps.create_task(self._pump(server_reader, client_writer, answers=True))
        self._writers -= {client_writer, server_writer}

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._parts.query)
        if "host" in query:
            return await asyncio.open_unix_connection(f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}")
        return await asyncio.open_connection(self._parts.hostname, self._parts.port or 5432)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if not answers and self.deaf_after is not None and self.deaf_after in data:
                    self.deaf = True
                if not (self.swallows or (answers and self.deaf)):
                    writer.write(data)
        writer.transport.abort()

    def listening_on(self, port: int) -> None:
        login = self._parts.netloc.rpartition("@")[0] or "postgres"
        self.url = f"postgresql://{login}@127.0.0.1:{port}{self._parts.path}"


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of ``url``, on a port of its own."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.listening_on(server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()
        await proxy.cut()
        await asyncio.sleep(0)
