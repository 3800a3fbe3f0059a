"""``run_session``: one ownership of a session, from the claim to its end. A straight line: plan, do, commit, again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, assert_never

from agentrt.core import events
from agentrt.core.calls import interrupted
from agentrt.core.errors import InvalidArgument, LeaseLost
from agentrt.core.journal import SessionResumed, ToolOutcome, ToolResult
from agentrt.core.plan import AskApproval, AskModel, CloseCalls, Finish, RunTools, Step, Wait, next_step
from agentrt.core.resume import plan_resume
from agentrt.core.session import Crashed, Failed, Outcome, Released, ReleaseReason, Suspended, SuspendReason
from agentrt.ports import Answer, NewEntry, UnstorableBatch
from agentrt.worker.approvals import MAY_REPEAT, approval_of
from agentrt.worker.endings import crash_of
from agentrt.worker.holding import Holding, event_keys
from agentrt.worker.ownership import Interrupted, Ownership, RunnerDeps
from agentrt.worker.pacing import wait_for
from agentrt.worker.results import result_key, tell_finished
from agentrt.worker.tools import run_tools
from agentrt.worker.turn import Pause, ask_model
from agentrt.worker.wording import without_secrets

__all__ = ["RunnerDeps", "run_session"]

_LAST_ANSWER_SECONDS: Final = 1.0


async def run_session(holding: Holding, deps: RunnerDeps) -> None:
    """Run the session until its ownership has ended: finished, suspended, released, crashed, or lost.

    Cancelled while ``holding.lost`` is set it writes nothing; cancelled otherwise (the drain's time is over) it
    journals what is unknown, releases the session, and then lets the cancellation go on.
    """
    try:
        await _run(holding, deps)
    except LeaseLost:
        _tell_lost(holding, deps)
    except asyncio.CancelledError:
        await _cut(holding, deps)
        raise
    except Exception as error:  # noqa: BLE001 - the runner: one of the five borders
        await _give_up(holding, deps, crash_of(error, holding, emit=deps.events, secrets=deps.secrets))


async def _run(holding: Holding, deps: RunnerDeps) -> None:
    agent = deps.registry.agents.get(holding.session.agent)
    deps.events(events.SessionClaimed(**event_keys(holding)))
    if agent is None:
        words = f"this worker does not know {holding.session.agent!r}"
        await deps.committer.end(holding, Released(ReleaseReason.NO_SUCH_AGENT, message=words))
        return
    ownership = Ownership(holding, deps, agent)
    await ownership.catch_up()
    await _close(ownership)
    while True:
        outcome = await _step(ownership)
        if outcome is not None and await _ended(ownership, outcome):
            return


async def _step(ownership: Ownership) -> Outcome | None:
    """One round of the loop: None to plan again, or how to end."""
    holding = ownership.holding
    if holding.ahead.is_set():
        await ownership.catch_up()
    if holding.draining.is_set():
        return Released(ReleaseReason.DRAIN)
    try:
        limits = ownership.agent.limits_for(ownership.session.config)
    except InvalidArgument as error:
        return Failed("agent_error", str(error))
    step = next_step(ownership.transcript, limits, ownership.traits, spent=ownership.spent())
    try:
        return await _do(ownership, step)
    except UnstorableBatch as error:  # whoever does it again gets the same
        return _unstorable(ownership, error)


async def _do(ownership: Ownership, step: Step) -> Outcome | None:
    outcome: Outcome | None = None
    match step:
        case AskModel():
            asked = await ask_model(ownership)
            if isinstance(asked, Pause):
                await wait_for(ownership.holding.draining, asked.seconds)  # a drain cuts it
            else:
                outcome = asked
        case RunTools():
            await _run_tools(ownership, step)
        case CloseCalls():
            await _closed(ownership, step.results)
        case AskApproval():
            await ownership.append(*(approval_of(call.call, reason=MAY_REPEAT) for call in step.calls))
        case Wait():
            outcome = Suspended(step.reason, step.message, step.waits_for)
        case Finish():
            outcome = step.outcome
        case _:
            assert_never(step)
    return outcome


async def _run_tools(ownership: Ownership, step: RunTools) -> None:
    before = ownership.holding.last_seq
    try:
        await ownership.attended(run_tools(ownership, (*step.calls, *step.reconcile)))
    except Interrupted:
        await _close_cut(ownership)
        return
    if ownership.holding.last_seq == before and not ownership.holding.draining.is_set():
        raise RuntimeError("tools were run, and nothing came of it: the same would be planned again")


async def _close_cut(ownership: Ownership) -> None:
    """Journal the ends of what an interrupt cut, of which the journal does not say whether it had begun."""
    close = plan_resume(ownership.transcript, ownership.traits).close
    if close:
        await _closed(ownership, [_as_seen(ownership, result) for result in close])


def _as_seen(ownership: Ownership, result: ToolResult) -> ToolResult:
    begun, traits = ownership.begun.get(result.call_id), ownership.traits.get(result.tool)
    if result.outcome is not ToolOutcome.INTERRUPTED or begun is None or traits is None:
        return result
    words = interrupted(begun=True, harmless=traits.leaves_nothing())
    return replace(result, content=words, seconds=round(ownership.deps.clock() - begun, 3))


# --- what a takeover found open -----------------------------------------------------------------------


async def _close(ownership: Ownership) -> None:
    """Journal the results of calls that are not run any more, in one commit."""
    while close := plan_resume(ownership.transcript, ownership.traits).close:
        resumed = SessionResumed(tuple(result.call_id for result in close))
        if await _closed(ownership, close, first=(NewEntry(data=resumed),)):
            ownership.tell(events.SessionResumed, repaired=len(close))


async def _closed(ownership: Ownership, results: Sequence[ToolResult], *, first: tuple[NewEntry, ...] = ()) -> bool:
    """Commit these results, behind ``first``. False when a client has answered one of them meanwhile: plan again."""
    try:
        keyed = [NewEntry(data=result, dedup_key=result_key(result.call_id)) for result in results]
        await ownership.append_entries([*first, *keyed])
    except UnstorableBatch:
        await ownership.catch_up()
        still_open = {call.call.call_id for call in ownership.transcript.open_calls}
        if all(result.call_id in still_open for result in results):
            raise
        return False
    for result in results:
        tell_finished(ownership, result)
    return True


# --- endings --------------------------------------------------------------------------------------------------------


async def _ended(ownership: Ownership, outcome: Outcome) -> bool:
    """Commit the ending; False when a client wrote meanwhile, so that it has to be planned again."""
    try:
        written = await ownership.end(outcome, planned_from=ownership.holding.last_seq)
    except UnstorableBatch as error:
        written = await ownership.end(_unstorable(ownership, error), planned_from=ownership.holding.last_seq)
    return written.answer is not Answer.STALE


def _unstorable(ownership: Ownership, error: UnstorableBatch) -> Suspended:
    words = without_secrets(str(error), ownership.deps.secrets)
    return Suspended(SuspendReason.BLOCKED, f"the database cannot store what came of this step: {words}")


async def _give_up(holding: Holding, deps: RunnerDeps, outcome: Released | Crashed) -> None:
    """An ending that holds whatever clients wrote, unless what is on its way has ended the ownership already."""
    try:
        await deps.committer.settled(holding)
        if not holding.ended:
            await deps.committer.end(holding, outcome, planned_from=holding.last_seq)
    except LeaseLost:
        _tell_lost(holding, deps)


def _tell_lost(holding: Holding, deps: RunnerDeps) -> None:
    """Nothing is lost when an ending was committed."""
    if not holding.ended:
        deps.events(events.SessionLost(**event_keys(holding)))


async def _cut(holding: Holding, deps: RunnerDeps) -> None:
    """The task is being cancelled. Tools have journaled what is unknown; what is not lost is given back."""
    if not holding.lost:
        await _give_up(holding, deps, Released(ReleaseReason.DRAIN))
        return
    if deps.committer.ending(holding) and not holding.fenced:  # perhaps it is our own ending that took the session
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWER_SECONDS):
                await deps.committer.settled(holding)
    _tell_lost(holding, deps)
