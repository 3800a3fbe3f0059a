"""Runs the real command line as a process."""

import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def run(
    *arguments: str, url: str | None = None, stdin: str = "", env: dict[str, str] | None = None, **settings: str
) -> Ran:
    """Run ``agentrt`` with these arguments; ``settings`` become AGENTRT_ variables."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRT_")}
    environ |= {f"AGENTRT_{name.upper()}": value for name, value in settings.items()} | (env or {})
    if url is not None:
        environ["AGENTRT_DATABASE_URL"] = url
    done = subprocess.run(
        [sys.executable, "-m", "agentrt", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**environ, "COLUMNS": "200"},
        check=False,
        timeout=25,
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
