"""Foreign errors become ours here, by type or SQLSTATE, never by text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg

from agentrt.core.errors import (
    CLIENT_ERRORS,
    AgentrtError,
    ConfigurationError,
    DatabaseUnavailable,
    InvalidArgument,
    SchemaMismatch,
)
from agentrt.ports import StatementTimeout, UnstorableBatch

_UNSTORABLE = ("22", "23", "54")
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

CONNECTION_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What a call of the driver raises when it does not do what it was asked to."""


def location(url: str) -> str:
    """``url`` for people: no password, no options."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return "the database"


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
            return ConfigurationError(f"{location(url)} is not a usable database URL: {error}")
        case asyncpg.PostgresError():
            return _of_sqlstate(error, url)
        case asyncpg.DataError():  # an argument that the driver cannot encode
            return InvalidArgument(str(error))
        case TimeoutError():
            return DatabaseUnavailable(f"{location(url)} did not answer in time")
        case _:
            return DatabaseUnavailable(f"{location(url)} is not reachable: {_words(error)}")


def _of_sqlstate(error: asyncpg.PostgresError, url: str) -> AgentrtError | UnstorableBatch:
    state = error.sqlstate or ""
    words = _words(error)
    if kind := CLIENT_ERRORS.get(state):
        return kind(str(error.args[0]))  # the sentence; its detail is for programs that speak SQL
    if state.startswith(_UNSTORABLE):
        return UnstorableBatch(f"{words} (SQLSTATE {state})")
    if state in _MISSING:
        return SchemaMismatch(f"{location(url)} has no schema of agentrt that fits ({words}): run `agentrt migrate`")
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
    return not isinstance(error, asyncpg.DataError) and isinstance(error, (*CONNECTION_ERRORS, asyncio.CancelledError))
