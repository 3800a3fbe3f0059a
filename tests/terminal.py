"""A command on a terminal of its own, typed at as a person would."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CTRL_C, CTRL_D = "\x03", "\x04"
WAIT_SECONDS = 90.0
PRESS_SECONDS = 5.0

# The terminal becomes the controlling one, so that Ctrl-C is a signal; then the command takes the process over.
_LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"


@dataclass
class Terminal:
    process: subprocess.Popen[bytes]
    controller: int
    raw: bytes = b""
    read_to: int = 0

    @property
    def shown(self) -> str:
        """What was printed, without colours."""
        return re.sub("\x1b\\[[0-9;]*m", "", self.raw.decode(errors="replace")).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def wait_for(self, words: str) -> str:
        """What is shown behind what was waited for before, to the end of these words."""
        began = self.read_to
        while (found := self.shown.find(words, began)) < 0:
            assert self._read(), (words, self.shown)
        self.read_to = found + len(words)
        return self.shown[began : self.read_to]

    def wait(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT_SECONDS)

    def end_by(self, key: str) -> int:
        """Press a key until the command ends; the exit code. Ctrl-C in the instant in which Python begins to wait for
        a line is only heard once another key is pressed."""
        for _ in range(int(WAIT_SECONDS / PRESS_SECONDS)):
            self.type(key)
            while select.select([self.controller], [], [], PRESS_SECONDS)[0]:
                if not self._read():
                    return self.process.wait(WAIT_SECONDS)
        raise AssertionError(f"the command does not end after: {self.shown}")

    def _read(self) -> bool:
        ready, _, _ = select.select([self.controller], [], [], WAIT_SECONDS)
        assert ready, f"nothing more was shown within {WAIT_SECONDS} s after: {self.shown}"
        try:
            given = os.read(self.controller, 65_536)
        except OSError:  # Linux's way to say that nobody has the terminal open any more
            given = b""
        self.raw += given
        return bool(given)


@contextmanager
def on_terminal(*arguments: str, environ: dict[str, str], columns: int = 200) -> Iterator[Terminal]:
    """``python -m agentrt`` with these arguments; killed at the end of the block."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _LOGIN, sys.executable, "-m", "agentrt", *arguments],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        env={**environ, "COLUMNS": str(columns)},
    )  # fmt: skip
    os.close(terminal)
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
