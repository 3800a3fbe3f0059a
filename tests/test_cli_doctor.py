"""``agentrt doctor`` on healthy and on sick databases."""

import asyncio
import json
from types import SimpleNamespace

import asyncpg
import pytest

from tests.commandline import run
from tests.workerprocess import write_agents

CHECKS = ["database", "version", "schema", "rights", "durability", "clock", "snapshots", "connections", "listen"]


def findings(url: str | None, **settings: str) -> tuple[int, dict[str, tuple[str, str]]]:
    ran = run("doctor", "--json", url=url, **settings)
    return ran.code, {row["check"]: (row["level"], row["text"]) for row in json.loads(ran.out)}


def test_a_healthy_database_has_no_problem(database_url, tmp_path):
    code, found = findings(database_url, agents=write_agents(tmp_path))
    assert code == 0
    assert [*found] == ["settings", "agents", *CHECKS, "advisory locks"]
    assert {level for level, _ in found.values()} <= {"ok", "warning"}
    assert all(found[check][0] == "ok" for check in ("database", "version", "schema", "rights", "listen"))
    assert found["advisory locks"][0] == "ok"


def test_each_finding_is_a_line_for_people(database_url):
    ran = run("doctor", url=database_url)
    assert ran.code == 0
    assert len(ran.out.splitlines()) == len(CHECKS) + 3
    assert ran.out.splitlines()[0].startswith("ok       settings")


@pytest.mark.one_server
def test_a_missing_schema_is_a_problem_with_the_command_to_run(empty_database_url):
    code, found = findings(empty_database_url)
    assert code == 1
    assert found["schema"][0] == "problem"
    assert "agentrt migrate" in found["schema"][1]


def test_an_unreachable_database_and_a_missing_url_are_problems():
    code, found = findings("postgresql://me:geheim@127.0.0.1:1/nowhere")
    assert (code, found["database"][0]) == (1, "problem")
    assert "geheim" not in found["database"][1]
    code, found = findings(None)
    assert (code, found["database"]) == (
        1,
        ("problem", "AGENTRT_DATABASE_URL is not set: set it to your database's URL"),
    )


@pytest.mark.one_server
async def test_a_transaction_that_is_open_for_long_is_a_warning(database_url, monkeypatch):
    from agentrt.postgres import doctor
    from agentrt.postgres.pool import DatabaseOptions

    monkeypatch.setattr(doctor, "SNAPSHOT_SECONDS", 0)
    other = await asyncpg.connect(database_url, server_settings={"application_name": "report"})
    try:
        async with other.transaction(isolation="repeatable_read"):
            await other.fetchval("select 1 from agentrt.sessions limit 1")
            found = {finding.check: finding async for finding in doctor.examine(DatabaseOptions(url=database_url))}
    finally:
        await other.close()
    assert found["snapshots"].level == "warning"
    assert "report" in found["snapshots"].text


@pytest.mark.one_server
async def test_a_notification_that_comes_after_the_wait_for_it_is_no_silence(database_url, monkeypatch):
    from agentrt.postgres import doctor
    from agentrt.postgres.pool import DatabaseOptions

    class OfABusyLoop(asyncio.Event):
        async def wait(self):
            return await asyncio.Event().wait()

    monkeypatch.setattr(doctor, "asyncio", SimpleNamespace(Event=OfABusyLoop, timeout=asyncio.timeout))
    monkeypatch.setattr(doctor, "HEARD_SECONDS", 0.01)
    found = {finding.check: finding async for finding in doctor.examine(DatabaseOptions(url=database_url))}
    assert found["listen"].level == "ok"


@pytest.mark.one_server
def test_a_user_without_rights_is_a_problem_with_the_grant_to_make(database_url, psql):
    psql("create role agentrt_test_guest login")
    try:
        user = f"{database_url}{'&' if '?' in database_url else '?'}user=agentrt_test_guest"
        code, found = findings(user.replace("postgresql://postgres@", "postgresql://"))
        assert code == 1
        assert "problem" in (found["schema"][0], found["rights"][0])
    finally:
        psql("drop role agentrt_test_guest")


def test_agents_that_cannot_be_offered_are_problems(database_url, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agents = write_agents(tmp_path, 'import agentrt\na = agentrt.Agent("a", model="openai-chat:gpt-5")\n')
    code, found = findings(database_url, agents=agents, slot="3")
    assert code == 1
    assert "OPENAI_API_KEY" in found["agents"][1]
    assert "AGENTRT_SLOTS" in found["settings"][1]
