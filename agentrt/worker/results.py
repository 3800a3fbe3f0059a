"""The end of a tool call, written into the journal once and for all."""

from __future__ import annotations

from typing import Final

from agentrt.agents import Deferred, Done, Tool
from agentrt.core.calls import unknown
from agentrt.core.events import ToolFinished
from agentrt.core.journal import ToolOutcome, ToolResult, ToolStarted
from agentrt.core.session import CallId
from agentrt.core.transcript import OpenCall
from agentrt.ports import UnstorableBatch
from agentrt.worker.invoke import End
from agentrt.worker.ownership import Ownership
from agentrt.worker.wording import cut, result_text, trace_text

NO_TOOL: Final = "unknown"
"""What observers are told in place of a tool that the agent does not have."""


def unknown_end(why: str) -> End:
    """Nobody can tell whether the call had its effect. ``why`` is a sentence."""
    return End(outcome=ToolOutcome.UNKNOWN, content=unknown(why))


def done_end(ownership: Ownership, done: Done) -> End:
    """The call had its effect, as ``reconcile`` found out."""
    limit = ownership.deps.settings.tool_result_max_bytes
    return End(outcome=ToolOutcome.OK, content=cut(result_text(done.result), limit))


def result_key(call_id: CallId) -> str:
    """The dedup key of a call's result: there can be only one."""
    return f"w:result:{call_id}"


def result_of(call: OpenCall, end: End, *, seconds: float) -> ToolResult:
    """The entry that answers ``call``."""
    return ToolResult(call.call.call_id, call.call.tool, end.content, end.outcome, round(seconds, 3))


def deferral_of(call: OpenCall, tool: Tool, deferred: Deferred) -> ToolStarted:
    """The entry that says that ``call`` will be answered from outside."""
    return ToolStarted(
        call.call.call_id, tool.name, tool.effect, deferred=True, expires_seconds=deferred.expires_seconds
    )


async def finish(ownership: Ownership, call: OpenCall, *, end: End, seconds: float) -> None:
    """Commit a call's result and tell observers.

    Raises:
        LeaseLost: somebody else owns the session now.
    """
    result, key = result_of(call, end, seconds=seconds), result_key(call.call.call_id)
    try:
        await ownership.append(result, dedup_key=key)
    except UnstorableBatch as error:
        await ownership.catch_up()
        if not is_open(ownership, call):  # a client was faster: its result stands
            return
        end = unstorable_end(error)
        result = result_of(call, end, seconds=seconds)
        await ownership.append(result, dedup_key=key)
    tell_finished(ownership, result, cause=end.cause)


def tell_finished(ownership: Ownership, result: ToolResult, *, cause: BaseException | None = None) -> None:
    """Tell observers how a call ended, without its texts: models invent tools, and would invent labels of metrics."""
    ownership.tell(
        ToolFinished,
        tool=result.tool if result.tool in ownership.agent.tools else NO_TOOL,
        tool_call_id=str(result.call_id),
        outcome=str(result.outcome),
        seconds=result.seconds,
        error="" if cause is None else type(cause).__name__,
        traceback="" if cause is None else trace_text(cause, ownership.deps.secrets),
    )


def unstorable_end(error: UnstorableBatch) -> End:
    """The call ended, and the database refuses its result."""
    return End(outcome=ToolOutcome.ERROR, content="The call ended, but its result cannot be stored.", cause=error)


def is_open(ownership: Ownership, call: OpenCall) -> bool:
    """Whether the journal in memory has no result of ``call``."""
    return any(other.call.call_id == call.call.call_id for other in ownership.transcript.open_calls)
