"""Calling a user's function: in the loop or in a thread, with a time limit, and its end as a value."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from agentrt.agents import Deferred, Done, NotDone, NotExecuted, Tool, ToolContext, ToolError, Unknown
from agentrt.core.errors import message_of
from agentrt.core.events import UserCodeFailed
from agentrt.core.journal import ToolOutcome
from agentrt.worker.ownership import Ownership
from agentrt.worker.wording import cut, error_text, leaves_of, result_text, trace_text, without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a call ended. ``known``: whether it had its effect is certain. ``cause`` is the exception, if any."""

    outcome: ToolOutcome
    content: str
    known: bool = True
    deferred: Deferred | None = None
    cause: BaseException | None = field(default=None, repr=False)


class TimeLimitExceeded(Exception):
    """The call took longer than it may."""


async def invoke(ownership: Ownership, tool: Tool, *, context: ToolContext, arguments: str) -> End:
    """Call the tool's function once, with ``arguments`` of its own: an earlier execution may have changed what it was
    given. Raises nothing but ``CancelledError``, when this call is cancelled."""
    context = _anew(context)
    settings = ownership.deps.settings
    limit = tool.timeout_seconds or settings.tool_seconds
    given = (context,) if tool.signature.takes_context else ()
    try:
        value = await called(
            ownership,
            partial(tool.function, *given, **tool.parse(arguments)),
            limit=limit,
            stopping=context.stopping,
            begins=lambda: ownership.begun.__setitem__(context.call_id, ownership.deps.clock()),
        )
        if isinstance(value, Iterator):  # its body is the tool's code: in a thread, and within the time limit
            some = partial(_some_of, value, settings.tool_result_max_bytes)
            value = await called(ownership, some, limit=limit, stopping=context.stopping)
    except TimeLimitExceeded as error:
        return End(outcome=ToolOutcome.TIMEOUT, content=f"{tool.name} {error}", known=False)
    except Exception as error:  # noqa: BLE001 - a tool call: one of the five borders
        return _failed(error, ownership.deps.secrets, max_bytes=settings.tool_result_max_bytes)
    content = "" if context.deferred else cut(result_text(value), settings.tool_result_max_bytes)
    return End(outcome=ToolOutcome.OK, content=content, deferred=context.deferred)


def _some_of(values: Iterator[Any], most: int) -> list[Any]:
    """As many values as may fill a result: there may be no end of them."""
    return list(islice(values, most))


def _failed(error: Exception, secrets: Iterable[str], *, max_bytes: int) -> End:
    """The end of a call that raised ``error``; a group, as task groups raise it, ends as all that is in it does."""
    leaves = leaves_of(error)
    if not all(isinstance(leaf, ToolError | NotExecuted) for leaf in leaves):
        return End(outcome=ToolOutcome.ERROR, content=error_text(error, secrets), known=False, cause=error)
    failed = any(isinstance(leaf, ToolError) for leaf in leaves)
    words = (
        message_of(leaf)
        if isinstance(leaf, ToolError)
        else without_secrets(f"Not executed: {message_of(leaf)}", secrets)
        for leaf in leaves
    )
    content = cut("\n".join(dict.fromkeys(words)), max_bytes)
    outcome = ToolOutcome.ERROR if failed else ToolOutcome.NOT_RUN
    return End(outcome=outcome, content=content if content.strip() else "It failed, and gave no words.")


async def reconcile(
    ownership: Ownership, tool: Tool, *, context: ToolContext, arguments: str
) -> Done | NotDone | Unknown:
    """Ask the tool's ``reconcile`` what became of a call; ``Unknown`` when there is none, or when it fails."""
    if tool.reconcile is None:
        return Unknown()
    context = _anew(context)
    limit = tool.timeout_seconds or ownership.deps.settings.tool_seconds
    try:
        answer = await called(
            ownership, partial(tool.reconcile, context, **tool.parse(arguments)), limit=limit, stopping=context.stopping
        )
        return _reconciled(answer)
    except Exception as error:  # noqa: BLE001 - the user's other code: one of the five borders
        tell_failed(ownership, tool, "reconcile", error=error)
        return Unknown()


def _reconciled(answer: object) -> Done | NotDone | Unknown:
    if isinstance(answer, Done | NotDone | Unknown):
        return answer
    raise TypeError(f"it returned {type(answer).__name__}, not Done, NotDone or Unknown")


def tell_failed(ownership: Ownership, tool: Tool, what: str, *, error: Exception) -> None:
    """Tell observers that a function which belongs to ``tool`` raised."""
    secrets = ownership.deps.secrets
    words, trace = error_text(error, secrets), trace_text(error, secrets)
    ownership.tell(UserCodeFailed, tool=tool.name, what=what, error=words, traceback=trace)


def _nobody_asks() -> None:
    """When it begins is of no interest."""


def _anew(context: ToolContext) -> ToolContext:
    """For each execution: what an earlier one was told, and what it asked for, ended with it."""
    return replace(context, stopping=threading.Event())


async def called(
    ownership: Ownership,
    function: Callable[[], Any],
    *,
    limit: float,
    stopping: threading.Event,
    begins: Callable[[], None] = _nobody_asks,
) -> Any:
    """What a user's function returns. Waiting for a thread does not count into the limit; ``stopping`` tells the
    function to stop. ``begins`` is called right before it.

    Raises:
        TimeLimitExceeded: it did not return in time. It was told to stop; it may still run.
        Exception: what it raised; ``RuntimeError`` in place of what would end more than the call.
    """
    begin_nothing_when_cancelled()
    threads = ownership.deps.threads
    ending = partial(_ending, limit=limit, stop_seconds=ownership.deps.settings.stop_seconds, stopping=stopping)
    if inspect.iscoroutinefunction(function):
        begins()
        value = await ending(threads.task(function))
    else:
        async with threads.thread() as start:
            begins()
            value = await ending(start(function))
    if inspect.isawaitable(value):
        begin_nothing_when_cancelled()
        value = await ending(threads.task(partial(_itself, value)))
    if inspect.isawaitable(value) or isinstance(value, AsyncIterator):
        raise TypeError(f"it returned {type(value).__name__}, which is no value: return what comes of it")
    return value


def begin_nothing_when_cancelled() -> None:
    """Go on with the cancellation of this task that the end of an earlier call has held up, since its end counts."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _itself(awaitable: Awaitable[Any]) -> Awaitable[Any]:
    return awaitable


async def _ending(call: asyncio.Future[Any], *, limit: float, stop_seconds: float, stopping: threading.Event) -> Any:
    """The end of a call that runs in a task or a thread. Told to stop, by its time limit or because we are cancelled,
    it gets ``stop_seconds`` to do so, and its end counts as it is; then it is left to itself."""
    why: BaseException = TimeLimitExceeded(f"took longer than its time limit of {limit:g} seconds.")
    try:
        await asyncio.wait({call}, timeout=limit)
    except asyncio.CancelledError as error:
        why = error
    if not call.done():
        stopping.set()
        if isinstance(call, asyncio.Task):  # a thread cannot be cancelled, and its end would count no more
            call.cancel()
        await asyncio.wait({call}, timeout=stop_seconds)
        if not call.done() or call.cancelled():
            raise why
    elif call.cancelled():
        raise RuntimeError("the tool was cancelled by its own code")
    return call.result()
