"""Wrong use is one sentence and exit code 2, whatever was typed, set or imported."""

import json
from typing import Any

import pytest

from agentrt.cli.output import printable
from tests.commandline import Ran, assert_one_sentence, run
from tests.workerprocess import write_agents

pytestmark = pytest.mark.one_server


def created(url: str, *arguments: str) -> str:
    return run("sessions", "create", "greeter", "hello", *arguments, url=url).out.strip()


NOT_A_NUMBER = ["", "abc", "-1", "NaN", "1e3", "9" * 5_000, "\u0665", "1\x1b[2J", "\udcff"]


@pytest.mark.parametrize(
    ("command", "option", "accepted"),
    [
        (("worker",), "--slots", "a whole number from 1 to 10,000"),
        (("sessions", "list"), "--limit", "a whole number from 1 to 10,000"),
        (("sessions", "approvals"), "--limit", "a whole number from 1 to 10,000"),
        (("sessions", "follow", "x"), "--after-seq", "a whole number from 0 to"),
        (("sessions", "cancel", "x"), "--run", "a whole number from 1 to"),
        (("sessions", "retry", "x"), "--run", "a whole number from 1 to"),
        (("sessions", "create", "a", "hi"), "--max-attempts", "a whole number from 1 to 1,000"),
        (("sessions", "create", "a", "hi"), "--priority", "a whole number from -32,768 to 32,767"),
        (("sessions", "list"), "--status", "one of queued, running, suspended, completed, failed, cancelled"),
        (("sessions", "send", "x", "hi"), "--when-running", "one of steer, queue, interrupt, reject"),
        (("sessions", "resume"), "--reason", "one of input, approval, external, blocked, budget"),
    ],
)
def test_a_wrong_value_is_refused_with_its_option_and_what_is_accepted(command, option, accepted):
    """In one sentence, before the database is asked for."""
    for value in NOT_A_NUMBER:
        if (option, value) == ("--priority", "-1"):
            continue
        ran = run(*command, option, value)
        shown = printable(value) if value and len(value) < 100 else repr(value[:100])
        assert_one_sentence(ran, code=2, names=(f"{option} {shown}", f" is not {accepted}"))


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("sessions", "create", "a", "hi"), "--queue"),
        (("sessions", "create", "a", "hi"), "--tenant"),
        (("sessions", "create", "a", "hi"), "--dedup-key"),
        (("sessions", "list"), "--agent"),
        (("sessions", "send", "x", "hi"), "--request-id"),
        (("sessions", "cancel", "x"), "--reason"),
        (("sessions", "approve", "x"), "--reviewer"),
        (("sessions", "reject", "x"), "--comment"),
        (("worker",), "--queue"),
        (("worker",), "--name"),
        (("chat", "a"), "--queue"),
    ],
)
def test_a_name_or_key_that_is_empty_or_no_text_is_refused(command, option):
    assert_one_sentence(run(*command, option, ""), code=2, names=(f"{option} is empty",))
    assert_one_sentence(run(*command, option, "caf\udce9"), code=2, names=(f"{option} caf", "text in UTF-8"))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (("sesions",), ("No such command 'sesions'", "agentrt --help")),
        (("sessions", "shwo"), ("No such command 'shwo'", "agentrt sessions --help")),
        (("sessions", "list", "--lmit", "3"), ("--lmit", "agentrt sessions list --help")),
        (("sessions", "create", "a"), ("message", "agentrt sessions create --help")),
        (("sessions", "send", "x", "-1"), ("-1", "-- before a value", "agentrt sessions send --help")),
        (("sessions", "list", "--limit"), ("--limit",)),
        (("prune",), ("--older-than", "agentrt prune --help")),
        (("prune", "--older-than", "soon"), ("--older-than 'soon'", "90d")),
        (("prune", "--older-than", "9" * 40 + "d"), ("--older-than", "1,000 years")),
        (("prune", "--older-than", "360001d"), ("--older-than", "1,000 years")),
        (("worker", "a"), ("(a)", "agentrt worker --help")),
        (("worker", "list"), ("(list)", "agentrt workers list")),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_where_to_read_on(line, names):
    assert_one_sentence(run(*line), code=2, names=names)


def test_a_question_that_nobody_answers_changes_nothing(database_url):
    ran = run("prune", "--older-than", "90d", url=database_url)
    assert (ran.code, ran.err) == (1, "\nerror: not confirmed: nothing was done\n")


def test_an_empty_id_is_no_new_session(database_url):
    ran = run("chat", "greeter", "--session", "", url=database_url, stdin="hello\n")
    assert_one_sentence(ran, code=2, names=("''", "UUID"))


def test_a_config_that_is_nested_too_deeply_is_refused(database_url):
    ran = run("sessions", "create", "greeter", "x", "--config", "[" * 100_000, url=database_url)
    assert_one_sentence(ran, code=2, names=("--config '[[[", "is no JSON"))


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
