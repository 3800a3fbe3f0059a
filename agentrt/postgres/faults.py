"""Foreign errors become ours here, by type or SQLSTATE, never by text."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import asyncpg

from agentrt.core.errors import (
    CLIENT_ERRORS,
    AgentrtError,
    ConfigurationError,
    DatabaseUnavailable,
    SchemaMismatch,
)
from agentrt.core.urls import has_raw_password, without_password
from agentrt.ports import StatementTimeout, UnstorableBatch

_UNSTORABLE = ("22", "23", "54")
_NO_DATABASE = "3D000"
_CONFIGURATION = ("28", "3D", "42501")  # authorization, no such database, no such right
_MISSING = ("3F000", "42P01", "42883", "42703", "42P02")  # schema, table, function, column, parameter


class LockTimeout(DatabaseUnavailable):
    """A row stayed locked by others for longer than ``lock_timeout``, or by others who wait for each other, and for us
    in the row's queue: nothing was written."""


_NOTHING_WRITTEN: Mapping[str, type[DatabaseUnavailable]] = {
    "55P03": LockTimeout,  # lock_timeout
    "40P01": LockTimeout,  # deadlock
    "57014": StatementTimeout,  # statement_timeout, or an operator's pg_cancel_backend
}

_WHY: Mapping[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    PermissionError: "permission denied",
    socket.gaierror: "no such host",
}

CONNECTION_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What a call of the driver raises when it does not do what it was asked to."""


def location(url: str) -> str:
    """``url`` for people: no password, and of the options only a host."""
    try:
        parts = urlsplit(without_password(url))
        host = parse_qs(parts.query).get("host", [""])[0]
    except ValueError:
        return "the database"
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{where}?host={host}" if host else where


def _unreachable(error: BaseException, url: str) -> str:
    """Who does not answer, and what to do: a socket is a server's of this machine, such as that of ``agentrt dev``."""
    try:
        parts = urlsplit(without_password(url))
        server = parse_qs(parts.query).get("host", [""])[0] or parts.netloc.rpartition("@")[2]
    except ValueError:
        server = ""
    why = _WHY.get(type(error)) or _words(error)
    if server.startswith("/"):
        why = "no such socket" if isinstance(error, FileNotFoundError) else why
        return f"no Postgres answers at {server} ({why}): is it running? `agentrt dev` starts one of its own"
    return f"no Postgres answers at {server or location(url)} ({why}): start it, or correct AGENTRT_DATABASE_URL"


def unusable(error: Exception, url: str) -> ConfigurationError:
    """``url`` cannot be taken apart. What is said of one with a password that is not encoded quotes the password."""
    why = f": {error}"
    if has_raw_password(url):
        why = ", its password holds one of / ? # [ ]: write %2F %3F %23 %5B %5D"
    return ConfigurationError(f"{location(url)} is not a usable database URL{why}")


def translate(error: BaseException, *, url: str, proven: bool = False) -> AgentrtError | UnstorableBatch:
    """Our error for what the driver raised. ``proven``: see ``DatabaseOptions``."""
    ours = _translate(error, url)
    return as_outage(ours) if proven and isinstance(ours, ConfigurationError) else ours


def as_outage(error: ConfigurationError) -> DatabaseUnavailable:
    """A refusal of what has worked before: a failover, a change of passwords or rights. It is waited out."""
    return DatabaseUnavailable(f"{error} (it worked before: tried again)")


def _translate(error: BaseException, url: str) -> AgentrtError | UnstorableBatch:
    match error:
        case asyncpg.TargetServerAttributeNotMatched():
            return ConfigurationError(f"{location(url)} is a standby: agentrt writes, name the primary")
        case asyncpg.ClientConfigurationError():
            return unusable(error, url)
        case asyncpg.PostgresError():
            return _of_sqlstate(error, url)
        case TimeoutError():
            return DatabaseUnavailable(f"{location(url)} did not answer in time")
        case _:
            return DatabaseUnavailable(_unreachable(error, url))


def _of_sqlstate(error: asyncpg.PostgresError, url: str) -> AgentrtError | UnstorableBatch:
    state = error.sqlstate or ""
    words = _words(error)
    if kind := CLIENT_ERRORS.get(state):
        return kind(str(error.args[0]))  # the sentence; its detail is for programs that speak SQL
    if state.startswith(_UNSTORABLE):
        return UnstorableBatch(f"{words} (SQLSTATE {state})")
    if state in _MISSING:
        return SchemaMismatch(f"{location(url)} has no schema of agentrt that fits ({words}): run `agentrt migrate`")
    if state == _NO_DATABASE:
        return ConfigurationError(f"{location(url)}: {words}: create it (createdb), or correct AGENTRT_DATABASE_URL")
    if state.startswith(_CONFIGURATION):
        return ConfigurationError(f"{location(url)} refuses: {words}")
    return _NOTHING_WRITTEN.get(state, DatabaseUnavailable)(f"{location(url)}: {words} (SQLSTATE {state})")


def _words(error: BaseException) -> str:
    """The sentence alone: a detail of PostgreSQL's quotes the row that it complains about."""
    text = error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error
    return re.sub(r"\s+", " ", str(text)).strip() or type(error).__name__


@contextmanager
def translated(url: str, *, proven: bool = False) -> Iterator[None]:
    """Raise ours instead of the driver's errors. ``proven``: see ``DatabaseOptions``."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        raise translate(error, url=url, proven=proven) from error


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection cannot be used any more, or its state is not known."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(("08", "57P", "XX"))
    return isinstance(error, (*CONNECTION_ERRORS, asyncio.CancelledError))
