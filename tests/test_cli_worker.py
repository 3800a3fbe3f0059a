"""``agentrt worker``: what it refuses, what it says, its probes and metrics, its end."""

import json
import logging
import socket
from http.client import HTTPConnection

import pytest
import structlog

from tests.commandline import SECONDS, assert_one_sentence, run
from tests.ports import reserved_port
from tests.workerprocess import AGENTS, worker, write_agents

pytestmark = pytest.mark.one_server

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


# --- what it refuses ------------------------------------------------------------------------------------------------


def test_without_agents_it_does_not_start():
    assert_one_sentence(run("worker", url=NOWHERE), code=2, names=("AGENTRT_AGENTS",))


def test_a_file_of_agents_that_does_not_exist_is_named():
    assert_one_sentence(run("worker", "--agents", "/no/such.py", url=NOWHERE), code=2, names=("/no/such.py",))


@pytest.mark.parametrize(("name", "file"), [("nope", "./nope.py"), ("nope.more", "./nope/more.py")])
def test_who_names_a_file_without_its_ending_is_told_how_files_are_named(tmp_path, monkeypatch, name, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nope").touch()
    ran = run("worker", "--agents", name, url=NOWHERE)
    assert_one_sentence(ran, code=2, names=("No module named 'nope'", f"a file is named with its .py: {file}"))


def test_a_module_that_is_missing_inside_of_a_file_is_no_reason_to_speak_of_files(tmp_path):
    agents = write_agents(tmp_path, "import nothing_of_this_name\n")
    ran = run("worker", "--agents", agents, url=NOWHERE)
    assert_one_sentence(ran, code=2, names=("nothing_of_this_name",))
    assert "a file is named" not in ran.err


def test_a_syntax_error_is_named_with_file_and_line(tmp_path):
    broken = write_agents(tmp_path, "x = 1\ndef broken(:\n", "broken.py")
    assert_one_sentence(run("worker", agents=broken, url=NOWHERE), code=2, names=(broken, "line 2"))


def test_two_agents_of_one_name_are_named_with_their_files(tmp_path):
    one, two = write_agents(tmp_path, name="one.py"), write_agents(tmp_path, name="two.py")
    ran = run("worker", agents=f"{one},{two}", url=NOWHERE)
    assert_one_sentence(ran, code=2, names=("'greeter'", one, two))


def test_a_model_without_a_key_is_named_when_no_agent_is_left(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agents = write_agents(tmp_path, 'import agentrt\na = agentrt.Agent("a", model="openai-chat:gpt-5")\n')
    assert_one_sentence(run("worker", agents=agents, url=NOWHERE), code=2, names=("agent a", "OPENAI_API_KEY"))


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = run("worker", agents=write_agents(tmp_path), http_port=port, url=NOWHERE, log_level="error")
    assert_one_sentence(ran, code=2, names=(port, "AGENTRT_HTTP_PORT"))


def test_a_database_that_does_not_answer_is_named(tmp_path):
    ran = run("worker", agents=write_agents(tmp_path), http_port="0", url=NOWHERE, log_level="error")
    assert_one_sentence(ran, code=1, names=("127.0.0.1",))


def test_what_others_log_is_theirs_again_when_it_has_ended(tmp_path):
    root, configured = logging.getLogger(), structlog.is_configured()
    handlers, level = [*root.handlers], root.level
    assert run("worker", agents=write_agents(tmp_path), http_port="0", url=NOWHERE, log_level="error").code == 1
    assert (root.handlers, root.level, structlog.is_configured()) == (handlers, level, configured)


def test_a_missing_schema_names_the_command_to_run(tmp_path, empty_database_url):
    ran = run("worker", agents=write_agents(tmp_path), http_port="0", url=empty_database_url, log_level="error")
    assert_one_sentence(ran, code=1, names=("agentrt migrate",))


def test_a_schema_of_a_later_version_that_breaks_this_one_is_refused(tmp_path, database_url, psql):
    psql("insert into agentrt.schema_migrations (name, checksum, breaks_before) values ('9999_later', 'x', '99.0')")
    ran = run("worker", agents=write_agents(tmp_path), http_port="0", url=database_url, log_level="error")
    assert_one_sentence(ran, code=1, names=("9999_later", "99.0"))


# --- what `agents list` says ----------------------------------------------------------------------------------------


def test_agents_are_listed_with_their_tools(tmp_path):
    ran = run("agents", "list", "--json", agents=write_agents(tmp_path))
    (agent,) = json.loads(ran.out)["agents"]
    assert (agent["name"], agent["tools"], agent["problem"]) == ("greeter", ["weather"], None)
    assert "greeter" in run("agents", "list", "--agents", write_agents(tmp_path)).out


def test_a_file_that_cannot_be_loaded_does_not_hide_the_others(tmp_path):
    broken = write_agents(tmp_path, "import nothing_of_this_name\n", "broken.py")
    ran = run("agents", "list", agents=f"{broken},{write_agents(tmp_path)}")
    assert ran.code == 1
    assert "greeter" in ran.out
    assert "nothing_of_this_name" in ran.err
    assert broken in ran.err


def test_a_list_without_agents_says_why_and_not_that_none_was_named(tmp_path):
    ran = run("agents", "list", agents=write_agents(tmp_path, "def broken(:\n"))
    assert ran.code == 1
    assert "broken(" in ran.err or "syntax" in ran.err
    assert "There are no agents" not in ran.err
    assert "There are no agents" in run("agents", "list").err


# --- a real process -------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_it_says_what_is_wrong_serves_probes_and_metrics_and_ends_with_0(tmp_path, database_url):
    broken = write_agents(tmp_path, "import nothing_of_this_name\n", "broken.py")
    settings = {"agents": f"{broken},{write_agents(tmp_path)}", "worker_name": "w-7", "heartbeat_secods": "1"}
    with reserved_port() as (_, port), worker(database_url, http_port=str(port), **settings) as process:
        warnings = [line["message"] for line in process.lines if line["event"] == "warning.raised"]
        assert any("AGENTRT_HEARTBEAT_SECODS" in words and "AGENTRT_HEARTBEAT_SECONDS" in words for words in warnings)
        assert any("nothing_of_this_name" in words for words in warnings)
        started = process.wait_for("worker.started")
        assert (started["agents"], started["name"]) == (["greeter"], "w-7")

        session = run("sessions", "create", "greeter", "hello", "--follow", "--json", url=database_url)
        assert session.code == 0
        ended = process.wait_for("session.ended")  # it is counted before it is told
        while (answer := ask(port, "/readyz"))[0] != 200:  # a machine that stood still has to renew first
            pass
        assert json.loads(answer[1])["worker_id"] == started["worker_id"]
        assert ask(port, "/livez")[0] == 200
        metrics = ask(port, "/metrics")[1]
        assert 'agentrt_claims_total{queue="default"} 1.0' in metrics
        assert 'agentrt_turns_total{agent="greeter",model="scripted:scripted"} 2.0' in metrics
        assert 'agentrt_sessions_ended_total{agent="greeter",code="",status="completed"} 1.0' in metrics
        assert 'agentrt_tool_seconds_count{outcome="ok",tool="weather"} 1.0' in metrics

        assert ended["session_id"] == json.loads(session.out.splitlines()[0])["session_id"]
        assert process.terminate() == 0
    events = [line["event"] for line in process.lines]
    assert events[-1] == "worker.stopped"
    assert "worker.draining" in events
    assert "hello" not in json.dumps(process.lines)
    assert "Paris" not in json.dumps(process.lines)


@pytest.mark.system
def test_queue_depths_are_shown_for_agents_that_nobody_serves(tmp_path, database_url):
    for _ in range(3):
        run("sessions", "create", "nobody", "hello", "--queue", "slow", url=database_url)
    agents = write_agents(tmp_path)
    with reserved_port() as (_, port), worker(database_url, agents=agents, http_port=str(port)):
        while 'agentrt_queue_depth{agent="nobody",queue="slow"} 3.0' not in ask(port, "/metrics")[1]:
            pass


def test_the_agents_file_of_these_tests_is_a_good_one(tmp_path):
    assert "weather" in AGENTS
    assert run("agents", "list", agents=write_agents(tmp_path)).err == ""
