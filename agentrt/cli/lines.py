"""What a person types: lines of standard input, and its end also while nobody asks for a line."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
