"""Connections: one per role, made at first use and made again after they broke.

Every connection sets what its correctness rests on by itself, whatever the database's defaults say, and refuses a
standby. Every call has a client-side time limit above the server's, for servers that do not answer at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from agentrt.core.errors import ConfigurationError, DatabaseUnavailable
from agentrt.postgres.faults import (
    CONNECTION_ERRORS,
    as_outage,
    is_connection_lost,
    location,
    translate,
    translated,
    unusable,
)

CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 2.0  # between the server's limit and ours


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """How to connect. ``direct_url`` is for LISTEN and advisory locks when ``url`` is a transaction pooler's.

    ``proven``: the database has been worked on with these options, so that what it refuses from then on (a standby, a
    login, a right) is an outage like any other, ``DatabaseUnavailable``, and no ``ConfigurationError``.
    """

    url: str
    direct_url: str = ""
    statement_seconds: float = 10.0
    lock_seconds: float = 2.0
    idle_transaction_seconds: float = 5.0
    transactional_connections: int = 4
    transactional_seconds: float = 10.0
    proven: bool = False

    @property
    def listen_url(self) -> str:
        """The URL that reaches the server itself."""
        return self.direct_url or self.url

    @property
    def pooled(self) -> bool:
        """Whether ``url`` goes through a pooler: no session settings, no named prepared statements."""
        return bool(self.direct_url) and self.direct_url != self.url


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


class Role(StrEnum):
    """What a connection is for; shown in ``pg_stat_activity``."""

    COMMIT = "commit"
    CLAIM = "claim"
    KEEPER = "keeper"
    REAPER = "reaper"
    LISTENER = "listener"
    PROBE = "probe"
    TOOL = "tool"
    CLIENT = "client"
    MIGRATE = "migrate"


# The worker's statements look rows up by key. A plan made while a table was small would read all of it, and would be
# kept until the next analyze, however much it grew meanwhile.
_BY_KEY = {"enable_seqscan": "off"}
_PLANNER: Mapping[Role, Mapping[str, str]] = {
    Role.COMMIT: {**_BY_KEY, "plan_cache_mode": "force_generic_plan"},  # planned once: 0.4 ms instead of 1.2 ms
    Role.CLAIM: _BY_KEY,
    Role.KEEPER: _BY_KEY,
    Role.REAPER: _BY_KEY,
}


def server_settings(options: DatabaseOptions, role: Role) -> dict[str, str]:
    """What a session of ``role`` sets at its start."""
    return {
        "application_name": f"agentrt {role}",
        "synchronous_commit": "on",  # what a crash of the server forgets must not have been told to anybody
        "default_transaction_isolation": "read committed",
        "lock_timeout": _milliseconds(options.lock_seconds),
        "statement_timeout": _milliseconds(options.statement_seconds),
        "idle_in_transaction_session_timeout": _milliseconds(options.idle_transaction_seconds),
        "timezone": "UTC",
        "jit": "off",  # our statements touch few rows; compiling them costs more than running them
        **_PLANNER.get(role, {}),
    }


async def connect(options: DatabaseOptions, role: Role, *, direct: bool = False) -> asyncpg.Connection[asyncpg.Record]:
    """A new connection for ``role``.

    Raises:
        DatabaseUnavailable: nobody answers, or not in time.
        ConfigurationError: a standby, a wrong URL, password or database name; unless ``options`` are proven.
    """
    try:
        return await _connect(options, role, direct=direct)
    except ConfigurationError as error:
        if options.proven:
            raise as_outage(error) from error
        raise


async def _connect(options: DatabaseOptions, role: Role, *, direct: bool) -> asyncpg.Connection[asyncpg.Record]:
    url = options.listen_url if direct else options.url
    pooled = options.pooled and not direct
    try:
        connection = await _open(url, options, {} if pooled else server_settings(options, role), pooled=pooled)
    except asyncpg.ProtocolViolationError:  # poolers refuse settings that they do not track
        connection = await _open(url, options, {}, pooled=True)
        pooled = True
    if pooled:
        try:
            await _check_pooled(connection, url)
        except BaseException:
            connection.terminate()  # nobody else has it
            raise
    return connection


async def _open(
    url: str, options: DatabaseOptions, settings: dict[str, str], *, pooled: bool
) -> asyncpg.Connection[asyncpg.Record]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncpg.connect(
                url,
                timeout=CONNECT_SECONDS,
                command_timeout=options.statement_seconds + _GRACE_SECONDS,
                server_settings=settings,
                target_session_attrs=SessionAttribute.primary,
                statement_cache_size=0 if pooled else 100,
                max_cached_statement_lifetime=0,  # the hot statements are parsed and planned once
                max_cacheable_statement_size=0,
            )
    except asyncpg.ProtocolViolationError:
        if settings:
            raise
        raise DatabaseUnavailable(f"{location(url)} does not speak PostgreSQL's protocol") from None
    except CONNECTION_ERRORS as error:
        raise translate(error, url=url) from error
    except (ValueError, OverflowError) as error:  # a port beyond 65535, for one
        raise unusable(error, url) from None


async def _check_pooled(connection: asyncpg.Connection[asyncpg.Record], url: str) -> None:
    """Settings of a session do not stick behind a pooler: they have to be right for the role or the database."""
    with translated(url):
        found = await connection.fetchval("show synchronous_commit", timeout=CONNECT_SECONDS)
    if found == "off":
        raise ConfigurationError(
            f"synchronous_commit is {found} behind the pooler at {location(url)}, where a connection cannot set it: "
            "run `alter role … set synchronous_commit = on` for the role that agentrt uses"
        )


def opener(
    options: DatabaseOptions, role: Role
) -> Callable[..., Coroutine[Any, Any, asyncpg.Connection[asyncpg.Record]]]:
    """How a pool of the driver's opens its connections: like everybody else here."""

    async def open_one(*_: object, **__: object) -> asyncpg.Connection[asyncpg.Record]:
        return await connect(options, role)

    return open_one


async def close(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Close in order if that goes quickly, else cut."""
    try:
        await connection.close(timeout=1)
    except CONNECTION_ERRORS:
        connection.terminate()


class RoleConnection:
    """One connection for one role; calls wait for each other.

    A call that fails on the connection, or is cancelled, leaves nothing behind: the connection is cut, and the next
    call makes a new one. Not shared between event loops.
    """

    def __init__(self, options: DatabaseOptions, role: Role, *, direct: bool = False, reconnects: bool = True) -> None:
        self._options = options
        self._role = role
        self._direct = direct
        self._reconnects = reconnects
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return self._options.listen_url if self._direct else self._options.url

    async def fetch(self, statement: str, *arguments: Any, seconds: float | None = None) -> Sequence[asyncpg.Record]:
        """Run one statement in a transaction of its own.

        Raises:
            DatabaseUnavailable: no answer, or not in time; a write has an unknown outcome.
            UnstorableBatch: SQLSTATE class 22, 23 or 54.
            ClientError: SQLSTATE class AR.
        """
        async with self.using(seconds) as connection:
            return await connection.fetch(statement, *arguments)

    @asynccontextmanager
    async def using(self, seconds: float | None = None) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """The connection for the length of a block, with a time limit and our errors.

        The limit counts from when the connection is there; waiting for it, and for one to be made, is limited too.
        """
        limit = (self._options.statement_seconds if seconds is None else seconds) + _GRACE_SECONDS
        try:
            async with asyncio.timeout(limit + CONNECT_SECONDS) as waiting, self._lock:
                connection = await self._connected()
                waiting.reschedule(None)
                async with self._cut_by_failure(), asyncio.timeout(limit):
                    yield connection
        except CONNECTION_ERRORS as error:
            raise translate(error, url=self.url, proven=self._options.proven) from error

    @asynccontextmanager
    async def _cut_by_failure(self) -> AsyncIterator[None]:
        try:
            yield
        except CONNECTION_ERRORS as error:
            if is_connection_lost(error):
                self._cut()
            raise
        except BaseException:
            self._cut()  # cancelled in the middle: nobody knows what is still on its way
            raise

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._closed and (self._connection is None or self._connection.is_closed()):
            raise DatabaseUnavailable(f"the connection to {location(self.url)} is closed")
        if self._connection is None or self._connection.is_closed():
            self._closed = not self._reconnects  # only one connection ever, whether or not it comes about
            self._connection = await connect(self._options, self._role, direct=self._direct)
        return self._connection

    def _cut(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close; later calls raise ``DatabaseUnavailable``. A call that runs is cut."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._lock.locked():
                connection.terminate()
            else:
                await close(connection)
