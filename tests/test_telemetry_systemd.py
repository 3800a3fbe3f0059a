"""What systemd is told, over a real socket."""

import socket
from uuid import UUID, uuid4

import pytest

from agentrt.core import events
from agentrt.core.session import WorkerId
from agentrt.telemetry.systemd import SystemdNotifier
from tests.commandline import SECONDS

WORKER = WorkerId(UUID(int=1))
STARTED = events.WorkerStarted(worker_id=WORKER, name="w", slots=2, agents=("a", "b"), queues=("default",))
DRAINING = events.WorkerDraining(worker_id=WORKER, reason="SIGTERM", sessions=1)


@pytest.fixture
def told(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(0)

        def read():
            messages = []
            while True:
                try:
                    messages.append(receiver.recv(4096).decode())
                except BlockingIOError:
                    return messages

        yield read


def test_start_and_drain_are_told(tmp_path, told):
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    notifier(STARTED)
    notifier(DRAINING)
    assert [message.splitlines()[0] for message in told()] == ["READY=1", "STOPPING=1"]


def test_the_watchdog_is_fed_by_an_answering_main_loop_once_a_second(tmp_path, told):
    now = 100.0
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}, clock=lambda: now)
    for now in (100.0, 100.5, 100.9, 101.0, 101.9):  # noqa: B007 - the clock reads it
        notifier(events.LoopLagged(seconds=0.001))
    assert told() == ["WATCHDOG=1", "WATCHDOG=1"]


def test_outside_systemd_nothing_happens():
    SystemdNotifier({})(STARTED)


def test_a_socket_that_is_gone_is_no_error(tmp_path):
    """Case: NOTIFY_SOCKET that is gone."""
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})(STARTED)


def test_a_socket_with_an_abstract_name_is_reached():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"agentrt-test-{uuid4()}"  # one space of names for the whole machine
        receiver.bind(f"\0{name}")
        receiver.settimeout(SECONDS)
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"})(STARTED)
        assert receiver.recv(4096).startswith(b"READY=1")
