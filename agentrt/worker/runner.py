"""``run_session``: one ownership of a session, from the claim to its end. A straight line: plan, do, commit, again."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import assert_never

from pydantic import TypeAdapter, ValidationError

from agentrt.agents import Limits
from agentrt.core import events
from agentrt.core.errors import LeaseLost
from agentrt.core.journal import SessionResumed, ToolResult
from agentrt.core.plan import AskApproval, AskModel, CloseCalls, Finish, RunTools, Step, Wait, next_step
from agentrt.core.resume import plan_resume
from agentrt.core.session import Completed, Crashed, Failed, Outcome, Released, Suspended
from agentrt.ports import Answer, NewEntry
from agentrt.worker.activation import Activation, Interrupted, RunnerDeps, event_keys
from agentrt.worker.approvals import MAY_REPEAT, approval_of
from agentrt.worker.holding import Holding
from agentrt.worker.tools import run_tools
from agentrt.worker.turn import Pause, ask_model
from agentrt.worker.wording import error_text

__all__ = ["RunnerDeps", "run_session"]


async def run_session(holding: Holding, deps: RunnerDeps) -> None:
    """Run the session until its ownership has ended: finished, suspended, released, crashed, or lost.

    Cancelled while ``holding.lost`` is set it writes nothing; cancelled otherwise (the drain's time is over) it
    journals what is unknown, releases the session, and then lets the cancellation go on.
    """
    try:
        await _run(holding, deps)
    except LeaseLost:
        deps.events(events.SessionLost(**event_keys(holding)))
    except asyncio.CancelledError:
        await _cut(holding, deps)
        raise
    except Exception as error:  # noqa: BLE001 - the runner: one of the five borders
        await _crash(holding, deps, error)


async def _run(holding: Holding, deps: RunnerDeps) -> None:
    agent = deps.registry.agents.get(holding.session.agent)
    deps.events(events.SessionClaimed(**event_keys(holding)))
    if agent is None:
        await _end_unplanned(
            holding, deps, Released(f"no such agent: this worker does not know {holding.session.agent!r}")
        )
        return
    activation = Activation(holding, deps, agent)
    await activation.catch_up()
    await _close(activation)
    while True:
        outcome = await _step(activation)
        if outcome is not None and await _ended(activation, outcome):
            return


async def _step(activation: Activation) -> Outcome | None:
    """One round of the loop: None to plan again, or how to end."""
    holding = activation.holding
    if holding.ahead.is_set():
        await activation.catch_up()
    if holding.draining.is_set():
        return Released("drain")
    try:
        limits = _limits(activation)
    except ValidationError as error:
        return Failed("agent_error", f"the session's config.limits cannot be used: {error.errors()[0]['msg']}")
    return await _do(activation, next_step(activation.transcript, limits, activation.traits, spent=activation.spent()))


async def _do(activation: Activation, step: Step) -> Outcome | None:
    outcome: Outcome | None = None
    match step:
        case AskModel():
            asked = await ask_model(activation)
            if isinstance(asked, Pause):
                await _rest(activation.holding, asked.seconds)
            else:
                outcome = asked
        case RunTools():
            with suppress(Interrupted):  # the next plan closes what was cut
                await activation.attended(run_tools(activation, (*step.calls, *step.reconcile)))
        case CloseCalls():
            await activation.append_entries([_keyed(result) for result in step.results])
        case AskApproval():
            await activation.append(*(approval_of(call.call, reason=MAY_REPEAT) for call in step.calls))
        case Wait():
            outcome = Suspended(step.reason, step.message, step.waits_for)
        case Finish():
            outcome = step.outcome
        case _:
            assert_never(step)
    return outcome


async def _rest(holding: Holding, seconds: float) -> None:
    """A short back-off with the slot; a drain cuts it."""
    try:
        await asyncio.wait_for(holding.draining.wait(), seconds)
    except TimeoutError:
        return


def _limits(activation: Activation) -> Limits:
    """The agent's, overridden by the session's as far as the agent allows."""
    given = activation.session.config.get("limits")
    if given is None or "limits" not in activation.agent.allow_overrides:
        return activation.agent.limits
    return _LIMITS.validate_python(
        {**asdict(activation.agent.limits), **given} if isinstance(given, Mapping) else given
    )


_LIMITS = TypeAdapter(Limits)


# --- what a takeover found open -----------------------------------------------------------------------


async def _close(activation: Activation) -> None:
    """Journal the results of calls that are not run any more, in one commit."""
    plan = plan_resume(activation.transcript, activation.traits)
    if not plan.close:
        return
    resumed = SessionResumed(tuple(result.call_id for result in plan.close))
    await activation.append_entries([NewEntry(data=resumed), *map(_keyed, plan.close)])
    activation.tell(events.SessionResumed, repaired=len(plan.close))


def _keyed(result: ToolResult) -> NewEntry:
    return NewEntry(data=result, dedup_key=f"w:result:{result.call_id}")


# --- endings --------------------------------------------------------------------------------------------------------


async def _ended(activation: Activation, outcome: Outcome) -> bool:
    """Commit the ending; False when a client wrote meanwhile, so that it has to be planned again."""
    written = await activation.end(outcome, planned_from=activation.holding.last_seq)
    if written.answer is Answer.STALE:
        return False
    _tell_end(activation.holding, activation.deps, outcome)
    return True


async def _end_unplanned(holding: Holding, deps: RunnerDeps, outcome: Released | Crashed) -> None:
    """An ending that holds whatever clients wrote."""
    await deps.committer.end(holding, outcome, planned_from=holding.last_seq)
    _tell_end(holding, deps, outcome)


def _tell_end(holding: Holding, deps: RunnerDeps, outcome: Outcome) -> None:
    keys = event_keys(holding)
    match outcome:
        case Completed():
            deps.events(events.SessionEnded(**keys, status="completed"))
        case Failed():
            deps.events(events.SessionEnded(**keys, status="failed", code=outcome.code))
        case Suspended():
            deps.events(events.SessionSuspended(**keys, reason=str(outcome.reason)))
        case Released():
            kind = outcome.reason.partition(":")[0]  # a metric's label: what follows is for people
            deps.events(events.SessionReleased(**keys, reason=kind))
        case Crashed():
            deps.events(events.SessionReleased(**keys, reason="crash"))
        case _:
            assert_never(outcome)


async def _cut(holding: Holding, deps: RunnerDeps) -> None:
    """The task is being cancelled. Tools have journaled what is unknown; what is not lost is given back."""
    if holding.lost:
        deps.events(events.SessionLost(**event_keys(holding)))
    if holding.lost or holding.ended:
        return
    try:
        await deps.committer.settled(holding)
        await _end_unplanned(holding, deps, Released("drain"))
    except LeaseLost:
        deps.events(events.SessionLost(**event_keys(holding)))


async def _crash(holding: Holding, deps: RunnerDeps, error: Exception) -> None:
    """Charged like a dead worker; the traceback is for the log only."""
    words = error_text(error, deps.secrets)
    told = "".join(traceback.format_exception(error))
    deps.events(events.SessionCrashed(**event_keys(holding), error=words, traceback=told))
    try:
        await deps.committer.settled(holding)
        await _end_unplanned(holding, deps, Crashed(words))
    except LeaseLost:
        deps.events(events.SessionLost(**event_keys(holding)))
