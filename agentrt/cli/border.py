"""Where the command line meets the rest: errors become one sentence and an exit code here, and only here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import typer

from agentrt.cli.output import printable
from agentrt.core.errors import AgentrtError, ConfigurationError, InvalidArgument, SchemaMismatch

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

T = TypeVar("T")


def border(command: Callable[[], Any]) -> NoReturn:
    """Run the command line and end the process."""
    try:
        command()
    except AgentrtError as error:
        complain(str(error))
        _hint(error)
        sys.exit(_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except Exception as error:
        if os.environ.get("AGENTRT_LOG_LEVEL", "").lower() == "debug":
            raise
        complain(
            f"this is a defect of agentrt ({type(error).__name__}: {error}): run the command again with "
            "AGENTRT_LOG_LEVEL=debug and report what it prints"
        )
        sys.exit(FAILED)
    sys.exit(DONE)


def _code(error: AgentrtError) -> int:
    match error:
        case SchemaMismatch():
            return FAILED
        case ConfigurationError() | InvalidArgument():
            return WRONG_USE
        case _:
            return FAILED


def _hint(error: AgentrtError) -> None:
    """A variable that nobody reads may be the reason why a setting is missing."""
    if isinstance(error, ConfigurationError):
        from agentrt.settings import unknown_variables

        for warning in unknown_variables():
            warn(warning)


def complain(text: str) -> None:
    """Say on standard error what is wrong."""
    for line in text.splitlines() or [""]:
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {printable(line)}", err=True)


def warn(text: str) -> None:
    """Say on standard error what may be wrong."""
    typer.echo(f"{typer.style('warning:', fg='yellow', bold=True)} {printable(text)}", err=True)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(coroutine)
