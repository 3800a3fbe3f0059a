"""Runs the real command line: in this process, or as one of its own."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from agentrt.cli import main

SECONDS = 120
"""Ends what would never end. A machine may be slow, and stand still for a while."""

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def environment(*, url: str | None = None, **settings: str) -> dict[str, str]:
    """This process's environment with ``settings`` as AGENTRT_ variables, and no others of these."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRT_")}
    environ |= {f"AGENTRT_{name.upper()}": value for name, value in settings.items()}
    if url is not None:
        environ["AGENTRT_DATABASE_URL"] = url
    return {**environ, "COLUMNS": "200"}


def run(*arguments: str, url: str | None = None, stdin: str = "", **settings: str) -> Ran:
    """Run ``agentrt`` with these arguments in this process; ``settings`` become AGENTRT_ variables."""
    out, err = io.StringIO(), io.StringIO()
    with (
        signals_as_before(),
        mock.patch.object(sys, "path", [*sys.path]),
        mock.patch.dict(os.environ, environment(url=url, **settings), clear=True),
        mock.patch.object(sys, "argv", ["agentrt", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            return Ran(int(ended.code or 0), out.getvalue(), err.getvalue())


@contextmanager
def signals_as_before() -> Iterator[None]:
    """Some commands set handlers for as long as the process lives."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in HANDLED if in_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_process(*arguments: str, url: str | None = None, **settings: str) -> Ran:
    """The same as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "agentrt", *arguments],
        capture_output=True,
        text=True,
        env=environment(url=url, **settings),
        check=False,
        timeout=SECONDS,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def assert_one_sentence(ran: Ran, *, code: int, names: tuple[str, ...] = ()) -> None:
    """The command failed with one line that says what is wrong, and printed nothing else."""
    assert (ran.code, ran.out) == (code, ""), ran
    assert ran.err.startswith("error: "), ran
    assert ran.err.count("\n") == 1, ran
    assert "Traceback" not in ran.err
    for name in names:
        assert name in ran.err, ran
