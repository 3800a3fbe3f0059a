"""Following a session: entries in order from one cursor; notifications only say when to look."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from agentrt.core.errors import OUTAGES, NotFound
from agentrt.core.journal import Entry
from agentrt.core.session import SessionId
from agentrt.postgres.listener import JOURNAL, Listener, Names, ids_of
from agentrt.postgres.pool import DatabaseOptions

FOLLOW_SECONDS = 30
"""For so long workers notify about the session's entries; renewed at half of it."""

PAGE_ENTRIES = 500
_POLL_SECONDS = 5.0
_DEAF_POLL_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 3.0


class Follower:
    """All that one client follows, with one listening connection, which exists while something is followed.

    Args:
        options: Where to listen.
        read: Entries of a session behind a seq, at most ``PAGE_ENTRIES``.
        renew: Says for ``FOLLOW_SECONDS`` that somebody follows the session.
        outage: Called once when the database answers no longer, with what is wrong, and with None when it does again.
    """

    def __init__(
        self,
        options: DatabaseOptions,
        *,
        read: Callable[[SessionId, int], Awaitable[Sequence[Entry]]],
        renew: Callable[[SessionId], Awaitable[None]],
        outage: Callable[[str | None], object] = lambda _: None,
    ) -> None:
        self._read = read
        self._renew = renew
        self._outage = outage
        self._away = False
        self._waiting: dict[SessionId, set[asyncio.Event]] = {}
        self._listener = Listener(
            options, {JOURNAL: self._tell}, connected=lambda _: self._tell(None), unavailable=lambda _: None
        )
        self._task: asyncio.Task[None] | None = None

    async def follow(self, session_id: SessionId, after_seq: int) -> AsyncGenerator[Entry, None]:
        """Entries behind ``after_seq``, each once, in order; ends when the session is deleted.

        Raises ``NotFound``, ``InvalidArgument`` or ``DatabaseUnavailable`` at the start; a connection that is lost
        later is waited out.
        """
        with self._woken(session_id) as event:
            await self._renew(session_id)
            renewed_at = time.monotonic()
            page = await self._read(session_id, after_seq)
            while True:
                for entry in page:
                    yield entry
                    after_seq = entry.seq
                if not page:
                    await self._wait(event)
                event.clear()
                try:
                    if time.monotonic() - renewed_at > FOLLOW_SECONDS / 2:
                        await self._renew(session_id)
                        renewed_at = time.monotonic()
                    page = await self._read(session_id, after_seq)
                    self._tell_outage(None)
                except NotFound:
                    return
                except OUTAGES as error:
                    page = ()
                    self._tell_outage(str(error))
                    await asyncio.sleep(random.uniform(0.1, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - no secret

    @contextmanager
    def _woken(self, session_id: SessionId) -> Iterator[asyncio.Event]:
        """An event that is set when the session may have new entries."""
        if self._task is None:
            self._task = asyncio.create_task(self._listener.run(), name="agentrt-follow")
        event = asyncio.Event()
        self._waiting.setdefault(session_id, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[session_id].discard(event)
            if not self._waiting[session_id]:
                del self._waiting[session_id]
            if not self._waiting and self._task is not None:  # None: the client was closed first
                self._task.cancel()
                self._task = None

    async def _wait(self, event: asyncio.Event) -> None:
        if self._task is not None and self._task.done():
            self._task.result()  # what has ended the listening, if it was an error: nobody else would be told
        poll_seconds = _POLL_SECONDS if self._listener.listening else _DEAF_POLL_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(0.5, 1.0) * poll_seconds):  # noqa: S311 - spreads clients
                await event.wait()

    def _tell_outage(self, problem: str | None) -> None:
        if self._away == (problem is None):
            self._away = problem is not None
            self._outage(problem)

    def _tell(self, names: Names) -> None:
        ids = ids_of(names)
        for session_id in list(self._waiting) if ids is None else ids:
            for event in self._waiting.get(session_id, ()):
                event.set()

    async def close(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
