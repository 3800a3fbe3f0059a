"""Waits: those that a fleet shares are never the same in two processes, and those for an event have a limit."""

from __future__ import annotations

import asyncio
import random

_random = random.SystemRandom()


def jittered(seconds: float, *, spread: float = 0.5) -> float:
    """A time between ``seconds`` less the share ``spread`` of it, and ``seconds``; never longer."""
    return seconds * (1 - spread * _random.random())


async def wait_for(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for ``event``, at most ``seconds`` (None: without a limit); whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


class Backoff:
    """Waits that double from ``first_seconds`` to ``most_seconds``, jittered, until something succeeds."""

    def __init__(self, first_seconds: float = 0.05, *, most_seconds: float = 1.0) -> None:
        self._first = first_seconds
        self._most = most_seconds
        self.failures = 0

    def failed(self) -> float:
        """One more failure: how long to wait before the next try, in seconds."""
        self.failures += 1
        return jittered(min(self._most, self._first * 2.0 ** min(self.failures - 1, 30)))

    def succeeded(self) -> None:
        self.failures = 0
