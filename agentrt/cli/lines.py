"""Who is at the other end: lines of standard input, and whether anybody still types or reads."""

from __future__ import annotations

import asyncio
import io
import os
import select
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from agentrt.interrupts import wait_to_read

T = TypeVar("T")


async def unless_told(
    work: Awaitable[T], watch: Callable[[Callable[[], object]], AbstractContextManager[None]]
) -> T | None:
    """What the work gives; None if ``watch`` calls what it is given before that is there."""
    loop, until = asyncio.get_running_loop(), asyncio.timeout(None)
    try:
        async with until:
            with watch(lambda: until.reschedule(loop.time())):
                return await work
    except TimeoutError:
        if not until.expired():
            raise
        return None


class Lines:
    """Lines of standard input. On a terminal they are read past Python's buffer, which cannot be looked at."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a wrong byte is visible in the line, and no end of the input
        self._encoding = getattr(sys.stdin, "encoding", None) or "utf-8"
        self._typed = b""
        self._ended = False

    def next(self) -> str | None:
        """The next line without its end; None when there is none."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        while b"\n" not in self._typed and not self._ended:
            wait_to_read(sys.stdin.fileno())
            self._read()
        typed, _, self._typed = self._typed.partition(b"\n")
        if not typed and self._ended:
            return None
        return typed.decode(self._encoding, "replace")

    @property
    def kept(self) -> str:
        """What was typed and nobody has read."""
        return self._typed.decode(self._encoding, "replace").strip()

    @contextmanager
    def watched(self, ended: Callable[[], object]) -> Iterator[None]:
        """Call ``ended`` when the person ends the input (Ctrl-D) while the block runs; lines are kept for later.

        Only a terminal is watched: a pipe that has ended has still asked for its answers.
        """
        if not self.interactive:
            yield
            return

        def look() -> None:
            self._read()
            if self._ended:
                loop.remove_reader(sys.stdin.fileno())
                ended()

        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), look)
        try:
            yield
        finally:
            loop.remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        """Wait for what the terminal gives next: a line, or nothing, which is the end."""
        try:
            given = os.read(sys.stdin.fileno(), 65_536)
        except OSError:  # the terminal is gone
            given = b""
        self._typed += given
        self._ended = not given


@contextmanager
def reader_watched(gone: Callable[[], object]) -> Iterator[None]:
    """Call ``gone`` when nobody reads the pipe behind standard output any more: ``follow | head`` has seen enough, and
    does not wait for one more entry to find that out. Linux can be asked; elsewhere the next line tells."""
    if sys.platform != "linux" or not _is_pipe():
        yield
        return
    loop = asyncio.get_running_loop()
    with select.epoll() as watch:
        watch.register(sys.stdout.fileno(), 0)  # of no event but the one that is always told: the other end is closed

        def tell() -> None:
            loop.remove_reader(watch.fileno())
            gone()

        loop.add_reader(watch.fileno(), tell)
        try:
            yield
        finally:
            loop.remove_reader(watch.fileno())


def _is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:  # it is no file at all
        return False
