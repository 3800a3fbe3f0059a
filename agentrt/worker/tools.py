"""Running the tool calls of an answer: order, validation, effects; each result is committed when it exists."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, assert_never

from agentrt.agents import Done, InvalidArguments, NotDone, Tool, ToolContext
from agentrt.core.calls import NOT_BEGUN, interrupted, no_such_tool
from agentrt.core.journal import Effect, ToolOutcome, ToolStarted
from agentrt.core.transcript import OpenCall
from agentrt.worker.approvals import approval_of, arguments_hash, reason_to_ask
from agentrt.worker.invoke import End, begin_nothing_when_cancelled, invoke, reconcile
from agentrt.worker.ownership import Ownership, most_telling
from agentrt.worker.results import deferral_of, done_end, finish, unknown_end
from agentrt.worker.transactional import run_transactional
from agentrt.worker.wording import cut

MOST_AT_ONCE: Final = 8


async def run_tools(ownership: Ownership, calls: Sequence[OpenCall]) -> None:
    """Run the calls: at most 8 at once, in their order, none beside a sequential one. Begins none while draining.

    Raises:
        LeaseLost: somebody else owns the session now.
    """
    free = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(call: OpenCall) -> None:
        async with free:
            if not ownership.holding.draining.is_set():
                await _answer(ownership, call)

    for together in _batches(ownership, calls):
        try:
            async with asyncio.TaskGroup() as group:
                for call in together:
                    group.create_task(one(call), name=f"tool {call.call.tool} {call.call.call_id}")
        except BaseExceptionGroup as raised:
            raise most_telling(raised) from None


def _batches(ownership: Ownership, calls: Sequence[OpenCall]) -> Iterator[Sequence[OpenCall]]:
    def alone(call: OpenCall) -> bool:
        tool = ownership.agent.tools.get(call.call.tool)
        return tool is not None and tool.sequential

    for sequential, group in itertools.groupby(calls, key=alone):
        if sequential:
            yield from ([call] for call in group)
        else:
            yield list(group)


async def _answer(ownership: Ownership, call: OpenCall) -> None:
    """One call, from its arguments to its committed result (or a request for approval, or a deferral)."""
    begun = ownership.deps.clock()
    end = await _end_of(ownership, call)
    if end is not None and end.deferred is not None:
        await ownership.append(deferral_of(call, ownership.agent.tools[call.call.tool], end.deferred))
    elif end is not None:
        await finish(ownership, call, end=end, seconds=ownership.deps.clock() - begun)


async def _end_of(ownership: Ownership, call: OpenCall) -> End | None:
    """None when nothing is left to be written: an approval was requested, or the end is committed already."""
    tool = ownership.agent.tools.get(call.call.tool)
    if tool is None:
        return End(outcome=ToolOutcome.ERROR, content=no_such_tool(call.call.tool, ownership.agent.tools))
    if call.approval is not None and call.approval.arguments_hash != arguments_hash(call.call.arguments):
        return End(outcome=ToolOutcome.DENIED, content="Not run: other arguments than these were approved.")
    try:
        tool.parse(call.call.arguments)
    except InvalidArguments as error:
        if call.started:
            return unknown_end("its arguments no longer fit the tool.")
        return End(outcome=ToolOutcome.ERROR, content=cut(str(error), ownership.deps.settings.tool_result_max_bytes))
    if not call.started and call.approval is None and (reason := await reason_to_ask(ownership, call.call)):
        await ownership.append(approval_of(call.call, reason=reason))
        return None
    return await _run(ownership, tool, call)


async def _run(ownership: Ownership, tool: Tool, call: OpenCall) -> End | None:
    begin_nothing_when_cancelled()
    context = context_of(ownership, call)
    match tool.effect:
        case Effect.READ | Effect.IDEMPOTENT:
            return await invoke(ownership, tool, context=context, arguments=call.call.arguments)
        case Effect.ONCE:
            return await _Once(ownership, tool, call).run(context)
        case Effect.TRANSACTIONAL:
            return await run_transactional(ownership, tool, call, context=context)
        case _:
            assert_never(tool.effect)


def context_of(ownership: Ownership, call: OpenCall) -> ToolContext:
    """What the tool is given."""
    session = ownership.session
    return ToolContext(
        session_id=session.id,
        call_id=call.call.call_id,
        agent=session.agent,
        attempt=session.attempt,
        tenant=session.tenant,
        labels=session.labels,
    )


# --- effect "once" --------------------------------------------------------------------------------------------------


class _Once:
    """A call that is never run again unless ``reconcile`` says that it had no effect."""

    def __init__(self, ownership: Ownership, tool: Tool, call: OpenCall) -> None:
        self.ownership = ownership
        self.tool = tool
        self.call = call

    async def run(self, context: ToolContext) -> End:
        arguments = self.call.call.arguments
        if self.call.started:
            settled = await self._settle(context, why="its worker ended before it did.")
            if settled is not None:
                return settled
            if self.call.closed_off:
                return End(outcome=ToolOutcome.INTERRUPTED, content=interrupted(begun=True, harmless=True))
        holding = self.ownership.holding
        try:
            if not self.call.started:
                started = ToolStarted(self.call.call.call_id, self.tool.name, Effect.ONCE)
                await self.ownership.append(started)
            holding.once_running += 1
            try:
                end = await invoke(self.ownership, self.tool, context=context, arguments=arguments)
            finally:
                holding.once_running -= 1
        except asyncio.CancelledError:
            begun = self.ownership.begun.get(self.call.call.call_id)
            if not holding.lost and (self.tool.reconcile is None or begun is None):
                await self._cut(begun)
            raise
        if end.known:
            return end
        settled = await self._settle(context, why=end.content)
        if settled is not None:
            return replace(settled, cause=end.cause)
        return End(outcome=end.outcome, content=f"{end.content} It had no effect.", cause=end.cause)

    async def _settle(self, context: ToolContext, *, why: str) -> End | None:
        """What ``reconcile`` says of a call whose end was not seen; None when it had no effect."""
        answer = await reconcile(self.ownership, self.tool, context=context, arguments=self.call.call.arguments)
        if isinstance(answer, NotDone):
            return None
        if isinstance(answer, Done):
            return done_end(self.ownership, answer)
        return unknown_end(why)

    async def _cut(self, begun: float | None) -> None:
        """Journal the unknown end of a call that is being cancelled; ``begun`` None: its function has not begun.
        Without a result but with a ``reconcile`` it stays open instead: whoever plans next asks."""
        end, seconds = End(outcome=ToolOutcome.INTERRUPTED, content=NOT_BEGUN), 0.0
        if begun is not None:
            end, seconds = unknown_end("it was cut off while it ran."), self.ownership.deps.clock() - begun
        await finish(self.ownership, self.call, end=end, seconds=seconds)
