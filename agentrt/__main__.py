"""``python -m agentrt`` and the command ``agentrt``: light, since a signal may come before the rest is imported."""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # the module `typing` is one of those that take their time
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line. Whatever is interrupted before, between or after its commands ends without a traceback."""
    try:
        import signal

        at_rest = signal.getsignal(signal.SIGINT)  # ignored in the background of a shell, and then so it stays
        if at_rest is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupted)
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the last; Python's default would kill then
        if sys.argv[1:2] == ["worker"]:
            for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # Windows has one
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
                    signal.signal(number, _drained)  # the worker sets its own as soon as it could hold a session
        from agentrt.cli import main as run

        try:
            signal.signal(signal.SIGINT, at_rest)
            run()
        finally:
            if at_rest is signal.default_int_handler and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, _interrupted)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def _interrupted(*_: object) -> None:
    """Nothing is open yet, or everything closed: leave at once, since an exception here would be a traceback."""
    os._exit(INTERRUPTED)


def _drained(*_: object) -> None:
    """A worker that holds nothing yet is drained. As process 1 of a container it would be deaf to the signal."""
    os._exit(0)


if __name__ == "__main__":
    main()
