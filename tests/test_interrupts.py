"""How a signal ends what a command runs."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from agentrt import interrupts

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
