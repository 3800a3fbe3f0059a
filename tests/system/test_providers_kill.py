"""Workers that are killed while a model's answer streams in, in each format."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.history import assert_sound
from tests.strictprovider.process import StrictProviderProcess
from tests.system.fleet import MOST_SECONDS, fleet, until
from tests.system.provider_agents import MODELS
from tests.system.sessions import STATUS

pytestmark = pytest.mark.system

AGENTS = "tests.system.provider_agents"
TYPES = "select string_agg(type, ' ' order by seq) from agentrt.journal where session_id = $1"


async def answers_wait(provider: StrictProviderProcess, count: int) -> None:
    """Until so many answers stand in the middle of their streams."""
    async with asyncio.timeout(MOST_SECONDS):
        while provider.waiting().get("mid-stream", 0) < count:  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.03)


async def cut_requests(provider: StrictProviderProcess, count: int) -> list[dict[str, Any]]:
    """So many that were not answered to the end, as soon as the provider has noticed that their client is gone."""
    async with asyncio.timeout(MOST_SECONDS):
        while True:
            cut = [request for request in provider.requests() if not request["finished"]]
            if [request["client_left"] for request in cut] == [True] * count:
                return cut
            await asyncio.sleep(0.03)


@pytest.mark.parametrize("agent", list(MODELS))
async def test_a_worker_killed_in_mid_stream_leaves_sessions_that_another_completes(
    agent: str, database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    with StrictProviderProcess(f"{AGENTS}:slow_weather") as provider:
        env = {
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": provider.openai_url,
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": provider.anthropic_url,
        }
        async with fleet(database_url, AGENTS, tmp_path, env=env) as workers:
            first = workers.start()
            sessions = [
                await connection.fetchval("select agentrt.create_session($1, $2)", agent, message)
                for message in ("weather in Oslo?", "within the call")
            ]
            await answers_wait(provider, len(sessions))
            first.kill()
            workers.start()
            for session in sessions:
                await until(connection, STATUS, session, want="completed")
        cut = await cut_requests(provider, len(sessions))
        assert len(provider.requests()) == 6
        assert provider.violations() == []
    assert [(request["accepted"], request["chunks"] > 0) for request in cut] == [(True, True)] * 2
    for session in sessions:
        text = await connection.fetchval("select outcome ->> 'text' from agentrt.sessions where id = $1", session)
        assert text == "There is rain in Oslo"
        types = (await connection.fetchval(TYPES, session)).split()
        assert types.count("session_orphaned") == 1
        assert types.count("assistant_message") == 2
        assert types.count("tool_result") == 1
        assert "model_retried" not in types
    await assert_sound(connection)
