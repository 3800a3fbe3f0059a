"""How a signal ends what a command runs."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from agentrt import interrupts
from tests.commandline import SECONDS

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(
    params=[signal.SIG_IGN, signal.default_int_handler], ids=["in a shell's background", "before a terminal"]
)
def handlers(request: pytest.FixtureRequest) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, request.param)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_what_waits_and_interrupts_no_callback_of_the_loop(number):
    seen = []

    def callback() -> None:
        try:
            os.kill(os.getpid(), number)
            seen.append("whole")
        except KeyboardInterrupt:
            seen.append("interrupted")

    async def wait_for_ever() -> None:
        asyncio.get_running_loop().call_soon(callback)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    interrupts.end_in_order()
    with pytest.raises(KeyboardInterrupt):
        interrupts.run(wait_for_ever())
    assert seen == ["whole", "cancelled"]


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_comes_too_late_to_cancel_anything_is_not_lost():
    async def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    interrupts.end_in_order()
    with pytest.raises(KeyboardInterrupt):
        interrupts.run(end())


@pytest.mark.usefixtures("handlers")
def test_between_two_runs_a_signal_interrupts_at_once():
    async def answer() -> int:
        return 42

    interrupts.end_in_order()
    assert interrupts.run(answer()) == 42
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_a_parent_has_made_ignored_stays_so():
    async def survive() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 42

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.end_in_order()
    assert interrupts.run(survive()) == 42


@pytest.mark.usefixtures("before_a_terminal")
def test_ctrl_c_behind_the_end_of_a_run_interrupts_nothing_of_what_is_still_ended():
    seen = []

    async def ends_late() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("whole")

    async def leave_it_behind() -> None:
        left.append(asyncio.ensure_future(ends_late()))
        await asyncio.sleep(0)

    left: list[asyncio.Future[None]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupts.run(leave_it_behind())
    assert seen == ["whole"]


@pytest.mark.usefixtures("before_a_terminal")
def test_a_second_ctrl_c_cancels_what_the_first_one_led_to():
    seen = []

    async def never(name: str) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(name)

    async def work() -> None:
        try:
            await never("work")
        except asyncio.CancelledError:
            await never("its end")

    with pytest.raises(KeyboardInterrupt):
        interrupts.run(work())
    assert seen == ["work", "its end"]


def test_a_third_ctrl_c_ends_the_process_from_wherever_it_is():
    """An exception out of the handler has cost the loop a wake-up, for which the teardown then waited for ever."""
    script = """
import asyncio, os, signal
from agentrt import interrupts

async def stubborn():
    while True:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            print("cancelled", flush=True)

interrupts.run(stubborn())
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (130, ["cancelled", "cancelled"], "")


@pytest.mark.usefixtures("before_a_terminal")
def test_runs_of_one_runner_are_cancelled_one_by_one():
    async def wait_for_ever() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.get_running_loop().create_future()

    async def answer() -> int:
        return 42

    with asyncio.Runner() as runner:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interrupts.run(wait_for_ever(), runner=runner)
            assert interrupts.run(answer(), runner=runner) == 42
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("before_a_terminal")
def test_a_system_whose_loop_reads_no_pipe_runs_commands_too(monkeypatch):
    async def answer() -> int:
        return 42

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", asyncio.AbstractEventLoop.add_reader)
    monkeypatch.setattr(sys, "platform", "win32")
    assert interrupts.run(answer()) == 42


def test_a_system_without_hangups_can_import_the_command_line():
    program = (
        "import signal; del signal.SIGHUP; import agentrt.cli, agentrt.interrupts; agentrt.interrupts.end_in_order()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)


@contextmanager
def signalled_elsewhere() -> Iterator[threading.Event]:
    """When the event is set a signal comes that disturbs no call which the main thread waits in: as one does that comes
    an instant before the call."""
    go = threading.Event()

    def send() -> None:
        go.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    yield go
    go.set()
    sender.join()


@pytest.mark.usefixtures("before_a_terminal")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_signal_in_the_instant_in_which_the_loop_begins_to_wait_is_heard(loop):
    async def wait_for_ever(go: threading.Event) -> None:
        asyncio.get_running_loop().call_soon(go.set)
        await asyncio.get_running_loop().create_future()

    with (
        signalled_elsewhere() as go,
        asyncio.Runner(loop_factory=loop) as runner,
        pytest.raises(KeyboardInterrupt),
    ):
        interrupts.run(wait_for_ever(go), runner=runner)


@pytest.mark.usefixtures("before_a_terminal")
def test_a_signal_in_the_instant_in_which_somebody_begins_to_read_is_heard(monkeypatch):
    def instant(*files: Any) -> object:
        go.set()
        return wait(*files)

    wait = select.select
    monkeypatch.setattr(select, "select", instant)
    reading, writing = os.pipe()
    with signalled_elsewhere() as go, pytest.raises(KeyboardInterrupt):
        interrupts.wait_to_read(reading)
    os.write(writing, b"x")
    interrupts.wait_to_read(reading)
    os.close(writing)
    assert os.read(reading, 9) == b"x"
    interrupts.wait_to_read(reading)  # the end
    os.close(reading)


def signalled_behind(monkeypatch, name, number):
    """A signal as soon as this function of ``signal`` has first done what it was called for."""
    called, function = [], getattr(signal, name)

    def call(*arguments: Any, **options: Any) -> object:
        given = function(*arguments, **options)
        called.append(arguments)
        if called == [arguments]:
            signal.raise_signal(number)
        return given

    monkeypatch.setattr(signal, name, call)


@pytest.mark.usefixtures("before_a_terminal")
def test_a_signal_in_the_instant_in_which_reading_is_prepared_leaves_nothing_that_signals_are_written_to(monkeypatch):
    reading, writing = os.pipe()
    with monkeypatch.context() as instant:
        signalled_behind(instant, "set_wakeup_fd", signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.wait_to_read(reading)
    assert signal.set_wakeup_fd(-1) == -1
    os.close(reading)
    os.close(writing)


@pytest.mark.usefixtures("handlers")
def test_a_signal_in_the_instant_in_which_the_handlers_are_set_back_leaves_none_of_ours(monkeypatch):
    def hold() -> None:
        with interrupts.held():
            signalled_behind(monkeypatch, "signal", signal.SIGTERM)

    interrupts.end_in_order()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.raises(KeyboardInterrupt):
        hold()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_begins_while_signals_are_held_is_whole_before_they_interrupt(number):
    begun = []

    def begin(*, signals: int) -> None:
        with interrupts.held():
            for _ in range(signals):
                os.kill(os.getpid(), number)
            begun.append(signals)

    interrupts.end_in_order()
    for signals in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            begin(signals=signals)
    assert begun == [1]  # the second signal waits for nothing


@pytest.mark.usefixtures("before_a_terminal")
@pytest.mark.parametrize(("told", "error"), [(True, KeyboardInterrupt), (False, OSError)])
def test_what_fails_since_it_was_interrupted_itself_is_an_interruption(told, error):
    def begin() -> None:
        with interrupts.held():
            if told:
                os.kill(os.getpid(), signal.SIGINT)
            raise OSError("the child has heard it, too")

    with pytest.raises(error):
        begin()
