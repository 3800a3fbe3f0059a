"""As much HTTP/1.1 as a provider needs, by hand: the faults below are exact only without a framework in between."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`headers` has lower-case names; `path` has no query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Gone(Exception):
    """The client closed the connection, or a fault did."""


class Connection:
    """One client connection: requests in, whole or chunked answers out, and the faults in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> HttpRequest | None:
        """The next request; None when the client has no more."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            return HttpRequest(method, target.partition("?")[0], headers, await self._body(headers))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return body

    async def respond(
        self, status: int, body: bytes, *, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        await self._send(
            self._head(status, {"content-type": content_type, "content-length": str(len(body)), **(headers or {})})
        )
        await self._send(body)

    async def start(self, *, headers: Mapping[str, str] | None = None) -> None:
        """The head of an event stream."""
        fixed = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "transfer-encoding": "chunked",
        }
        await self._send(self._head(200, {**fixed, **(headers or {})}))

    async def chunk(self, data: bytes) -> None:
        await self._send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        """The regular end of a chunked body."""
        await self._send(b"0\r\n\r\n")

    async def _send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise Gone from error
        if self._reader.at_eof():
            raise Gone

    @staticmethod
    def _head(status: int, headers: Mapping[str, str]) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def while_connected(self, waiting: Awaitable[object]) -> None:
        """Wait, unless the client goes away first. Raises: Gone."""
        waited = asyncio.ensure_future(waiting)
        left = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({waited, left}, return_when=asyncio.FIRST_COMPLETED)
            if not waited.done():
                raise Gone
            waited.result()
        except ConnectionError as error:
            raise Gone from error
        finally:
            for task in (waited, left):
                task.cancel()
            await asyncio.gather(waited, left, return_exceptions=True)

    def reset(self) -> None:
        """A TCP reset: closing with a linger time of zero sends no FIN."""
        held = self._writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
