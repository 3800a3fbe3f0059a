"""Watches the main loop from the keeper's thread: does it make progress, and where does it stand if not."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable

_LONGEST_TICK_SECONDS = 1.0


class MainLoop:
    """The main loop as seen from another thread.

    ``tick`` asks the loop for a sign of life and counts how long it has owed one. A tick counts for at most a second:
    when the whole process was stopped, that is not the loop's fault.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, thread_id: int, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._clock = clock
        self._asked_at: float | None = None
        self._ticked_at = clock()
        self._lock = threading.Lock()
        self.stalled_seconds = 0.0
        self.lag_seconds: float | None = None
        """How long the last answered question took; None once it was read by ``take_lag``."""

    def tick(self) -> float:
        """Count, and ask again unless a question is still open; the seconds without progress."""
        now = self._clock()
        gap, self._ticked_at = now - self._ticked_at, now
        with self._lock:
            if self._asked_at is not None:
                self.stalled_seconds += min(gap, _LONGEST_TICK_SECONDS)
                return self.stalled_seconds
            self._asked_at = now
        self.call(self._answer)
        return self.stalled_seconds

    def _answer(self) -> None:
        with self._lock:
            if self._asked_at is not None:
                self.lag_seconds = self._clock() - self._asked_at
            self._asked_at = None
            self.stalled_seconds = 0.0

    def take_lag(self) -> float | None:
        lag, self.lag_seconds = self.lag_seconds, None
        return lag

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run ``function`` in the main loop, soon; dropped when that loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # closed: the daemon is gone, and we follow
            return

    def stack(self) -> str:
        """Where the main thread stands."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, and the only way
        return "".join(traceback.format_stack(frame)) if frame is not None else "the main thread has ended"
