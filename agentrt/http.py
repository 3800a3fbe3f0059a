"""``/metrics``, ``/livez`` and ``/readyz``, from a thread of its own: they answer when the main loop hangs."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from agentrt.core.errors import ConfigurationError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

CLIENT_SECONDS = 5.0  # a client that sends or reads nothing for this long is dropped
REQUEST_SECONDS = 5.0  # and so is one whose request and answer take longer than this
MAX_CONNECTIONS = 32
ROOM_SECONDS = 0.2  # to end a connection in favour of a new one


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe found: it fails if there are ``problems``; ``facts`` go into the body beside them."""

    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


Probe = Callable[[], Health]
"""Called in a thread of the server; must not wait for the main loop or the database."""


class ProbeServer:
    """Serves probes and metrics while its ``with`` block is open.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one, see ``port``.
        metrics: WSGI application that answers ``/metrics``.
        live: Fails only when a restart of the process helps.
        ready: Fails when the worker cannot claim sessions.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, *, metrics: WSGIApplication, live: Probe, ready: Probe) -> None:
        application = _Application(metrics, {"/livez": live, "/readyz": ready})
        try:
            self._server = _Server(host, port, application)
        except (OSError, OverflowError, UnicodeError) as error:  # a name that could be nobody's is no text for IDNA
            raise ConfigurationError(
                f"cannot serve metrics and probes on {host}:{port} ({_reason(error)}): set AGENTRT_HTTP_HOST and "
                "AGENTRT_HTTP_PORT to a free address of this machine, or AGENTRT_HTTP_PORT=0 to turn them off"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="agentrt-http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Application:
    """Routes three paths; everything but ``/metrics`` answers in JSON."""

    def __init__(self, metrics: WSGIApplication, probes: Mapping[str, Probe]) -> None:
        self._metrics = metrics
        self._probes = probes

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") == "HEAD":
            return self._head(environ, start_response)
        path = environ.get("PATH_INFO", "/")
        method = environ.get("REQUEST_METHOD", "GET")
        if method != "GET":
            body: dict[str, Any] = {"problem": f"{method} is not offered: use GET"}
            return _respond(start_response, HTTPStatus.METHOD_NOT_ALLOWED, body)
        if path == "/metrics":
            return self._metrics(_with_known_formats(environ), start_response)
        if (probe := self._probes.get(path)) is not None:
            health = probe()
            status = HTTPStatus.SERVICE_UNAVAILABLE if health.problems else HTTPStatus.OK
            body = {"status": "failing" if health.problems else "ok", "problems": health.problems, **health.facts}
            return _respond(start_response, status, body)
        paths = ["/metrics", *self._probes]
        if path == "/":
            return _respond(start_response, HTTPStatus.OK, {"paths": paths})
        return _respond(start_response, HTTPStatus.NOT_FOUND, {"problem": f"there is no {path}", "paths": paths})

    def _head(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The headers of what GET answers, with the length of what it would send."""
        started: list[Any] = []

        def start(*arguments: Any) -> Callable[[bytes], object]:
            started.extend(arguments)
            return lambda _: None

        length = sum(map(len, self({**environ, "REQUEST_METHOD": "GET"}, start)))
        status, headers = started[:2]
        kept = [header for header in headers if header[0].lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(length))])
        return []


def _with_known_formats(environ: WSGIEnvironment) -> WSGIEnvironment:
    """A version that is no number breaks the client library of the metrics: such a wish gets the plain format."""
    if re.search(r"version=(?![0-9]+(\.[0-9]+)*\s*([;,]|$))", environ.get("HTTP_ACCEPT", "")):
        return {name: value for name, value in environ.items() if name != "HTTP_ACCEPT"}
    return environ


def _respond(start_response: StartResponse, status: HTTPStatus, body: Mapping[str, Any]) -> list[bytes]:
    content = (json.dumps(body, default=str) + "\n").encode()
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "no-store"),
    ]
    start_response(f"{status.value} {status.phrase}", headers)
    return [content]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def handle(self) -> None:
        """Answer one request, all of which has to come and go in time: a client that drips holds no place."""
        ending = threading.Timer(REQUEST_SECONDS, _end, [self.connection])
        ending.daemon = True
        ending.start()
        try:
            super().handle()
        finally:
            ending.cancel()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is the standard library's
        """Requests are not logged: a probe comes every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    request_queue_size = 128  # a flood fills five, as usual, at once: a probe is then heard a second later, too late
    daemon_threads = True
    block_on_close = False  # an idle client must not hold up the end of the process

    def __init__(self, host: str, port: int, application: WSGIApplication) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._served: dict[Any, None] = {}
        self._lock = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's full name that the standard library does, which may hang."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread while there is room, for which the oldest connection is dropped: who asks is answered
        within milliseconds, so that it is one that does not ask. Else drop the new one: a flood costs little."""
        if self._room.acquire(blocking=False) or self._made_room():
            with self._lock:
                self._served[request] = None
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread could be started: the process has as many as it may have
                self._left(request)
                raise
        else:
            self.shutdown_request(request)

    def _made_room(self) -> bool:
        with self._lock:
            oldest = next(iter(self._served), None)
            self._served.pop(oldest, None)
        if oldest is not None:
            _end(oldest)
        return self._room.acquire(timeout=ROOM_SECONDS)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(request)

    def _left(self, request: Any) -> None:
        with self._lock:
            self._served.pop(request, None)
        self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's problem."""


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
