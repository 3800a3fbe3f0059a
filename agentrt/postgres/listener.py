"""One LISTEN connection, kept alive by itself. A notification is a hint, polling is the truth."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

import asyncpg

from agentrt.core.errors import AgentrtError, DatabaseUnavailable
from agentrt.core.session import SessionId
from agentrt.ports import WakeupHandlers
from agentrt.postgres.faults import CONNECTION_ERRORS, location, translate
from agentrt.postgres.pool import DatabaseOptions, Role, close, connect

READY = "agentrt_ready"
CONTROL = "agentrt_control"
JOURNAL = "agentrt_journal"

_PING_SECONDS = 10.0
_PING_LIMIT_SECONDS = 5.0
_PROOF_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 15.0

Names = Sequence[str] | None
"""What a payload names; None: look at everything."""


def names_of(payload: str) -> Names:
    """The names in a payload of ours; None for ``*`` and for anything else that is no list of texts."""
    try:
        names = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return None


def ids_of(names: Names) -> Sequence[SessionId] | None:
    """Session ids from names; None when one is no id."""
    if names is None:
        return None
    try:
        return [SessionId(UUID(name)) for name in names]
    except ValueError:
        return None


class Listener:
    """Listens on channels until cancelled, on a connection of its own that is pinged and made again.

    Args:
        options: Where; ``direct_url`` when the other one goes through a pooler.
        channels: What to call with the names in a payload of each channel.
        connected: Called after each connection was made, with the error that ended the one before (None at first):
            whatever was notified in between is lost, so look at everything.
        unavailable: Called once when LISTEN does not work through this URL, with the reason.
    """

    def __init__(
        self,
        options: DatabaseOptions,
        channels: Mapping[str, Callable[[Names], None]],
        *,
        connected: Callable[[str | None], None],
        unavailable: Callable[[str], None],
    ) -> None:
        self._options = options
        self._channels = channels
        self._connected = connected
        self._unavailable = unavailable
        self._proven = False
        self.listening = False

    async def run(self) -> None:
        """Listen until cancelled; returns only when LISTEN cannot work here."""
        failures = 0
        broken: str | None = None
        while True:
            connection = None
            try:
                connection = await connect(self._options, Role.LISTENER, direct=True)
                lost = await self._listen(connection)
                if not await self._is_proven(connection):
                    return
                failures = 0
                self.listening = True
                self._connected(broken)
                await self._ping(connection, lost)
            except AgentrtError as error:
                broken = str(error)
            except CONNECTION_ERRORS as error:
                broken = str(translate(error, url=self._options.listen_url))
            finally:
                self.listening = False
                if connection is not None:
                    connection.terminate()
            failures += 1
            ceiling = min(_LONGEST_PAUSE_SECONDS, 0.25 * 2 ** min(failures, 10))
            await asyncio.sleep(random.uniform(0.05, ceiling))  # noqa: S311 - spreads a fleet, no secret

    async def _listen(self, connection: asyncpg.Connection[asyncpg.Record]) -> asyncio.Event:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        for channel, tell in self._channels.items():
            await connection.add_listener(channel, lambda _, __, ___, payload, tell=tell: tell(names_of(str(payload))))
        return lost

    async def _is_proven(self, connection: asyncpg.Connection[asyncpg.Record]) -> bool:
        """A round trip from a second connection: through a transaction pooler LISTEN answers, and is deaf.

        What worked once is never judged again: a silence is then the server's, or a busy loop's.
        """
        channel, heard = f"agentrt_proof_{uuid4().hex}", asyncio.Event()

        def hear(*_: object) -> None:
            heard.set()

        await connection.add_listener(channel, hear)
        probe = await connect(self._options, Role.PROBE, direct=True)
        try:
            await probe.execute("select pg_notify($1, '')", channel, timeout=_PING_LIMIT_SECONDS)
        finally:
            await close(probe)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROOF_SECONDS):
                await heard.wait()
        await connection.execute("select 1", timeout=_PING_LIMIT_SECONDS)  # what was notified arrives before its answer
        await connection.remove_listener(channel, hear)  # not that answer: it hears no more once it is called
        if heard.is_set():
            self._proven = True
            return True
        where = location(self._options.listen_url)
        if self._proven:
            raise DatabaseUnavailable(f"{where} brought no notification within {_PROOF_SECONDS:g} s")
        self._unavailable(
            f"LISTEN does not work through {where} (a transaction pooler?): new work is found by polling; set "
            "AGENTRT_DIRECT_DATABASE_URL to the server itself"
        )
        return False

    async def _ping(self, connection: asyncpg.Connection[asyncpg.Record], lost: asyncio.Event) -> None:
        """Returns never; raises when the connection is gone or does not answer."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.5, 1.0) * _PING_SECONDS):  # noqa: S311 - spreads a fleet
                    await lost.wait()
            if lost.is_set():
                raise DatabaseUnavailable(f"{location(self._options.listen_url)} closed the listening connection")
            await connection.execute("select 1", timeout=_PING_LIMIT_SECONDS)


class PostgresWakeups:
    """The worker's listener: new work, and sessions that were cancelled, steered, decided or revived."""

    def __init__(self, options: DatabaseOptions, handlers: WakeupHandlers) -> None:
        self._handlers = handlers
        self._listener = Listener(
            options,
            {READY: handlers.ready, CONTROL: lambda names: handlers.control(ids_of(names))},
            connected=self._on_connected,
            unavailable=handlers.unavailable,
        )

    def _on_connected(self, broken: str | None) -> None:
        if broken is not None:
            self._handlers.reconnected(broken)
        self._handlers.ready(None)
        self._handlers.control(None)

    async def run(self) -> None:
        await self._listener.run()

    @property
    def listening(self) -> bool:
        return self._listener.listening
