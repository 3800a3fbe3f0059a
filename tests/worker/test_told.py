"""What observers are told of the end of runs, sessions and calls is what the database says."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from agentrt.agents import Agent, tool
from agentrt.core import events
from agentrt.core.session import WorkerId
from agentrt.ports import Write, Written
from agentrt.testing import Call, ScriptedModel, local_worker
from tests.worker.daemons import QUICK, Held, working
from tests.worker.ownership import OFFER, Ground
from tests.worker.scenes import agent_of, calls_once, head, kill, results, running, soon, told

ENDINGS = (events.SessionEnded, events.SessionReleased, events.SessionSuspended, events.SessionLost)
FAILURES = """
select session_id, run, data -> 'outcome' ->> 'code' as code from agentrt.journal where type = 'session_failed'
order by session_id, run
"""


async def failures(connection: asyncpg.Connection) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.fetch(FAILURES)]


def told_failures(heard: Sequence[events.Event]) -> list[tuple[Any, ...]]:
    return sorted(
        (event.session_id, event.run, event.code)
        for event in heard
        if isinstance(event, events.SessionEnded) and event.status == "failed"
    )


async def test_a_crash_that_fails_a_run_is_told_as_its_end_also_when_a_queued_message_follows(database_url, connection):
    def script(conversation: Any):
        raise LookupError("a bug")

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.client.create("a", "begin", max_attempts=1)
        [holding] = await worker.claim()
        await worker.client.send(session_id, "again", when_running="queue")
        await worker.run_one(holding)
        await worker.run()
        assert len(told_failures(worker.events)) == 2
        assert told_failures(worker.events) == await failures(connection)
        assert [event.reason for event in told(worker, events.SessionReleased)] == ["crash", "crash"]


async def test_a_reap_that_fails_a_run_is_told_as_its_end_also_when_a_queued_message_follows(ground: Ground) -> None:
    plain, followed = [await ground.create() for _ in range(2)]
    await ground.connection.execute("update agentrt.sessions set max_attempts = 1")
    await ground.store.claim(ground.worker.id, OFFER, limit=2, fragile_limit=2)
    await ground.connection.execute(
        "select agentrt.send_message($1, 'again', '{\"when_running\": \"queue\"}')", followed
    )
    await ground.connection.execute("update agentrt.workers set state = 'dead' where id = $1", ground.worker.id)
    held = Held(ground)
    held.release.set()
    async with working(ground, held.agent(), **QUICK):
        await ground.heard.until(lambda: len(told_failures(ground.heard.events)) == 2)
    assert told_failures(ground.heard.events) == await failures(ground.connection)
    assert {row[0] for row in await failures(ground.connection)} == {plain, followed}


class Late:
    """The real store, whose answer to an ending waits."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.committed = asyncio.Event()
        self.gate = asyncio.Event()

    async def end(self, worker_id: WorkerId, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        written: Sequence[Written] = await self.store.end(worker_id, writes, side=side)
        self.committed.set()
        await self.gate.wait()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.mark.parametrize("how", ["lost before the answer", "lost after the answer", "cut before the answer"])
async def test_a_session_that_has_ended_is_told_as_ended_and_not_as_lost(database_url, how):
    async with local_worker(database_url, Agent("a", model=ScriptedModel(lambda conversation: "ok"))) as worker:
        late = Late(worker.store)
        worker.deps.committer._store = late
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(late.committed.wait())
            if how == "lost before the answer":
                holding.lose("the database grants it no more")
                await asyncio.sleep(0)
            elif how == "cut before the answer":
                assert holding.task is not None
                holding.task.cancel()
            late.gate.set()
            if how == "lost after the answer":
                while not holding.ended:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0)
                holding.lose("the database grants it no more")
        assert (await head(worker, session_id)).status == "completed"
        [end] = [event for event in worker.events if isinstance(event, ENDINGS)]
        assert isinstance(end, events.SessionEnded)


async def test_calls_that_a_takeover_closes_are_told_with_their_outcome(database_url, connection):
    begun = asyncio.Event()

    @tool(effect="once")
    async def act() -> str:
        """Act for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = agent_of(act, model=calls_once(Call("act")))
    async with local_worker(database_url, agent) as dead, local_worker(database_url, agent) as survivor:
        session_id = await dead.client.create("a", "begin")
        async with running(dead) as holding:
            await soon(begun.wait())
            await kill(dead, connection, survivor)
            holding.lose("dead")
            await survivor.run()
        assert [outcome for outcome, _ in await results(survivor, session_id)] == ["unknown"]
        assert [(event.tool, event.outcome) for event in told(survivor, events.ToolFinished)] == [("act", "unknown")]
        assert told(dead, events.ToolFinished) == []
