"""Where tool functions run, so that one that does not stop can be given up: plain ones in threads, our own and
daemonic; coroutines each in a task of its own. Both are counted until they have really ended."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from agentrt.agents import NotExecuted
from agentrt.core.errors import message_of

MAX_THREADS = 64


class Escaped(RuntimeError):
    """In place of what would have ended more than the call that raised it, such as ``SystemExit``."""


class ToolThreads:
    """At most ``max_threads`` plain tools at once in this worker; the others wait in order."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._free = asyncio.Semaphore(max_threads)
        self._running = 0
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        """Functions that have not returned, also those whose call was given up. Read from any thread."""
        return self._running + len(self._tasks)

    @property
    def tasks(self) -> int:
        """Those of ``running`` that are coroutines: the loop cannot be closed while there are any."""
        return len(self._tasks)

    def task(self, begin: Callable[[], Awaitable[Any]], *, name: str = "tool") -> asyncio.Future[Any]:
        """Await ``begin()`` in a task of its own, whose cancellation is nobody else's.

        It raises nothing but ``Exception`` and ``CancelledError``: what ends a process would end all of them.
        """
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is None:
            loop.set_task_factory(_task_of)
        task = loop.create_task(_contained(begin, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for one that was given up: its error is not worth a warning

    @asynccontextmanager
    async def thread(self) -> AsyncIterator[Callable[[Callable[[], Any]], asyncio.Future[Any]]]:
        """Wait for a free thread; gives the function that starts a call in it, at most once, and raises ``NotExecuted``
        when it cannot.

        The thread counts as taken until its function has returned, even when nobody waits for that any more.
        """
        await self._free.acquire()
        started = False

        def start(function: Callable[[], Any]) -> asyncio.Future[Any]:
            nonlocal started
            call = self._start(function)
            started = True
            return call

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
        try:
            threading.Thread(target=run, name="agentrt-tool", daemon=True).start()
        except RuntimeError as error:  # the process has as many as it may have
            with self._lock:
                self._running -= 1
            raise NotExecuted(f"no thread could be started for it: {error}") from error
        return future

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._free.release()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(_harmless(error, "tool"))
            future.exception()  # as of a task: perhaps nobody waits for it any more


_inside_tool: Final = contextvars.ContextVar("agentrt_inside_tool", default=False)


def _task_of(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """A task as the loop makes it. One that a tool starts is contained as the tool is: what ends a process is raised
    by the loop itself, whoever waits for the task."""
    if not (_inside_tool.get() and asyncio.iscoroutine(coroutine)):
        return asyncio.Task(coroutine, loop=loop, **options)
    task = asyncio.Task(_child(coroutine), loop=loop, **options)
    task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before it began
    return task


async def _child(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as error:
        raise _harmless(error, "tool") from error


async def _contained(begin: Callable[[], Awaitable[Any]], name: str) -> Any:
    _inside_tool.set(name == "tool")
    try:
        return await begin()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise _harmless(error, name) from error


def _harmless(error: BaseException, name: str) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    harmless = Escaped(f"the {name} raised {type(error).__name__}: {message_of(error)}")
    harmless.__cause__ = error
    return harmless
