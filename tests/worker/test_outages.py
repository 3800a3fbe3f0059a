"""Agents that cannot be run, and providers that are away: neither holds the slots that others need."""

from functools import partial
from typing import Any

import pytest

from agentrt.agents import Agent
from agentrt.core.errors import ConfigurationError
from agentrt.core.events import SessionEnded, SessionReleased
from agentrt.models.scripted import Conversation, ScriptedModel
from agentrt.ports import ModelError, ModelErrorClass
from tests.worker.daemons import Worker, working
from tests.worker.ownership import Ground

pytestmark = pytest.mark.one_server

CREATE = "select count(agentrt.create_session($2, 'begin')) from generate_series(1, $1::int)"
STATUSES = "select status, count(*) from agentrt.sessions where agent = $1 group by status"
AGE = "update agentrt.sessions set ready_at = clock_timestamp() - interval '1 s' where status = 'queued'"
CHARGED = "select count(*) from agentrt.sessions where attempt > 1 or takeovers > 0"
AWAY_SECONDS, ASKED_TO_WAIT_SECONDS = 70 * 60, 600


async def statuses(ground: Ground, agent: str) -> dict[str, int]:
    return {row[0]: row[1] for row in await ground.connection.fetch(STATUSES, agent)}


@pytest.mark.parametrize("error", [ConfigurationError, LookupError])
async def test_a_thousand_sessions_of_an_agent_that_cannot_be_run_do_not_keep_others_from_running(
    ground: Ground, error: type[Exception]
) -> None:
    """F23: the broken ones are older, and there are as many slots as it takes to fill them all."""

    def script(conversation: Conversation) -> str:
        raise error("not installed, or a bug")

    broken = Agent("broken", model=ScriptedModel(script))
    sound = Agent("sound", model=ScriptedModel(lambda conversation: "ok"))
    await ground.connection.execute(CREATE, 1000, "broken")
    await ground.connection.execute(CREATE, 20, "sound")

    def ended() -> list[Any]:
        return [event for event in ground.heard.of(SessionEnded) if event.agent == "sound"]

    async with working(ground, broken, sound, slots=4):
        await ground.heard.until(lambda: len(ended()) == 20)
        left = await statuses(ground, "broken")
    assert await statuses(ground, "sound") == {"completed": 20}
    assert left.get("failed", 0) == 0, "the others did not wait for the broken ones to fail"
    if error is ConfigurationError:
        assert left["suspended"] <= 4, "those that were tried say why; the rest waits for a worker that can"
        assert sum(left.values()) - left["suspended"] == left["queued"]


async def test_200_sessions_outlast_a_provider_that_is_away_for_70_minutes_without_a_slot(ground: Ground) -> None:
    """F32: it says when to come back, and the rows are aged instead of waiting."""
    asked = 0
    away = True

    def script(conversation: Conversation) -> str:
        nonlocal asked
        asked += 1
        if away:
            raise ModelError(
                ModelErrorClass.TRANSIENT, "503 overloaded", status=503, retry_after_seconds=ASKED_TO_WAIT_SECONDS
            )
        return "ok"

    def given_back(worker: Worker, count: int) -> bool:
        return len(ground.heard.of(SessionReleased)) == count and worker.daemon.facts()["sessions"] == 0

    rounds = AWAY_SECONDS // ASKED_TO_WAIT_SECONDS
    await ground.connection.execute(CREATE, 200, "a")
    async with working(ground, Agent("a", model=ScriptedModel(script)), slots=20, heartbeat_seconds=0.5) as worker:
        for number in range(1, rounds + 1):
            await ground.heard.until(partial(given_back, worker, 200 * number))
            assert asked == 200 * number
            assert await statuses(ground, "a") == {"queued": 200}
            assert await ground.connection.fetchval("select bool_or(due) from agentrt.sessions") is False
            away = number < rounds
            await ground.connection.execute(AGE)
        await ground.heard.until(lambda: len(ground.heard.of(SessionEnded)) == 200)
    assert await statuses(ground, "a") == {"completed": 200}
    assert asked == 200 * (rounds + 1)
    assert await ground.connection.fetchval(CHARGED) == 0
    assert {event.reason for event in ground.heard.of(SessionReleased)} == {"back-off"}
