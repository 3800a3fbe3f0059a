"""The command line as a process: start, settings, migrations, and what it says about wrong use."""

import json
import resource
import subprocess
import sys

import pytest

from agentrt.cli.database import parse_duration
from agentrt.core.errors import InvalidArgument
from tests.commandline import SECONDS, Ran, assert_one_sentence, run, run_process
from tests.ports import reserved_port

SLOW_IMPORTS = {"asyncpg", "pydantic_ai", "openai", "anthropic", "mcp", "fastmcp", "prometheus_client", "structlog"}


# --- start ----------------------------------------------------------------------------------------------------------


def test_help_imports_neither_driver_nor_model_layer_nor_telemetry():
    program = "import sys, agentrt.cli\nprint(sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert not SLOW_IMPORTS & set(eval(done.stdout))  # noqa: S307 - printed by the line above


def processor_seconds(*arguments: str) -> float:
    """The least of three: other tests run beside this one."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=SECONDS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert {"worker", "migrate", "demo", "sessions", "agents", "version"} <= set(done.stdout.split())
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_help_costs_no_more_than_five_times_the_frameworks_that_it_stands_on():
    """About half a second of a processor; how long that is depends on the processor."""
    words = "worker migrate demo sessions agents version"
    frameworks = processor_seconds("-c", f"import typer, rich.console; print('{words}')")
    assert processor_seconds("-m", "agentrt", "--help") < 5 * frameworks


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_is_that_of_the_package(word):
    from importlib.metadata import version

    assert run(word) == Ran(0, version("agentrt") + "\n", "")


def test_a_command_that_does_not_exist_is_wrong_use():
    ran = run("sesions")
    assert ran.code == 2
    assert "No such command" in ran.err
    assert "Traceback" not in ran.err


# --- settings -------------------------------------------------------------------------------------------------------


def test_a_wrong_setting_ends_a_process_with_one_sentence():
    assert_one_sentence(run_process("worker", slots="-1"), code=2, names=("AGENTRT_SLOTS=-1",))


@pytest.mark.parametrize("command", [("worker",), ("migrate",), ("sessions", "list"), ("agents", "list")])
def test_a_wrong_setting_is_one_sentence_whatever_the_command(command):
    assert_one_sentence(run(*command, slots="-1"), code=2, names=("AGENTRT_SLOTS=-1",))


@pytest.mark.parametrize("command", [("worker",), ("migrate",), ("migrate", "--check"), ("sessions", "list")])
def test_a_missing_database_url_is_named(command):
    assert_one_sentence(run(*command), code=2, names=("AGENTRT_DATABASE_URL is not set",))


def test_a_misspelt_variable_is_named_beside_the_setting_that_is_missing():
    ran = run("sessions", "list", databse_url="postgresql://h/db")
    assert ran.code == 2
    assert "AGENTRT_DATABASE_URL is not set" in ran.err
    assert "AGENTRT_DATABSE_URL is no setting" in ran.err


def test_a_lease_that_is_too_short_is_refused_before_anything_is_done():
    assert_one_sentence(run("worker", lease_seconds="5"), code=2, names=("AGENTRT_LEASE_SECONDS=5", "9"))


# --- the database ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("migrate", "--check"),
        ("sessions", "list"),
        ("workers", "list"),
        ("prune", "--older-than", "90d"),
    ],
)
def test_a_database_that_does_not_answer_is_named_without_its_password(command):
    with reserved_port() as (_, port):
        ran = run(*command, url=f"postgresql://me:geheim@127.0.0.1:{port}/db")
    assert_one_sentence(ran, code=1, names=(f"127.0.0.1:{port}",))
    assert "geheim" not in ran.err


def test_migrate_checks_shows_and_applies(empty_database_url):
    checked = run("migrate", "--check", url=empty_database_url)
    assert checked.code == 1
    assert "0001_initial" in checked.out
    shown = run("migrate", "--dry-run", "--json", url=empty_database_url)
    assert shown.code == 0
    pending = json.loads(shown.out)["pending"]
    assert pending[0] == "0001_initial"
    applied = run("migrate", "--json", url=empty_database_url)
    assert (applied.code, json.loads(applied.out)["applied"]) == (0, pending)
    assert run("migrate", "--check", url=empty_database_url).code == 0
    assert "up to date" in run("migrate", url=empty_database_url).out


@pytest.mark.one_server
@pytest.mark.parametrize(
    "command",
    [
        ("sessions", "list"),
        ("sessions", "create", "a", "hello"),
        ("sessions", "cancel", "00000000-0000-0000-0000-000000000000"),
        ("workers", "list"),
    ],
)
def test_a_missing_schema_names_the_command_to_run(empty_database_url, command):
    assert_one_sentence(run(*command, url=empty_database_url), code=1, names=("agentrt migrate",))


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30 min", 1800), ("1.5h", 5400), ("90d", 7_776_000), ("2w", 1_209_600)]
)
def test_lengths_of_time_are_written_with_their_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "-1d", "d", "1 year", "1e3s"])
def test_other_lengths_of_time_are_refused(text):
    with pytest.raises(InvalidArgument, match="90d"):
        parse_duration(text)
