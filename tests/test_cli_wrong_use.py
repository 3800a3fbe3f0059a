"""Wrong use is one sentence and exit code 2, whatever was typed, set or imported."""

import json
from typing import Any

import pytest

from tests.commandline import Ran, assert_one_sentence, run
from tests.workerprocess import write_agents

pytestmark = pytest.mark.one_server


def created(url: str, *arguments: str) -> str:
    return run("sessions", "create", "greeter", "hello", *arguments, url=url).out.strip()


def test_a_config_that_is_nested_too_deeply_is_refused(database_url):
    ran = run("sessions", "create", "greeter", "x", "--config", "[" * 100_000, url=database_url)
    assert_one_sentence(ran, code=2, names=("--config is no JSON",))


@pytest.mark.parametrize("number", ["9" * 5_000, f"{'9' * 400}.0", "\u0665"])
def test_a_limit_that_is_no_usable_number_is_refused(database_url, number):
    ran = run("sessions", "resume", created(database_url), "--limit", f"turns={number}", url=database_url)
    assert_one_sentence(ran, code=2, names=("NAME=NUMBER",))


def test_a_port_that_does_not_exist_is_refused():
    ran = run("sessions", "list", url="postgresql://u:p@127.0.0.1:99999/db")
    assert_one_sentence(ran, code=2, names=("127.0.0.1:99999",))


@pytest.mark.parametrize("name", ["queues", "worker_name", "database_url"])
def test_a_variable_that_is_no_text_is_refused(name):
    given = {"database_url": "postgresql://h/db"} | {name: "postgresql://caf\udce9/db"}
    ran = run("worker", **given)
    assert_one_sentence(ran, code=2, names=(f"AGENTRT_{name.upper()}=",))


@pytest.mark.parametrize("limits", [{"turns": "x"}, 5])
def test_plan_names_limits_of_a_session_that_are_none(database_url, tmp_path, psql, limits):
    session = created(database_url)
    psql(f"update agentrt.sessions set config = '{json.dumps({'limits': limits})}'")
    ran = run("plan", session, url=database_url, agents=write_agents(tmp_path))
    assert_one_sentence(ran, code=2, names=("config.limits",))


def imported(url: str, path: Any, *, head: dict[str, Any], entry: dict[str, Any]) -> Ran:
    """What became of the import of an export with one thing changed."""
    first, *entries = run("sessions", "export", created(url), url=url).out.splitlines()
    lines: list[dict[str, Any]] = [json.loads(first), *map(json.loads, entries)]
    lines[0]["session"].update(head)
    lines[2].update(entry)
    path.write_text("\n".join(map(json.dumps, lines)))
    return run("sessions", "import", str(path), url=url)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seq": float("inf")}, "line 3"),
        ({"fencing_token": 10**30}, "fencing_token"),
        ({"attempt": 10**12}, "attempt"),
        ({"attempt": -1}, "attempt -1"),
        ({"run": 10**12}, "run"),
        ({"created_at": "0001-01-01T00:00:00+14:00"}, "line 3"),
    ],
)
def test_an_entry_out_of_range_is_named(database_url, tmp_path, change, words):
    assert_one_sentence(
        imported(database_url, tmp_path / "journal", head={}, entry=change), code=2, names=("line 3", words)
    )


@pytest.mark.parametrize(
    "change",
    [{"priority": 10**9}, {"tenant": 5}, {"agent": ""}, {"agent": None}, {"queue": ""}, {"labels": {"a": {"b": "c"}}}],
)
def test_a_head_that_cannot_be_used_is_named(database_url, tmp_path, change):
    ran = imported(database_url, tmp_path / "journal", head=change, entry={})
    assert_one_sentence(ran, code=2, names=("no usable head", next(iter({"labels": "a"}.get(k, k) for k in change))))


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_an_export_with_line_ends_of_unicode_in_a_text_can_be_imported(database_url, tmp_path, end):
    message = f"one{end}two"
    session = run("sessions", "create", "greeter", message, url=database_url).out.strip()
    lines = map(json.loads, run("sessions", "export", session, url=database_url).out.split("\n")[:-1])
    file = tmp_path / "journal"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    ran = run("sessions", "import", str(file), url=database_url)
    assert ran.code == 0, ran
    shown = json.loads(run("sessions", "show", ran.out.strip(), "--json", url=database_url).out)
    assert shown["journal"][1]["data"]["content"][0]["text"] == message
