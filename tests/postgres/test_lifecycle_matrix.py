"""Every pair of status and trigger, against the transition table."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from agentrt.core.lifecycle import Trigger, transitions
from agentrt.core.session import Status
from tests.postgres.stage import Stage, answer, approval_request, deferral

Make = Callable[[Stage], Awaitable[UUID]]
WAITS = ("input", "approval", "external", "blocked", "budget")


async def with_open_calls(stage: Stage) -> UUID:
    """A running session with an approval that is open and a deferred call."""
    session = await stage.running()
    await stage.append(session, answer("pay", "ask_boss"), approval_request(0, expires_seconds=3600))
    await stage.append(session, deferral("000004001"))
    return session


async def released(stage: Stage) -> UUID:
    session = await with_open_calls(stage)
    await stage.end(session, "release", reason="drain")
    return session


def suspended(reason: str) -> Make:
    async def make(stage: Stage) -> UUID:
        session = await stage.running()
        if reason == "approval":
            await stage.append(session, answer("pay"), approval_request(0, expires_seconds=3600))
        elif reason == "external":
            await stage.append(session, answer("ask_boss"))
            await stage.append(session, deferral("000004000"))
        await stage.suspend(session, reason, "000004000")
        return session

    return make


async def waits_for_two(stage: Stage) -> UUID:
    session = await with_open_calls(stage)
    await stage.suspend(session, "approval", "000004000", "000004001")
    return session


async def exhausted(stage: Stage) -> UUID:
    return await stage.running(max_attempts=1)


def with_queued_message(make: Make) -> Make:
    async def more(stage: Stage) -> UUID:
        session = await make(stage)
        await stage.send(session, "later", when_running="queue")
        return session

    return more


def ended(status: str) -> Make:
    async def make(stage: Stage) -> UUID:
        session = await with_open_calls(stage)
        match status:
            case "completed":
                await stage.complete(session)
            case "failed":
                await stage.fail(session)
            case _:
                await stage.cancel(session)
        return session

    return make


STATES: dict[str, tuple[Status, Make]] = {
    "queued": (Status.QUEUED, Stage.create),
    "queued, released": (Status.QUEUED, released),
    "running": (Status.RUNNING, with_open_calls),
    "running, exhausted": (Status.RUNNING, exhausted),
    "running, queued message": (Status.RUNNING, with_queued_message(with_open_calls)),
    "running, exhausted, queued message": (Status.RUNNING, with_queued_message(exhausted)),
    **{f"suspended, {reason}": (Status.SUSPENDED, suspended(reason)) for reason in WAITS},
    "suspended, two": (Status.SUSPENDED, waits_for_two),
    **{status: (Status(status), ended(status)) for status in ("completed", "failed", "cancelled")},
}


async def create_again(stage: Stage, session: UUID) -> None:
    await stage.create("other words", id=str(session))


async def claim(stage: Stage, session: UUID) -> None:
    await stage.claim(await stage.worker(), queue=(await stage.head(session))["queue"])


async def reap(stage: Stage, session: UUID) -> None:
    owner = (await stage.head(session))["lease_owner"]
    await stage.connection.execute("update agentrt.workers set state = 'dead' where id = $1", owner)
    await stage.sweep()


async def decide(stage: Stage, session: UUID) -> None:
    approval = await stage.connection.fetchval("select id from agentrt.approvals where session_id = $1", session)
    await stage.decide(approval or UUID(int=0))


async def expire(stage: Stage, session: UUID) -> None:
    await stage.connection.execute(
        """update agentrt.approvals set expires_at = now() - interval '1 second'
           where session_id = $1 and state = 'pending'""",
        session,
    )
    await stage.sweep()


async def result(stage: Stage, session: UUID) -> None:
    """A result for the deferred call: the last one of the answer."""
    calls = [e.data["content"] for e in await stage.entries(session) if e.type == "assistant_message"]
    await stage.complete_call(session, calls[-1][-1]["call_id"] if calls else "000004000")


TRIGGERS: dict[Trigger, Callable[[Stage, UUID], Awaitable[object]]] = {
    Trigger.CREATE: create_again,
    Trigger.CLAIM: claim,
    Trigger.RELEASE: lambda stage, session: stage.end(session, "release", reason="drain"),
    Trigger.CRASH_RELEASE: lambda stage, session: stage.end(session, "crash", message="boom"),
    Trigger.REAP: reap,
    Trigger.FORCED_RELEASE: lambda stage, session: stage.call("release_session", session),
    Trigger.SUSPEND: lambda stage, session: stage.suspend(session, "input"),
    Trigger.COMPLETE: lambda stage, session: stage.complete(session),
    Trigger.FAIL: lambda stage, session: stage.fail(session),
    Trigger.MESSAGE: lambda stage, session: stage.send(session),
    Trigger.INTERRUPT: lambda stage, session: stage.send(session, when_running="interrupt"),
    Trigger.QUEUE: lambda stage, session: stage.send(session, when_running="queue"),
    Trigger.REJECT: lambda stage, session: stage.send(session, when_running="reject"),
    Trigger.DECISION: decide,
    Trigger.RESULT: result,
    Trigger.EXPIRY: expire,
    Trigger.RESUME: lambda stage, session: stage.call("resume_session", session),
    Trigger.CANCEL: lambda stage, session: stage.cancel(session),
    Trigger.RETRY: lambda stage, session: stage.call("retry_session", session),
    Trigger.ARCHIVE: lambda stage, session: stage.call("archive_session", session),
}

OF_THE_STATE = {
    # which transition of several a state takes, by words of its `when`; the rest take the first
    (Trigger.CRASH_RELEASE, "running, exhausted"): "no attempt is left",
    (Trigger.CRASH_RELEASE, "running, exhausted, queued message"): "no attempt is left, a queued message is left",
    (Trigger.REAP, "running, exhausted"): "no attempt is left",
    (Trigger.REAP, "running, exhausted, queued message"): "no attempt is left, a queued message is left",
    **{
        (trigger, f"running, {more}queued message"): "a queued message is left"
        for trigger in (Trigger.COMPLETE, Trigger.FAIL)
        for more in ("", "exhausted, ")
    },
    **{
        (trigger, f"suspended, {reason}"): "waits for something else"
        for trigger in (Trigger.MESSAGE, Trigger.QUEUE, Trigger.INTERRUPT)
        for reason in (*WAITS[1:], "two")
        if trigger != Trigger.INTERRUPT or reason not in ("approval", "two")
    },
    **{
        (trigger, "suspended, two"): "something is left"
        for trigger in (Trigger.DECISION, Trigger.RESULT, Trigger.EXPIRY)
    },
}

REFUSED_FOR_ANOTHER_REASON = {
    # nothing of the kind exists in these states, or something else is in the way
    *((Trigger.DECISION, state) for state in STATES if "approval" not in state and "two" not in state),
    *((Trigger.EXPIRY, state) for state in STATES if "approval" not in state and "two" not in state),
    *((Trigger.RESULT, state) for state in STATES if "external" not in state and "two" not in state),
    *((Trigger.REJECT, f"suspended, {reason}") for reason in (*WAITS[1:], "two")),
    (Trigger.RESUME, "suspended, approval"),
    (Trigger.RESUME, "suspended, two"),
} - {
    (trigger, state)
    for trigger in (Trigger.DECISION, Trigger.EXPIRY, Trigger.RESULT)
    for state in ("queued, released", "running", "running, queued message")
}


@pytest.mark.parametrize("trigger", Trigger)
async def test_a_trigger_does_in_every_status_what_the_table_says_and_nothing_else(stage, trigger):
    """Case 41."""
    for state, (status, make) in STATES.items():
        session = await make(stage)
        before = await stage.everything(session)
        assert await stage.status(session) == status, state
        refusal = await refusal_of(TRIGGERS[trigger](stage, session))
        assert refusal in (None, "AR001", "AR002", "AR003"), state
        allowed = transitions(status, trigger)
        if not allowed or (trigger, state) in REFUSED_FOR_ANOTHER_REASON:
            assert unchanged(await stage.everything(session), before), (state, trigger)
            continue
        assert refusal is None, (state, refusal)
        wanted = OF_THE_STATE.get((trigger, state), allowed[0].when)
        [transition] = [t for t in allowed if t.when == wanted]
        head = await stage.head(session)
        assert head["status"] == transition.after, (state, trigger)
        assert head["run"] == (2 if transition.new_run else 1), (state, trigger)
        await stage.entries(session)  # gapless


async def refusal_of(command: Awaitable[object]) -> str | None:
    try:
        await command
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return None


def unchanged(after: list[list[tuple[object, ...]]], before: list[list[tuple[object, ...]]]) -> bool:
    """Nothing was written; the test itself ages approvals."""
    return after[:2] == before[:2] and [row[8] for row in after[2]] == [row[8] for row in before[2]]
