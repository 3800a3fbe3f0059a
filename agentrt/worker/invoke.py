"""Calling a user's function: in the loop or in a thread, with a time limit, and its end as a value."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentrt.agents import Deferred, Done, NotDone, NotExecuted, Tool, ToolContext, ToolError, Unknown
from agentrt.core.events import UserCodeFailed
from agentrt.core.journal import ToolOutcome
from agentrt.worker.activation import Activation
from agentrt.worker.wording import cut, error_text, result_text, trace_text


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


async def invoke(activation: Activation, tool: Tool, *, context: ToolContext, arguments: Mapping[str, Any]) -> End:
    """Call the tool's function once. Raises nothing but ``CancelledError``."""
    settings = activation.deps.settings
    limit = tool.timeout_seconds or settings.tool_seconds
    given = (context,) if tool.signature.takes_context else ()
    try:
        value = await _call(activation, partial(tool.function, *given, **arguments), limit=limit, context=context)
    except ToolError as error:
        return End(outcome=ToolOutcome.ERROR, content=cut(str(error), settings.tool_result_max_bytes))
    except NotExecuted as error:
        return End(outcome=ToolOutcome.NOT_RUN, content=cut(f"Not executed: {error}", settings.tool_result_max_bytes))
    except TimeLimitExceeded as error:
        return End(outcome=ToolOutcome.TIMEOUT, content=f"{tool.name} {error}", known=False)
    except Exception as error:  # noqa: BLE001 - a tool call: one of the five borders
        content = error_text(error, activation.deps.secrets)
        return End(outcome=ToolOutcome.ERROR, content=content, known=False, cause=error)
    content = "" if context.deferred else cut(result_text(value), settings.tool_result_max_bytes)
    return End(outcome=ToolOutcome.OK, content=content, deferred=context.deferred)


async def reconcile(
    activation: Activation, tool: Tool, *, context: ToolContext, arguments: Mapping[str, Any]
) -> Done | NotDone | Unknown:
    """Ask the tool's ``reconcile`` what became of a call; ``Unknown`` when there is none, or when it fails."""
    if tool.reconcile is None:
        return Unknown()
    limit = tool.timeout_seconds or activation.deps.settings.tool_seconds
    try:
        answer = await _call(activation, partial(tool.reconcile, context, **arguments), limit=limit, context=context)
        return _reconciled(answer)
    except Exception as error:  # noqa: BLE001 - the user's other code: one of the five borders
        tell_failed(activation, tool, "reconcile", error=error)
        return Unknown()


def _reconciled(answer: object) -> Done | NotDone | Unknown:
    if isinstance(answer, Done | NotDone | Unknown):
        return answer
    raise TypeError(f"it returned {type(answer).__name__}, not Done, NotDone or Unknown")


def tell_failed(activation: Activation, tool: Tool, what: str, *, error: Exception) -> None:
    """Tell observers that a function which belongs to ``tool`` raised."""
    secrets = activation.deps.secrets
    words, trace = error_text(error, secrets), trace_text(error, secrets)
    activation.tell(UserCodeFailed, tool=tool.name, what=what, error=words, traceback=trace)


async def _call(activation: Activation, function: Callable[[], Any], *, limit: float, context: ToolContext) -> Any:
    """Waiting for a thread does not count into the limit."""
    try:
        if inspect.iscoroutinefunction(function):
            return await _limited(function, limit=limit)
        async with activation.deps.threads.thread() as start:
            value = await _limited(lambda: start(function), limit=limit)
        return await _limited(lambda: value, limit=limit) if inspect.isawaitable(value) else value
    except BaseException:
        context.stopping.set()
        raise


async def _limited(begin: Callable[[], Any], *, limit: float) -> Any:
    timer = asyncio.timeout(limit)
    try:
        async with timer:
            return await begin()
    except TimeoutError:
        if timer.expired():
            raise TimeLimitExceeded(f"took longer than its time limit of {limit:g} seconds.") from None
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the tool was cancelled by its own code") from None
    except SystemExit as error:
        raise RuntimeError(f"the tool asked the process to exit ({error.code})") from None
