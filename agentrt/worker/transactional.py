"""Tools that write to the same Postgres: what they wrote and their result are committed together, or not at all."""

from __future__ import annotations

import asyncio
from typing import Final

from agentrt.agents import Tool, ToolContext
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.journal import ToolOutcome
from agentrt.core.retry import delay_seconds
from agentrt.core.transcript import OpenCall
from agentrt.ports import ToolTransaction, ToolTransactionBroken, ToolTransactionConflict, UnstorableBatch
from agentrt.toolspec import ToolConnection
from agentrt.worker.invoke import End, invoke
from agentrt.worker.ownership import Ownership, new_entries
from agentrt.worker.results import deferral_of, is_open, result_key, result_of, tell_finished
from agentrt.worker.wording import leaves_of, without_secrets

MOST_CONFLICTS: Final = 10
"""Runs of one call that the database undid, before the model is told. Each had a connection at first: a tool whose
statements bring the server down ends here as well."""

_CONNECTION_GONE: Final = ("08", "57P0")  # SQLSTATEs of connection exceptions, and of a server that goes away


async def run_transactional(ownership: Ownership, tool: Tool, call: OpenCall, *, context: ToolContext) -> End | None:
    """Run the call until it is committed with its result (then None), or has an end without any effect.

    While the database is away it is not run; while there is no connection although the database answers others, it
    waits for ``tool_seconds``: the tool's own limit is that of its work.

    Raises:
        LeaseLost: somebody else owns the session now; nothing was written.
    """
    patience = _Patience(ownership)
    while True:
        try:
            async with ownership.deps.store.tool_transaction(ownership.deps.worker_id) as transaction:
                return await _run_in(ownership, transaction, tool, call, context=context)
        except ToolTransactionBroken as error:
            why = without_secrets(str(error), ownership.deps.secrets)
            words = f"The result of {tool.name} could not be committed together with what it wrote: {why}."
            return End(outcome=ToolOutcome.ERROR, content=words, cause=error)
        except UnstorableBatch as error:  # a deferred constraint of the tool's own tables, or a client's result
            await ownership.catch_up()
            if not is_open(ownership, call):
                return None
            why = without_secrets(str(error), ownership.deps.secrets)
            words = f"The database refused what {tool.name} wrote when it was committed: {why}. It had no effect."
            return End(outcome=ToolOutcome.ERROR, content=words, cause=error)
        except (ToolTransactionConflict, DatabaseUnavailable) as error:
            over = await patience.over(undone=isinstance(error, ToolTransactionConflict))
            if over is not None:
                words = f"{tool.name} {over}. It had no effect."
                return End(outcome=ToolOutcome.ERROR, content=words, cause=error)


class _Patience:
    """When a call is to be run again, and when it is not."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._seconds = ownership.deps.settings.tool_seconds
        self._undone = 0
        self._refused = 0
        self._refused_since = 0.0

    async def over(self, *, undone: bool) -> str | None:
        """Wait until it may be run again, then None; or say why it is not. ``undone``: it was run, and had a
        connection; else there was none to be had."""
        deps = self._ownership.deps
        if undone:
            self._undone, self._refused = self._undone + 1, 0
            if self._undone == MOST_CONFLICTS:
                return f"was run {MOST_CONFLICTS} times, and each time the database undid it"
        else:
            self._refused_since = self._refused_since if self._refused else deps.clock()
            self._refused += 1
            if deps.clock() - self._refused_since >= self._seconds:
                return f"could not be run: for {self._seconds:g} seconds there was no connection for it"
        times = self._undone if undone else self._refused
        await asyncio.sleep(delay_seconds(times, jitter=deps.random(), base=0.05, ceiling=2.0))
        await self._ownership.patiently(lambda: deps.store.head(self._ownership.session.id))
        return None


async def _run_in(
    ownership: Ownership, transaction: ToolTransaction, tool: Tool, call: OpenCall, *, context: ToolContext
) -> End | None:
    context.transaction = ToolConnection(transaction.connection)
    begun = ownership.deps.clock()
    end = await invoke(ownership, _bounded(ownership, tool), context=context, arguments=call.call.arguments)
    seconds = ownership.deps.clock() - begun
    if end.outcome is not ToolOutcome.OK:
        try:
            await transaction.rollback()
        except DatabaseUnavailable:  # its connection is gone, and with it what it wrote
            raise ToolTransactionConflict(end.content) from end.cause
        leaves = () if end.cause is None else leaves_of(end.cause)
        if any(transaction.is_conflict(leaf) or _undone(leaf) for leaf in leaves):
            raise ToolTransactionConflict(end.content)
        if any(isinstance(leaf, DatabaseUnavailable) for leaf in leaves):
            raise DatabaseUnavailable(end.content)
        return end
    result = result_of(call, end, seconds=seconds)
    if end.deferred is not None:
        new = new_entries([deferral_of(call, tool, end.deferred)])
    else:
        new = new_entries([result], dedup_key=result_key(result.call_id))
    async with ownership.writing:
        written = await ownership.deps.committer.append_in(ownership.holding, transaction, entries=new)
        await ownership.absorb(new, written)
    if end.deferred is None:
        tell_finished(ownership, result)
    return None


def _bounded(ownership: Ownership, tool: Tool) -> Tool:
    """The tool with the shorter of its own time limit and that of transactions: an open one holds others up."""
    longest = ownership.deps.settings.transactional_seconds
    shorter = min(tool.timeout_seconds or longest, longest)
    return tool if tool.timeout_seconds == shorter else tool.with_timeout(shorter)


def _undone(cause: BaseException) -> bool:
    """Whether a tool's exception means that its connection is gone, and its transaction with it."""
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_CONNECTION_GONE)
    return isinstance(cause, ConnectionError | ToolTransactionConflict)
