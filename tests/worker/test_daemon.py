"""The daemon with the real runner, the real store and a scripted model: its line, its drain, its faults."""

import asyncio
import json
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from agentrt.agents import Agent, tool
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import (
    Event,
    HeartbeatFailed,
    HeartbeatSucceeded,
    SelfFenced,
    SessionCrashed,
    SessionEnded,
    SessionLost,
    SessionReleased,
    SlotsChanged,
    WorkerAborted,
    WorkerDraining,
    WorkerStarted,
    WorkerStopped,
)
from agentrt.models.scripted import Call, ScriptedModel
from agentrt.worker import daemon as daemon_module
from agentrt.worker.holding import Holding
from agentrt.worker.keeper import EXIT_CODE
from tests.databases import with_database
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.daemons import LEASE_SECONDS, QUICK, Held, Worker, working
from tests.worker.ownership import AGENT, Ground, Heard, stores
from tests.worker.scenes import soon


async def _types(ground: Ground, session_id: Any) -> list[str]:
    return [entry["type"] for entry in await ground.journal(session_id)]


async def _outcomes(ground: Ground, session_id: Any) -> list[str]:
    rows = await ground.journal(session_id)
    return [json.loads(row["data"])["outcome"] for row in rows if row["type"] == "tool_result"]


async def test_sessions_are_claimed_run_and_completed_and_the_worker_stops_when_drained(ground: Ground) -> None:
    held = Held(ground)
    held.release.set()
    ids = [await ground.create() for _ in range(3)]
    async with working(ground, held.agent()) as worker:
        await ground.heard.wait_for(SessionEnded, 3)
        late = await ground.create()
        await ground.heard.wait_for(SessionEnded, 4)
        assert worker.daemon.ready_problems() == worker.daemon.live_problems() == ()
    for session_id in [*ids, late]:
        assert (await ground.row(session_id))["status"] == "completed"
        assert await _types(ground, session_id) == [
            "session_created",
            "user_message",
            "session_claimed",
            "assistant_message",
            "tool_result",
            "assistant_message",
            "session_completed",
        ]
    [started], [stopped] = ground.heard.of(WorkerStarted), ground.heard.of(WorkerStopped)
    assert stopped.worker_id == started.worker_id
    assert await ground.state(started.worker_id) == "stopped"
    assert not ground.heard.of(SessionReleased)
    assert not worker.left


# --- drain ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("before_a_terminal")
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGHUP], [signal.SIGTERM, signal.SIGHUP]])
async def test_a_drain_lets_a_tool_finish_and_releases_at_the_next_committed_boundary(
    ground: Ground, numbers: list[signal.Signals]
) -> None:
    """Case 22. A terminal that is closed may say so twice, and so may whoever closes it."""
    held = Held(ground)
    session_id = await ground.create()
    async with working(ground, held.agent()) as worker:
        await ground.heard.until(lambda: held.begun)
        for number in numbers:
            signal.raise_signal(number)
        [draining] = await ground.heard.wait_for(WorkerDraining)
        assert draining.reason in {number.name for number in numbers}
        later = await ground.create()
        beats = len(ground.heard.of(HeartbeatSucceeded))
        await ground.heard.wait_for(HeartbeatSucceeded, beats + 1)
        assert worker.daemon.ready_problems() == ("draining",)
        held.release.set()
        await ground.heard.wait_for(WorkerStopped)
    assert held.ended == ["look"]
    assert (await _types(ground, session_id))[-2:] == ["tool_result", "session_released"]
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("queued", 1, 0)
    assert (await ground.row(later))["fencing_token"] == 0, "nothing is claimed once the drain has begun"


async def test_a_worker_under_nohup_works_on_when_its_terminal_is_closed(ground: Ground) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with working(ground, Held(ground).agent()):
            await ground.heard.wait_for(WorkerStarted)
            signal.raise_signal(signal.SIGHUP)
            beats = len(ground.heard.of(HeartbeatSucceeded))
            await ground.heard.wait_for(HeartbeatSucceeded, beats + 1)
            assert not ground.heard.of(WorkerDraining)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_when_the_drains_time_is_over_started_once_tools_get_more_and_the_others_are_cancelled(
    ground: Ground,
) -> None:
    read, once = Held(ground), Held(ground)
    async with working(ground, read.agent(), drain_seconds=0, drain_tool_seconds=60) as worker:
        looked = await ground.create()
        await ground.heard.until(lambda: read.begun)
        worker.daemon.drain("test")
        [released] = await ground.heard.wait_for(SessionReleased)
        assert released.session_id == looked
        await ground.heard.wait_for(WorkerStopped)
    assert read.ended == ["look cancelled"]
    await ground.connection.execute("select agentrt.cancel_session($1)", looked)
    paid = await ground.create()
    async with working(ground, once.agent(calls=("pay",)), drain_seconds=0, drain_tool_seconds=60) as worker:
        await ground.heard.until(lambda: once.begun)
        worker.daemon.drain("test")
        beats = len(ground.heard.of(HeartbeatSucceeded))
        await ground.heard.wait_for(HeartbeatSucceeded, beats + 1)
        assert once.ended == []
        once.release.set()
        await ground.heard.wait_for(WorkerStopped, 2)
    assert once.ended == ["pay"]
    assert await _outcomes(ground, paid) == ["ok"]
    assert (await ground.row(paid))["status"] == "queued"


async def test_a_tool_that_does_not_stop_is_left_behind_when_its_session_is_released(ground: Ground) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def swallow() -> str:
        """Go on, whatever happens."""
        begun.set()
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        return "at last"

    agent = Agent(AGENT, model=ScriptedModel(lambda conversation: Call("swallow")), tools=[swallow])
    session_id = await ground.create()
    async with working(ground, agent, stop_seconds=0.05) as worker:
        await soon(begun.wait())
        worker.daemon.drain("the test")
        worker.daemon.cut()
        await ground.heard.wait_for(WorkerStopped)
        assert worker.left == []
        assert (await _types(ground, session_id))[-1] == "session_released"
        let_go.set()


async def test_a_second_signal_cuts_the_wait_and_what_is_unknown_is_journaled(ground: Ground) -> None:
    held = Held(ground)
    session_id = await ground.create()
    async with working(ground, held.agent(calls=("pay",))) as worker:
        await ground.heard.until(lambda: held.begun)
        signal.raise_signal(signal.SIGINT)
        await ground.heard.wait_for(WorkerDraining)
        signal.raise_signal(signal.SIGINT)
        await ground.heard.wait_for(WorkerStopped)
    assert held.ended == ["pay cancelled"]
    assert await _outcomes(ground, session_id) == ["unknown"]
    assert (await _types(ground, session_id))[-1] == "session_released"
    row = await ground.row(session_id)
    assert (row["status"], row["takeovers"]) == ("queued", 0)
    assert worker.left == []


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_process(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_module, "_LAST_SECONDS", 0.05)
    let_go = asyncio.Event()

    async def stubborn(holding: Holding) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    await ground.create()
    async with working(ground, Held(ground).agent(), make_runner=lambda *_, **__: stubborn, drain_seconds=0) as worker:
        await ground.heard.until(lambda: worker.daemon.facts().get("sessions") == 1)
        worker.daemon.drain("test")
        await ground.heard.until(lambda: worker.left)
        let_go.set()
    assert set(worker.left) == {EXIT_CODE}
    assert "did not stop within" in ground.heard.of(WorkerAborted)[0].reason


# --- faults ---------------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_declared_dead_stops_everything_and_works_on_under_a_new_id(ground: Ground) -> None:
    """Case 13."""
    held = Held(ground)
    session_id = await ground.create()
    async with working(ground, held.agent(), **QUICK):
        await ground.heard.until(lambda: held.begun)
        [first] = ground.heard.of(WorkerStarted)
        await ground.reap(first.worker_id)
        await ground.heard.until(lambda: held.ended == ["look cancelled"])
        _, second = await ground.heard.wait_for(WorkerStarted, 2)
        assert second.worker_id != first.worker_id
        held.release.set()
        await ground.heard.wait_for(SessionEnded)
    entries = await ground.journal(session_id)
    assert [entry["type"] for entry in entries][-1] == "session_completed"
    orphaned = next(entry["seq"] for entry in entries if entry["type"] == "session_orphaned")
    assert all(entry["worker_id"] != first.worker_id for entry in entries if entry["seq"] > orphaned)
    assert len(ground.heard.of(SessionLost)) == 1, "said once"


async def test_a_cancelled_session_stops_by_notification(ground: Ground) -> None:
    """Case 32."""
    held = Held(ground)
    session_id = await ground.create()
    async with working(ground, held.agent(), heartbeat_seconds=600, lease_seconds=2000):
        await ground.heard.until(lambda: held.begun)
        await ground.connection.execute("select agentrt.cancel_session($1)", session_id)
        await ground.heard.until(lambda: held.ended == ["look cancelled"])
        await ground.heard.wait_for(SessionLost)
    assert (await _types(ground, session_id))[-1] == "session_cancelled"


async def test_the_database_goes_away_and_comes_back(ground: Ground) -> None:
    """Case 25."""
    held = Held(ground)
    session_id = await ground.create()
    database = ground.url.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(with_database(ground.url, "postgres"))
    async with working(ground, held.agent(), **QUICK) as worker:
        await ground.heard.until(lambda: held.begun)
        await admin.execute(f"alter database {database} allow_connections false")
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = $1 and application_name like 'agentrt %'",
            database,
        )
        await ground.heard.wait_for(SelfFenced)
        await ground.heard.until(lambda: held.ended == ["look cancelled"])
        assert worker.daemon.ready_problems() == ("the lease cannot be proven: nothing is begun",)
        assert worker.daemon.live_problems() == ()
        failures = len(ground.heard.of(HeartbeatFailed))
        await ground.heard.wait_for(HeartbeatFailed, failures + 3)
        held.release.set()
        await admin.execute(f"alter database {database} allow_connections true")
        await ground.heard.wait_for(SessionEnded)
    await admin.close()
    assert [event.reason for event in ground.heard.of(SessionReleased)] == ["fenced"], "with the first renewal"
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("completed", 1, 0)
    types = await _types(ground, session_id)
    assert types.count("session_released") == 1
    assert "session_orphaned" not in types
    assert len(ground.heard.of(WorkerStarted)) == 1, "the same id: nobody declared it dead"
    assert worker.left == []


async def test_a_worker_without_a_database_does_not_start(ground: Ground) -> None:
    worker = Worker(ground, Held(ground).agent(), opened=stores("postgresql://nobody@127.0.0.1:1/none"))
    with pytest.raises(DatabaseUnavailable):
        await worker.daemon.run()


@pytest.mark.parametrize("error", [ValueError("a bug at postgresql://user:geheim@host/db"), None])
async def test_a_runner_that_fails_is_charged_its_slot_is_free_and_the_others_go_on(
    ground: Ground, error: Exception | None
) -> None:
    ids = [await ground.create() for _ in range(2)]

    async def bug(holding: Holding) -> None:
        if error is not None:
            raise error

    def crashed() -> set[Any]:
        return {event.session_id for event in ground.heard.of(SessionReleased) if event.reason == "crash"}

    async with working(ground, Held(ground).agent(), make_runner=lambda *_, **__: bug, slots=1):
        await ground.heard.until(lambda: crashed() == set(ids))
    for session_id in ids:
        types = [(row["type"], json.loads(row["data"])) for row in await ground.journal(session_id)]
        released = next(data for kind, data in types if kind == "session_released")
        assert released["reason"] == "crash"
        assert ("a bug" if error else "without an ending") in released["message"]
        assert (await ground.row(session_id))["takeovers"] >= 1
        assert "geheim" not in str(types)
    assert "geheim" not in repr(ground.heard.of(SessionCrashed))
    assert len(ground.heard.of(SessionCrashed)) >= (2 if error else 0)


async def test_a_session_that_is_lost_before_its_task_began_leaves_its_slot(ground: Ground) -> None:
    """The keeper's word comes between the claim's answer and the task's first step."""
    lost: list[Holding] = []

    class Losing(Heard):
        def __call__(self, event: Event) -> None:
            if isinstance(event, SlotsChanged) and event.busy and not lost:
                assert worker.daemon._incarnation is not None
                [holding] = worker.daemon._incarnation.holdings
                lost.append(holding)
                holding.lose("taken away at once")
            super().__call__(event)

    heard = Losing()
    ended: list[Holding] = []

    async def run(holding: Holding) -> None:
        ended.append(holding)
        holding.lose("run for a moment")

    await ground.create()
    async with working(replace(ground, heard=heard), Held(ground).agent(), make_runner=lambda *_, **__: run) as worker:
        await heard.until(lambda: lost and heard.of(SlotsChanged)[-1].busy == 0)
        assert ended == []


async def test_a_session_that_a_runner_left_as_lost_is_given_back_when_the_database_still_grants_it(
    ground: Ground,
) -> None:
    """Case 75."""
    await ground.create()

    async def mistaken(holding: Holding) -> None:
        holding.lose("a write was refused")

    async with working(ground, Held(ground).agent(), make_runner=lambda *_, **__: mistaken, **QUICK):
        [released, *_] = await ground.heard.wait_for(SessionReleased)
    assert released.reason == "not run"


async def test_a_worker_that_was_declared_dead_does_not_register_anew_while_a_tool_thread_runs(ground: Ground) -> None:
    """Case 79."""
    free, begun = threading.Event(), threading.Event()

    @tool(effect="read")
    def sleep_on() -> str:
        """Block a thread."""
        begun.set()
        ground.heard.changed()
        free.wait(HANGS_AFTER_SECONDS)
        return "awake"

    model = ScriptedModel(lambda conversation: "done" if conversation.results else Call("sleep_on", {}))
    await ground.create()
    async with working(ground, Agent(AGENT, model=model, tools=[sleep_on]), **QUICK) as worker:
        await ground.heard.until(begun.is_set)
        [first] = ground.heard.of(WorkerStarted)
        await ground.reap(first.worker_id)
        await ground.heard.wait_for(SelfFenced)
        worker.clock.seconds += LEASE_SECONDS
        await ground.heard.until(lambda: worker.left)
        assert len(ground.heard.of(WorkerStarted)) == 1
        free.set()
        await ground.heard.wait_for(SessionEnded)
    assert set(worker.left) == {EXIT_CODE}
