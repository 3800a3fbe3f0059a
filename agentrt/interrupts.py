"""Signals that end a command as Ctrl-C does, so that the servers and processes which it has started end, too."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def end_in_order() -> None:
    """Let SIGTERM, and a terminal that is closed, raise KeyboardInterrupt; inside of ``run`` they cancel instead."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it runs in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, or cancel it at the signals of ``end_in_order``.

    asyncio does this for Ctrl-C alone. An exception out of a signal's handler could hit the C code of the database's
    driver, which ends in a segmentation fault or in an answer that never comes.

    Raises:
        KeyboardInterrupt: a signal came; the coroutine has ended.
    """
    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is _as_ctrl_c]
    told = False

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(coroutine)

        def cancel(*_: object) -> None:
            nonlocal told
            told = True
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        for number in heard:
            signal.signal(number, cancel)
        return await task

    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        coroutine.close()  # it has not begun if Ctrl-C was quicker
        for number in heard:
            signal.signal(number, _as_ctrl_c)
    if told:  # too late to cancel anything
        raise KeyboardInterrupt
    return result
