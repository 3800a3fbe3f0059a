"""What we started ends with us, also when we are killed and can end nothing any more."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_AND_TELL = 'read -r _; kill -"$0" "$1"'


@contextmanager
def minded(pid: int, number: signal.Signals) -> Iterator[None]:
    """Have a process sent this signal if our own ends while the block runs.

    A shell waits for the end of a pipe whose other end only we hold: nothing needs to run here for that, and it is the
    same on every system. Leave the block when the process has ended, since its number may become another one's; one
    that lives still, since an interrupt was quicker than who was to end it, is sent the signal then.
    """
    minder = subprocess.Popen(
        ["/bin/sh", "-c", _WAIT_AND_TELL, str(int(number)), str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends us, such as Ctrl-C, is not for the minder
    )
    try:
        yield
    finally:
        if not _lives(pid):
            minder.kill()  # before the pipe is closed
        minder.communicate()


def _lives(pid: int) -> bool:
    """Whether the process is there, perhaps only to be waited for: until then its number is nobody else's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's: the server's, when we are root no longer
        return True
    return True
