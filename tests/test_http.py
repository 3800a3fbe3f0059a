"""Probes and metrics over real HTTP."""

import json
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from http.client import BadStatusLine, HTTPConnection
from urllib.parse import urlsplit

import pytest

from agentrt import http
from agentrt.core.errors import ConfigurationError
from agentrt.http import MAX_CONNECTIONS, Health, ProbeServer
from agentrt.telemetry.metrics import Metrics
from tests.commandline import SECONDS


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Nobody is dropped while the machine stands still, unless the test is about that."""
    monkeypatch.setattr(http, "REQUEST_SECONDS", SECONDS)
    monkeypatch.setattr(http, "ROOM_SECONDS", SECONDS)
    monkeypatch.setattr(http._Handler, "timeout", SECONDS)


def metrics(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"agentrt_info 1\n"]


@contextmanager
def serving(*, live=Health, ready=Health, host="127.0.0.1"):
    with ProbeServer(host, 0, metrics=metrics, live=live, ready=ready) as server:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.port}"


def ask(url, method="GET"):
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        connection.request(method, parts.path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_probe_without_problems_is_green_and_tells_the_facts():
    with serving(live=lambda: Health(facts={"worker_id": "w"})) as url:
        status, body = ask(url + "/livez")
        assert (status, json.loads(body)) == (200, {"status": "ok", "problems": [], "worker_id": "w"})


def test_a_probe_with_problems_is_red_and_says_why():
    with serving(ready=lambda: Health(("the database is away",))) as url:
        status, body = ask(url + "/readyz")
        assert (status, json.loads(body)) == (503, {"status": "failing", "problems": ["the database is away"]})
        assert ask(url + "/livez")[0] == 200


def test_metrics_are_served():
    with serving() as url:
        assert ask(url + "/metrics") == (200, b"agentrt_info 1\n")


def test_an_unknown_path_is_told_the_known_ones():
    with serving() as url:
        status, body = ask(url + "/healthz")
        assert status == 404
        assert json.loads(body)["paths"] == ["/metrics", "/livez", "/readyz"]
        assert json.loads(ask(url + "/")[1]) == {"paths": ["/metrics", "/livez", "/readyz"]}


def test_only_reading_is_offered():
    with serving() as url:
        assert ask(url + "/livez", "POST")[0] == 405
        assert ask(url + "/livez", "HEAD") == (200, b"")


def test_a_port_that_is_taken_is_named_with_the_way_out():
    with serving() as url, pytest.raises(ConfigurationError) as caught:
        ProbeServer("127.0.0.1", int(url.rsplit(":", 1)[1]), metrics=metrics, live=Health, ready=Health)
    assert url.removeprefix("http://") in str(caught.value)
    assert "in use" in str(caught.value)
    assert "AGENTRT_HTTP_PORT" in str(caught.value)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigurationError, match="AGENTRT_HTTP_HOST"):
        ProbeServer("192.0.2.1", 0, metrics=metrics, live=Health, ready=Health)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "no..host", "x" * 64])
def test_a_name_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigurationError, match="AGENTRT_HTTP_HOST"):
        ProbeServer(name, 0, metrics=metrics, live=Health, ready=Health)


def test_idle_clients_do_not_keep_others_from_an_answer():
    with serving() as url:
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        idle = [socket.create_connection(address) for _ in range(MAX_CONNECTIONS - 1)]
        try:
            assert ask(url + "/livez")[0] == 200
        finally:
            for connection in idle:
                connection.close()


def test_a_probe_is_answered_at_once_however_many_clients_have_not_asked_yet():
    with serving() as url, ExitStack() as stack:
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        for _ in range(3 * MAX_CONNECTIONS):
            half_open = stack.enter_context(socket.create_connection(address, timeout=SECONDS))
            with suppress(OSError):  # dropped by now
                half_open.sendall(b"GET /li")
        assert ask(url + "/livez")[0] == 200


def test_a_flood_that_comes_faster_than_the_server_takes_it_finds_room_to_wait():
    """Whom the system turns away asks again after a second, as long as an orchestrator waits for a probe."""
    server = ProbeServer("127.0.0.1", 0, metrics=metrics, live=Health, ready=Health)
    with ExitStack() as stack:
        for _ in range(3 * MAX_CONNECTIONS):  # it takes none before it is entered
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
    with server:
        assert ask(f"http://127.0.0.1:{server.port}/livez")[0] == 200


def test_connections_for_which_no_thread_could_be_started_take_no_place(monkeypatch):
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def short_of_threads(thread):
        if thread.name.endswith("(process_request_thread)") and len(refused) < 2 * MAX_CONNECTIONS:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short_of_threads)
    with serving() as url:
        for _ in range(2 * MAX_CONNECTIONS):
            with pytest.raises((ConnectionError, BadStatusLine)):
                ask(url + "/livez")
        assert len(refused) == 2 * MAX_CONNECTIONS
        assert ask(url + "/livez")[0] == 200


def test_clients_that_drip_are_dropped_when_the_time_for_a_request_is_over(monkeypatch):
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.3)
    with serving() as url:
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        dripping = [socket.create_connection(address, timeout=SECONDS) for _ in range(MAX_CONNECTIONS)]
        for connection in dripping:
            connection.sendall(b"GET /livez HTTP/1.0\r\nX: a")
        for connection in dripping:
            with connection, suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_the_metrics_library_itself_answers_whatever_format_is_wished():
    with ProbeServer("127.0.0.1", 0, metrics=Metrics("1").application(), live=Health, ready=Health) as server:
        for accept in (
            "application/openmetrics-text; version=abc",
            "text/plain;version=x",
            "*/*",
            "a/b; version=1.0.0",
        ):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
            connection.request("GET", "/metrics", headers={"Accept": accept})
            assert connection.getresponse().status == 200
            connection.close()


@pytest.mark.parametrize("path", ["/livez", "/metrics", "/nowhere"])
def test_head_tells_the_length_and_sends_no_body(path):
    with serving() as url:
        length = len(ask(url + path)[1])
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=SECONDS) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
            answer = connection.makefile("rb").read()
    head, body = answer.split(b"\r\n\r\n")
    assert body == b""
    assert f"Content-Length: {length}".encode() in head


def test_a_slow_probe_does_not_hold_up_the_others():
    release = threading.Event()
    asked = threading.Event()

    def slow():
        asked.set()
        release.wait(SECONDS)
        return Health()

    with serving(ready=slow) as url:
        thread = threading.Thread(target=ask, args=(url + "/readyz",))
        thread.start()
        assert asked.wait(SECONDS)
        assert ask(url + "/livez")[0] == 200
        release.set()
        thread.join()


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6_addresses_work():
    try:
        with serving(host="::1") as url:
            assert ask(url + "/livez")[0] == 200
    except ConfigurationError as error:
        if "Cannot assign" not in str(error):
            raise
        pytest.skip("this machine has no IPv6 loopback")
