"""Threads for plain tool functions: our own, so that nobody else's work fills them, and daemonic, so that a function
that never returns does not keep a process from ending."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

MAX_THREADS = 64


class ToolThreads:
    """At most ``max_threads`` plain tools at once in this worker; the others wait in order."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._free = asyncio.Semaphore(max_threads)
        self._running = 0
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Functions that have not returned, also those whose call was given up. Read from any thread."""
        return self._running

    @asynccontextmanager
    async def thread(self) -> AsyncIterator[Callable[[Callable[[], Any]], asyncio.Future[Any]]]:
        """Wait for a free thread; gives the function that starts a call in it, at most once.

        The thread counts as taken until its function has returned, even when nobody waits for that any more.
        """
        await self._free.acquire()
        started = False

        def start(function: Callable[[], Any]) -> asyncio.Future[Any]:
            nonlocal started
            started = True
            return self._start(function)

        try:
            yield start
        finally:
            if not started:
                self._free.release()

    def _start(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - given to whoever waits, as it is
                error = raised
            with self._lock:
                self._running -= 1
            try:
                loop.call_soon_threadsafe(self._done, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits

        with self._lock:
            self._running += 1
        threading.Thread(target=run, name="agentrt-tool", daemon=True).start()
        return future

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._free.release()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            future.set_exception(RuntimeError(f"the tool raised {type(error).__name__}: {error}"))
