"""Real workers against a provider that breaks at random, and at what they cannot be started with."""

from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.history import assert_sound
from tests.models.llmock_server import LlmockServer
from tests.system.fleet import fleet, until

pytestmark = pytest.mark.system

SEED = 7
CREATE = """
select count(agentrt.create_session(
  (array['openai-chat', 'openai', 'anthropic'])[1 + n % 3],
  format('Session %s would like to hear every one of these %s words again in the same order please', n, n * 7)
)) from generate_series(1, $1::int) n
"""
UNFINISHED = "select count(*) from agentrt.sessions where status in ('queued', 'running')"
NOT_SAID_AGAIN = """
select s.id, s.outcome ->> 'text' from agentrt.sessions s join agentrt.journal j on j.session_id = s.id and j.seq = 2
where strpos(s.outcome ->> 'text', j.data -> 'content' -> 0 ->> 'text') = 0
"""
NO_TOOLS = """
from agentrt import Agent
agents = [Agent(name, model=model) for name, model in {
    "openai-chat": "openai-chat:gpt-5-mini", "openai": "openai:gpt-5-mini", "anthropic": "anthropic:claude-sonnet-5-5",
}.items()]
chat, responses, anthropic = agents
"""


async def test_200_sessions_complete_past_a_provider_that_breaks_in_every_way(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    rates = dict.fromkeys(("truncate", "disconnect", "stall", "malformed"), 0.03)
    agents = tmp_path / "agents.py"
    agents.write_text(NO_TOOLS)
    with LlmockServer(
        seed=SEED, errors={429: 0.03, 503: 0.03}, stream_faults=rates, stall_seconds=60, tool_mode="off"
    ) as provider:
        env = {
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": provider.openai_url,
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": provider.anthropic_url,
        }
        async with fleet(database_url, str(agents), tmp_path, env=env, model_idle_seconds=5) as workers:
            workers.start(slots=10)
            await connection.fetchval(CREATE, 200)
            await until(connection, UNFINISHED, want=0, seconds=200)
        verdict = provider.verdict()
    assert verdict.failures == (), verdict.text
    assert verdict.faults > 10
    statuses = await connection.fetch("select status, count(*) from agentrt.sessions group by status")
    assert [tuple(row) for row in statuses] == [("completed", 200)]
    assert await connection.fetch(NOT_SAID_AGAIN) == []
    retried = await connection.fetchval("select count(*) from agentrt.journal where type = 'model_retried'")
    assert retried == verdict.attempts - 200
    await assert_sound(connection)


async def test_a_worker_with_scripted_agents_imports_no_providers_layer(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    agents = tmp_path / "agents.py"
    agents.write_text(
        """
import sys
from agentrt import Agent, tool
from agentrt.models.scripted import Call, ScriptedModel

@tool(effect="read")
def imported() -> str:
    "What this process has imported of the providers' layer."
    return ",".join(name for name in ("pydantic_ai", "openai", "anthropic") if name in sys.modules) or "nothing"

agent = Agent("a", model=ScriptedModel(lambda c: c.results[0].content if c.results else Call("imported", {})),
              tools=[imported])
"""
    )
    async with fleet(database_url, str(agents), tmp_path) as workers:
        workers.start()
        session = await connection.fetchval("select agentrt.create_session('a', 'look')")
        await until(
            connection, "select outcome ->> 'text' from agentrt.sessions where id = $1", session, want="nothing"
        )


CANNOT_START = {
    "openai:gpt-5-mini": ({}, "OPENAI_API_KEY"),
    "openai-chat:gpt-5-mini": ({"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "localhost"}, "OPENAI_BASE_URL"),
    "anthropic:claude-sonnet-5-5": ({}, "ANTHROPIC_API_KEY"),
    "opnai:gpt-5-mini": ({}, "opnai"),
    "gpt-5-mini": ({}, "provider:name"),
}


@pytest.mark.parametrize("model", list(CANNOT_START))
async def test_a_worker_without_a_usable_model_ends_with_one_clear_sentence(
    model: str, database_url: str, tmp_path: Path
) -> None:
    environ, words = CANNOT_START[model]
    agents = tmp_path / "agents.py"
    agents.write_text(f"from agentrt import Agent\nagent = Agent('a', model={model!r})\n")
    blank = dict.fromkeys(("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"), "")
    async with fleet(database_url, str(agents), tmp_path, env={**blank, **environ}) as workers:
        worker = workers.start()
        code = await worker.exit_code()
    logged = worker.logged()
    assert code in (1, 2), logged
    assert "Traceback" not in logged
    assert words in logged
    assert model in logged


async def test_a_worker_without_the_providers_sdk_names_our_extra(database_url: str, tmp_path: Path) -> None:
    agents = tmp_path / "agents.py"
    agents.write_text("from agentrt import Agent\nagent = Agent('a', model='anthropic:claude-sonnet-5-5')\n")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['anthropic'] = None\n")
    path = f"{tmp_path}:{CHECKOUT}"
    async with fleet(database_url, str(agents), tmp_path, env={"PYTHONPATH": path}) as workers:
        worker = workers.start()
        code = await worker.exit_code()
    assert code in (1, 2)
    assert "pip install 'agentrt[anthropic]'" in worker.logged().replace("\n", " ").replace("  ", " ")
    assert "Traceback" not in worker.logged()
