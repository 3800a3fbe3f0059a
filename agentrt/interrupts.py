"""Signals that end a command as Ctrl-C does, so that the servers and processes which it has started end, too."""

from __future__ import annotations

import asyncio
import inspect
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_ENDING = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows has one
INTERRUPTED = 130
"""Exit code of what a signal ended."""

_SIGNALS = (*_ENDING, signal.SIGINT)


def end_in_order() -> None:
    """Let SIGTERM, and a terminal that is closed, raise KeyboardInterrupt; inside of ``run`` they cancel instead."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it runs in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def run(coroutine: Coroutine[Any, Any, T], *, runner: asyncio.Runner | None = None) -> T:
    """Run a coroutine to its end, or cancel it at Ctrl-C and the signals of ``end_in_order``; a third one ends the
    process at once, and what it has started is ended by its minders.

    asyncio's own way is for Ctrl-C alone, and raises an exception in the middle of the loop when one more comes, or
    the first after the coroutine's end. That could hit the C code of the database's driver, or the loop's own
    book-keeping, which ends in a segmentation fault or in an answer that never comes.

    Raises:
        KeyboardInterrupt: a signal came; the coroutine has ended.
    """
    told = 0
    task: asyncio.Task[Any] | None = None

    def cancel(*_: object) -> None:
        nonlocal told
        told += 1
        if told > 2:
            os._exit(INTERRUPTED)
        if task is not None and not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def cancellable() -> T:
        nonlocal task
        task = asyncio.current_task()
        if told and task is not None:
            task.cancel()
        with _woken(asyncio.get_running_loop()):
            return await coroutine

    try:
        with _instead(cancel):
            result = asyncio.run(cancellable()) if runner is None else runner.run(cancellable())
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # a signal was quicker
            coroutine.close()
    if told:  # too late to cancel anything
        raise KeyboardInterrupt
    return result


@contextmanager
def held() -> Iterator[None]:
    """Let what begins in the block be whole before a signal interrupts: a process is known to who must end it. A
    second one interrupts at once.

    Raises:
        KeyboardInterrupt: a signal came; the block has ended, or has failed since others heard the signal as well.
    """
    told = 0

    def hold(*_: object) -> None:
        nonlocal told
        told += 1
        if told > 1:
            raise KeyboardInterrupt

    with _instead(hold):
        try:
            yield
        except Exception:
            if not told:
                raise
    if told:
        raise KeyboardInterrupt


def wait_to_read(file: int) -> None:
    """Wait until there is something to read, or its end.

    A signal interrupts at once. ``read`` itself does not hear the one that comes in the instant in which it begins.

    Raises:
        KeyboardInterrupt: a signal came; nothing was read.
    """
    told = False

    def interrupt(*_: object) -> None:  # raises nothing: the pipe would stay where signals are written to
        nonlocal told
        told = True

    with _instead(interrupt), _told_by_a_pipe() as pipe:
        while not told and file not in select.select([file, pipe], [], [])[0]:
            os.read(pipe, 4096)
    if told:
        raise KeyboardInterrupt


@contextmanager
def _instead(handler: Callable[..., object]) -> Iterator[None]:
    """Call ``handler`` at the signals that would raise KeyboardInterrupt; only the main thread hears any."""
    ours = (signal.default_int_handler, _as_ctrl_c)
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: found for number in _SIGNALS if in_main and (found := signal.getsignal(number)) in ours}
    try:
        _set(dict.fromkeys(before, handler))
        yield
    finally:
        try:
            _set(before)
        except KeyboardInterrupt:  # one that came meanwhile
            _set(before)
            raise


def _set(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def _woken(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake the loop at each signal. One that comes in the instant in which it begins to wait would be heard no earlier
    than what it waits for."""
    if sys.platform == "win32":  # its loop reads no pipe, and is woken by itself
        yield
        return
    with _told_by_a_pipe() as told:
        loop.add_reader(told, lambda: os.read(told, 4096))  # uvloop lets Python see signals in Python's functions only
        try:
            yield
        finally:
            loop.remove_reader(told)


@contextmanager
def _told_by_a_pipe() -> Iterator[int]:
    """Where something can be read as soon as a signal has come, whatever the main thread is at."""
    reading, writing = os.pipe()
    try:
        if threading.current_thread() is not threading.main_thread():
            yield reading
            return
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reading)
        os.close(writing)
