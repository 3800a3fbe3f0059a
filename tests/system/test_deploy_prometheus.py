"""A real Prometheus scrapes two real workers: its figures are the database's, and rules and dashboard work on them."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.system.fleet import MOST_SECONDS, Fleet, until, wait_for_workers
from tests.system.scraping import Prometheus, fetch, free_port, prometheus

pytestmark = pytest.mark.system

SLOTS = 5
SESSIONS = 200
UNSERVED = 7
UNFINISHED = "select count(*) from agentrt.sessions where agent = 'three' and status <> 'completed'"

# What Prometheus counts, and what the database holds.
SAME = {
    "sum(agentrt_claims_total)": "select count(*) from agentrt.journal where type = 'session_claimed'",
    'sum(agentrt_sessions_ended_total{status="completed"})': (
        "select count(*) from agentrt.journal where type = 'session_completed'"
    ),
    "sum(agentrt_turns_total)": "select count(*) from agentrt.journal where type = 'assistant_message'",
    "sum(agentrt_model_seconds_count)": "select count(*) from agentrt.journal where type = 'assistant_message'",
    'sum(agentrt_tool_seconds_count{tool="square",outcome="ok"})': (
        "select count(*) from agentrt.journal where type = 'tool_result' and data ->> 'outcome' = 'ok'"
    ),
    'sum(agentrt_tokens_total{kind="input"})': "select sum(input_tokens) from agentrt.sessions",
    'sum(agentrt_tokens_total{kind="output"})': "select sum(output_tokens) from agentrt.sessions",
    "sum(agentrt_commit_entries_sum)": (
        "select count(*) from agentrt.journal where worker_id is not null and type <> 'session_claimed'"
    ),
    'max(agentrt_queue_depth{queue="default",agent="unserved"})': (
        "select count(*) from agentrt.sessions where agent = 'unserved' and status = 'queued'"
    ),
    "count(agentrt_info)": "select count(*) from agentrt.workers where state = 'alive'",
    'sum(agentrt_slots{state="free"})': "select sum(slots) from agentrt.workers where state = 'alive'",
    'sum(agentrt_slots{state="busy"})': "select count(*) from agentrt.sessions where status = 'running'",
}


async def load(connection: asyncpg.Connection) -> None:
    create = "select count(agentrt.create_session($1, 'take ' || n)) from generate_series(1, $2::int) n"
    await connection.execute(create, "unserved", UNSERVED)
    await connection.execute(create, "three", SESSIONS)
    await until(connection, UNFINISHED, want=0)


async def assert_figures_agree(scraped: Prometheus, connection: asyncpg.Connection) -> None:
    for query, sql in SAME.items():
        await scraped.until(query, float(await connection.fetchval(sql)))
    await scraped.until("sum(agentrt_sessions_ended_total)", SESSIONS)
    # Every replica says the same: a maximum, not a sum, is the truth.
    await scraped.until('count(agentrt_queue_depth{agent="unserved"} == 7)', 2)
    for quiet in ("reaps", "self_fences", "lease_lost"):
        await scraped.until(f"count(agentrt_{quiet}_total == 0)", 2)
    await scraped.until("count(agentrt_heartbeat_age_seconds >= 0 < 15)", 2)


async def assert_rules_are_evaluated(scraped: Prometheus) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        while any(rule["health"] != "ok" for rule in await rules(scraped)):
            assert not [rule for rule in await rules(scraped) if rule["health"] == "err"]
            await asyncio.sleep(0.2)
    await scraped.until("agentrt:sessions_wanted", UNSERVED)


async def rules(scraped: Prometheus) -> list[dict[str, str]]:
    found = [rule for group in (await scraped.ask("rules"))["groups"] for rule in group["rules"]]
    assert len(found) > 10
    return found


async def assert_the_dashboard_shows_something(scraped: Prometheus) -> None:
    """Every query is answered, and what a load moves has a series."""
    # The scripted model has no price and makes no errors; nothing was released.
    idle = {"Calls without an answer", "Cost per hour", "Given back"}
    text = (CHECKOUT / "deploy" / "grafana" / "dashboards" / "agentrt.json").read_text(encoding="utf-8")
    for panel in json.loads(text)["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            assert await scraped.ask(f"query?query={quote(query)}") is not None, query
            if panel["title"] not in idle:
                await scraped.until(f"clamp_max(count({query}), 1)", 1)


async def test_the_counters_equal_the_database_after_a_load_and_a_killed_worker_is_noticed(
    workers: Fleet, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    victim, _ = [workers.start(slots=SLOTS, http_port=port) for port in ports]
    await wait_for_workers(connection, 2)
    async with prometheus(ports, tmp_path) as scraped:
        await scraped.until('sum(up{job="agentrt"})', 2)
        await load(connection)
        await assert_figures_agree(scraped, connection)
        await assert_rules_are_evaluated(scraped)
        await assert_the_dashboard_shows_something(scraped)
        victim.kill()
        await scraped.until('count(ALERTS{alertname="AgentrtWorkerDown",alertstate="pending"})', 1)
        await scraped.until("sum(agentrt_reaps_total)", 1)
        await scraped.until('count(ALERTS{alertname="AgentrtWorkersReaped",alertstate="firing"})', 1)


async def test_what_a_worker_exports_is_clean(workers: Fleet, connection: asyncpg.Connection) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    port = free_port()
    workers.start(slots=SLOTS, http_port=port)
    await wait_for_workers(connection, 1)
    await connection.execute("select agentrt.create_session('three', 'take 3')")
    await until(connection, UNFINISHED, want=0)
    page = f"http://127.0.0.1:{port}/metrics"
    async with asyncio.timeout(MOST_SECONDS):
        while "agentrt_turns_total{" not in (text := await asyncio.to_thread(fetch, page)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    done = await asyncio.to_thread(
        subprocess.run, [program, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
