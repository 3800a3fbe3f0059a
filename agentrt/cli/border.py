"""Where the command line meets the rest: errors become one sentence and an exit code here, and only here."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import sys
from typing import Any, NoReturn

import typer

from agentrt.cli.output import printable
from agentrt.core.errors import AgentrtError, ConfigurationError, InvalidArgument, NotFound, SchemaMismatch
from agentrt.interrupts import INTERRUPTED

DONE, FAILED, WRONG_USE = 0, 1, 2
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)
"""A Ctrl-C, as it comes out of ``asyncio.Runner``, which forgets one in the instant in which a run begins: only the
cancelled run is left of it then."""

_ASCII = ("ascii", "us-ascii", "ansi_x3.4-1968")
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_WHERE_TO_LOOK = " (`agentrt sessions list`, `sessions show` and `sessions approvals` tell what there is)"

_Usage: type[Exception] = typer.BadParameter.__mro__[2]  # of all that is wrong with a line; typer does not export it


def border(command: typer.Typer) -> NoReturn:
    """Run the command line and end the process."""
    try:
        _prepare_streams()
        code = command(standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # the frameworks below make it a failure
            _no_more_output()
            sys.exit(DONE)
        raise
    except AgentrtError as error:
        complain(f"{error}{_WHERE_TO_LOOK}" if isinstance(error, NotFound) else str(error))
        _hint(error)
        sys.exit(_code(error))
    except _Usage as error:
        _wrong_use(error)
        sys.exit(WRONG_USE)
    except typer.Abort as no:
        sys.exit(_not_confirmed(no))
    except INTERRUPTIONS:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `| head` has seen enough
        _no_more_output()
        sys.exit(DONE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
            _no_more_output()
            complain(f"the output cannot be written: {error.strerror}")
            sys.exit(FAILED)
        if os.environ.get("AGENTRT_LOG_LEVEL", "").lower() == "debug":
            raise
        complain(
            f"this is a defect of agentrt ({type(error).__name__}: {error}): run the command again with "
            "AGENTRT_LOG_LEVEL=debug and report what it prints"
        )
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else DONE)


def _not_confirmed(no: BaseException) -> int:
    """The answer to a question was "no" (then nothing led to it), or there was none."""
    if no.__context__ is not None:
        typer.echo(err=True)  # the cursor stands behind the question
    if isinstance(no.__context__, KeyboardInterrupt):
        return INTERRUPTED
    complain("not confirmed: nothing was done")
    return FAILED


def _wrong_use(error: Any) -> None:
    """What is wrong with the line as it was typed, and where to read on."""
    text, context = str(error.format_message()), getattr(error, "ctx", None)
    if "\n" in text.strip() or not text.strip():  # no command was named: this is the help
        typer.echo(text, nl=not text.endswith("\n"), err=True)
    elif context is None:
        complain(text)
    else:
        if hasattr(error, "option_name") and re.search(r": ['\"]?-[^-]", text):
            text += " (write -- before a value that begins with a dash)"
        if sys.argv[1:3] == ["worker", "list"]:  # all the other lists are of a plural
            text += "; agentrt workers list shows them"
        complain(f"{text}{'' if text.endswith(('.', '?')) else '.'} See {context.command_path} --help.")


def _prepare_streams() -> None:
    """A stream that is closed is an empty one, and a terminal without Unicode shows what it can."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - for as long as the process lives
    if isinstance(sys.stdin, io.TextIOWrapper):  # what is no ASCII is UTF-8 almost everywhere
        encoding = "utf-8" if sys.stdin.encoding.lower() in _ASCII else sys.stdin.encoding
        sys.stdin.reconfigure(encoding=encoding, errors="strict")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - likewise
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _no_more_output() -> None:
    """Let nothing of what is still to be written fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
