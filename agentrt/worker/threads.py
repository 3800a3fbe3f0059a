"""Where tool functions run, so that one that does not stop can be given up: plain ones in threads, our own and
daemonic; coroutines each in a task of its own. Both are counted until they have really ended, and so is what a tool
hands over to the loop's default executor."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, ParamSpec, TypeVar

from agentrt.agents import NotExecuted
from agentrt.core.errors import message_of

MAX_THREADS = 64

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Escaped(RuntimeError):
    """In place of what would have ended more than the call that raised it, such as ``SystemExit``."""


class ToolThreads:
    """At most ``max_threads`` plain tools at once in this worker; the others wait in order."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._free = asyncio.Semaphore(max_threads)
        self._running = 0
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handed_over: set[Future[Any]] = set()
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix="agentrt-tool")
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> int:
        """Functions that have not returned, also those whose call was given up. Read from any thread."""
        return self._running + len(self._tasks) + len(self._handed_over)

    def task(self, begin: Callable[[], Awaitable[Any]], *, name: str = "tool") -> asyncio.Future[Any]:
        """Await ``begin()`` in a task of its own, whose cancellation is nobody else's.

        It raises nothing but ``Exception`` and ``CancelledError``: what ends a process would end all of them.
        """
        self._prepare(loop := asyncio.get_running_loop())
        task = loop.create_task(_contained(begin, self if name == "tool" else None, name=name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for one that was given up: its error is not worth a warning

    def submit(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run what a tool handed over to the loop's default executor. It counts until it has ended, or was cancelled
        before it began."""
        future = self._executor.submit(function, *args, **kwargs)
        self._handed_over.add(future)
        future.add_done_callback(self._handed_over.discard)
        return future

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            self._loop = loop
            loop.set_default_executor(_DefaultExecutor())
        if loop.get_task_factory() is None:
            loop.set_task_factory(_task_of)

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
        self._prepare(loop := asyncio.get_running_loop())
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        context.run(_inside_tool.set, self)

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


_inside_tool: Final = contextvars.ContextVar[ToolThreads | None]("agentrt_inside_tool", default=None)
"""What counts the tool whose code this is."""


class _DefaultExecutor(ThreadPoolExecutor):
    """Where ``asyncio.to_thread`` and ``run_in_executor(None, ...)`` have their threads.

    What a tool hands over is known by the context that submits it: ``run_in_executor`` takes none along, but both
    submit in the tool's own. It is counted, since a thread that acts after the lease is the same evil wherever it runs;
    and it has threads of its own, so that tools that hang leave some to the worker. What the worker and its libraries
    submit, such as look-ups of names, is not counted: it ends by itself, acts on nothing, and is slow just when the
    network is away, where it must not end a process that has stopped everything else.
    """

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        threads = _inside_tool.get()
        submit = super().submit if threads is None else threads.submit
        return submit(fn, *args, **kwargs)


def _task_of(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """A task as the loop makes it. One that a tool starts is contained as the tool is: what ends a process is raised
    by the loop itself, whoever waits for the task."""
    if _inside_tool.get() is None or not asyncio.iscoroutine(coroutine):
        return asyncio.Task(coroutine, loop=loop, **options)
    task = asyncio.Task(_child(coroutine), loop=loop, **options)
    task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before it began
    return task


async def _child(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as error:
        raise _harmless(error, "tool") from error


async def _contained(begin: Callable[[], Awaitable[Any]], threads: ToolThreads | None, *, name: str) -> Any:
    _inside_tool.set(threads)
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
