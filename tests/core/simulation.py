"""Lawful journals, made by simulating what writes them: clients, owners that plan with the real planner, and crashes.

Everything that happens is decided by a tape of bytes, so that hypothesis can shrink a failure to a short story. A tape
that has run out decides for the plainest thing: no fault, an answer without calls, the decision that is waited for.
While the story is told, the world checks what must hold at each moment; at its end it is looked at as a whole.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from agentrt.core.budget import Limits
from agentrt.core.content import Block, Content, Text, Thinking, ToolCall
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Effect,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionClaimed,
    SessionCompleted,
    SessionCreated,
    SessionFailed,
    SessionOrphaned,
    SessionReleased,
    SessionResumed,
    SessionRetried,
    SessionSuspended,
    SessionWoken,
    StopReason,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    UserMessage,
    call_id,
)
from agentrt.core.plan import AskApproval, AskModel, CloseCalls, Finish, RunTools, Step, Wait, next_step
from agentrt.core.resume import plan_resume
from agentrt.core.session import Completed, Status, SuspendReason
from agentrt.core.transcript import OpenCall, Transcript
from tests.core.world import MAX_STEPS, MODELS, NAMES, TOOLS, Crash, Request, Tape, World


def tell(tape: bytes, *, faults: bool = True) -> World:
    """A whole story: at the end nothing is left to do but what a client may still want."""
    world = World(Tape(tape), faults)
    world.write(SessionCreated("agent"), UserMessage((Text("hello"),)))
    for _ in range(MAX_STEPS):
        if world.status is Status.QUEUED:
            own(world)
        elif world.tape.at >= len(world.tape.content) and world.status.terminal:
            break
        else:
            client_acts(world)
    return world


# --- the owner ------------------------------------------------------------------------------------------------------


def own(world: World) -> None:
    """One ownership: claim, resume, and steps until an ending or a crash."""
    world.token, world.attempt, world.status = world.token + 1, max(world.attempt, 1), Status.RUNNING
    world.write(SessionClaimed("worker"))
    try:
        plan = plan_resume(world.transcript(), TOOLS)
        if plan.close:
            may_crash(world)
            world.write(*plan.close, SessionResumed(tuple(result.call_id for result in plan.close)))
        while world.status is Status.RUNNING and len(world.steps) < 3 * MAX_STEPS:
            while client_interferes(world):
                pass
            if world.faults and world.tape.once_in(24):
                release(world)
            if world.status is Status.RUNNING:
                take(world, next_step(world.transcript(), Limits(), TOOLS))
    except Crash:
        if world.status is Status.RUNNING:
            world.token, world.attempt = world.token + 1, world.attempt + 1
            world.write(SessionOrphaned())
            world.status = Status.QUEUED


def may_crash(world: World) -> None:
    if world.faults and world.tape.once_in(12):
        raise Crash


def take(world: World, step: Step) -> None:
    world.steps.append(step)
    match step:
        case AskModel():
            ask_model(world)
        case RunTools():
            run_tools(world, step)
        case CloseCalls():
            may_crash(world)
            world.write(*step.results)
        case AskApproval():
            world.asked_twice.update(call.call.call_id for call in step.calls)
            world.write(*(request(call.call, "may_repeat") for call in step.calls))
        case Wait():
            may_crash(world)
            world.waits, world.status, world.attempt = step, Status.SUSPENDED, 0
            world.write(SessionSuspended({"reason": step.reason, "waits_for": list(step.waits_for)}))
        case Finish():
            may_crash(world)
            end(world, step.outcome)


def end(world: World, outcome: Any) -> None:
    """The terminal entry, and the promotion of the oldest queued message."""
    queued = world.transcript().queued
    completed = isinstance(outcome, Completed)
    world.write(SessionCompleted(outcome.outcome) if completed else SessionFailed({"code": outcome.code}))
    world.status = Status.COMPLETED if completed else Status.FAILED
    if queued:
        content = next(
            e.data.content for e in world.entries if e.seq == queued[0] and isinstance(e.data, MessageQueued)
        )
        new_run(world)
        world.write(UserMessage(content, message_seq=queued[0]))


def new_run(world: World) -> None:
    world.run, world.attempt, world.status = world.run + 1, 0, Status.QUEUED


def ask_model(world: World) -> None:
    if world.tape.once_in(24):
        world.identity = MODELS[world.tape.pick(3)]
    transcript = world.transcript()
    world.requests.append(Request(transcript.view(world.identity), world.identity, transcript))
    may_crash(world)
    if world.faults and world.tape.once_in(10):
        error_class = ("transient", "empty", "rejected")[world.tape.pick(3)]
        if transcript.view(None) == transcript.view(world.identity) and error_class == "rejected":
            error_class = "transient"  # there is nothing to leave out: it would be blocked
        world.write(ModelRetried(error_class, "try again", 0.5))
        return
    while client_interferes(world):  # while the model speaks
        if world.status is not Status.RUNNING:
            return
    may_crash(world)
    content, stop_reason = an_answer(world)
    if interrupted(world, transcript):
        content, stop_reason = (Text("I was about to"),), StopReason.INTERRUPTED
    signatures = [f"signed:{b.text}" if isinstance(b, Thinking) else None for b in content]
    provider = {**world.identity._asdict(), "signatures": signatures}
    answer = AssistantMessage(
        content, world.identity.model, stop_reason, transcript.highest_user_seq, provider=provider
    )
    seq = len(world.entries) + 1
    guarded = [
        request(ToolCall(b.tool, b.arguments, call_id(seq, position)), "guarded")
        for position, b in enumerate(content)
        if isinstance(b, ToolCall) and b.tool == "guarded"
    ]
    world.write(answer, *guarded)
    world.attempt = 1


def interrupted(world: World, asked: Transcript) -> bool:
    return any(
        e.seq > asked.last_seq and isinstance(e.data, UserMessage) and e.data.when_running == "interrupt"
        for e in world.entries[asked.last_seq :]
    )


def an_answer(world: World) -> tuple[Content, StopReason]:
    tape = world.tape
    thinking: list[Block] = [Thinking(f"hm {len(world.entries)}")] if tape.once_in(3) else []
    text: list[Block] = [Text(f"answer {len(world.entries)}")]
    said, reason = (*thinking, *text), StopReason.STOP
    match tape.pick(12):
        case 1 | 2 | 3 | 4 | 5 | 6:
            calls: list[Block] = [a_call(tape) for _ in range(1 + tape.pick(3))]
            before, after = (text if tape.pick(2) else []), (text if tape.once_in(8) else [])
            said, reason = (*thinking, *before, *calls, *after), StopReason.TOOL_CALLS
        case 7:
            reason = StopReason.LENGTH
        case 8:
            reason = StopReason.PAUSED
        case 9 if world.faults:
            said, reason = tuple(text if tape.pick(2) else []), StopReason.REFUSED
        case 10:
            said, reason = (*text, a_call(tape)), StopReason.LENGTH
        case 11:
            said = (*thinking, Text(" "), *text, Thinking("one more thing"))
        case _:
            pass
    return said, reason


def a_call(tape: Tape) -> ToolCall:
    name = NAMES[tape.pick(len(NAMES))] if not tape.once_in(20) else "no such tool!"
    return ToolCall(name, json.dumps({"n": tape.pick(2)}) if not tape.once_in(20) else '{"n": tr')


def request(call: ToolCall, reason: str) -> ApprovalRequested:
    return ApprovalRequested(
        UUID(call.call_id.rjust(32, "0")), call.call_id, None, call.tool, call.arguments, "", reason
    )


# --- tools ----------------------------------------------------------------------------------------------------------


def run_tools(world: World, step: RunTools) -> None:
    for call in step.reconcile:
        may_crash(world)
        match world.tape.pick(3):
            case 1:
                world.write(result_of(call, ToolOutcome.UNKNOWN))
            case 2 if not world.executions[call.call.call_id]:
                if not call.closed_off:
                    execute(world, call)
                else:
                    world.write(result_of(call, ToolOutcome.INTERRUPTED))
            case _:
                done = world.executions[call.call.call_id]
                world.write(result_of(call, ToolOutcome.OK if done else ToolOutcome.UNKNOWN))
    for call in step.calls:
        if client_interferes(world):  # an interrupt or a cancel stops what has not begun
            return
        execute(world, call)


def execute(world: World, call: OpenCall) -> None:
    traits = TOOLS[call.call.tool]
    if traits.once and not call.started:
        world.write(ToolStarted(call.call.call_id, call.call.tool, Effect.ONCE))
    may_crash(world)
    if call.call.tool == "local":
        may_crash(world)  # the effect is committed together with the result, or not at all
    world.executions[call.call.call_id] += 1
    if call.call.tool == "later":
        world.write(ToolStarted(call.call.call_id, call.call.tool, Effect.READ, deferred=True))
        return
    if call.call.tool != "local":
        may_crash(world)
    outcome = ToolOutcome.OK
    if world.faults and world.tape.once_in(6):
        outcome = ToolOutcome.UNKNOWN if traits.once else ToolOutcome.ERROR
    world.write(result_of(call, outcome))
    world.attempt = 1


def result_of(call: OpenCall, outcome: ToolOutcome) -> ToolResult:
    content = "" if call.call.tool == "keyed" else f"{outcome} of {call.call.tool}"
    return ToolResult(call.call.call_id, call.call.tool, content, outcome)


# --- clients --------------------------------------------------------------------------------------------------------


def client_interferes(world: World) -> bool:
    """Perhaps a command while the session runs."""
    if not world.tape.once_in(8):
        return False
    match world.tape.pick(5):
        case 1:
            world.write(MessageQueued((Text(f"queued {len(world.entries)}"),)))
        case 2 if world.faults:
            interrupt(world)
        case 3 if world.faults:
            cancel(world)
            raise Crash  # the owner stops and writes nothing
        case 4:
            decide(world)
        case _:
            world.write(UserMessage((Text(f"steer {len(world.entries)}"),)))
    return True


def interrupt(world: World) -> None:
    world.write(UserMessage((Text(f"stop {len(world.entries)}"),), when_running="interrupt"))
    for call in world.transcript().open_calls:
        if call.approval is not None and call.approval.state == "pending":
            world.write(ApprovalDecided(call.approval.id, call.call.call_id, "obsolete"))


def cancel(world: World) -> None:
    world.token, world.status = world.token + 1, Status.CANCELLED
    world.write(SessionCancelled("enough", tuple(world.transcript().queued)))


def decide(world: World) -> bool:
    """Decide one open approval, or bring one deferred result."""
    for call in world.transcript().open_calls:
        if call.approval is not None and call.approval.state == "pending":
            verdict = ("approved", "rejected", "expired")[world.tape.pick(3) if world.faults else 0]
            world.write(ApprovalDecided(call.approval.id, call.call.call_id, verdict, "anna", "as I said"))
            return True
        if call.deferred:
            world.write(ToolResult(call.call.call_id, call.call.tool, "at last", ToolOutcome.OK))
            return True
    return False


def client_acts(world: World) -> None:
    """What a client does with a session that is suspended or at its end."""
    if world.status.terminal:
        if world.status is not Status.COMPLETED and world.tape.once_in(2):
            world.write(SessionRetried())
            new_run(world)
        else:
            new_run(world)
            world.write(UserMessage((Text(f"again {len(world.entries)}"),)))
        return
    assert world.waits is not None
    if world.faults and world.tape.once_in(8):
        cancel(world)
    elif world.waits.reason is SuspendReason.INPUT:
        world.write(UserMessage((Text(f"input {len(world.entries)}"),)))
        wake(world, "message")
    elif world.waits.reason in (SuspendReason.APPROVAL, SuspendReason.EXTERNAL):
        if world.faults and world.tape.once_in(8):
            interrupt(world)
            wake(world, "interrupt")
        elif world.tape.once_in(6):
            world.write(UserMessage((Text(f"meanwhile {len(world.entries)}"),)))
        elif not decide(world) or not still_waits(world):
            wake(world, "decision")
    else:
        wake(world, "resume")


def still_waits(world: World) -> bool:
    return any(
        call.deferred or (call.approval is not None and call.approval.state == "pending")
        for call in world.transcript().open_calls
    )


def wake(world: World, by: str) -> None:
    world.status = Status.QUEUED
    world.write(SessionWoken(by))


def release(world: World) -> None:
    world.status = Status.QUEUED
    world.write(SessionReleased("drain"))
