"""The README's tables say what the code says: settings, metrics, log events, entries, functions, errors, commands."""

import re
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

from agentrt import Client, cli, errors
from agentrt.core.journal import EntryData, ToolOutcome, Unknown
from agentrt.core.session import SuspendReason
from agentrt.ports import ModelErrorClass
from agentrt.settings import PREFIX, Settings
from agentrt.telemetry.lines import NAMES
from tests.databases import CHECKOUT
from tests.deploy.promised import exposition

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
MIGRATIONS = "".join(path.read_text(encoding="utf-8") for path in sorted((CHECKOUT / "migrations").glob("*.sql")))

Row = tuple[str, ...]


def table(heading: str) -> list[Row]:
    """The rows of the table with this heading line, without it."""
    after = README.split(f"\n{heading}\n")
    assert len(after) == 2, f"the README has {len(after) - 1} tables {heading}"
    lines = after[1].splitlines()[1:]
    rows = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])) for row in rows]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_setting_is_there_with_its_default():
    documented = {quoted(name)[0]: default.strip("`") for name, default, _ in table("| variable | default | what |")}
    ours = {"worker_name": "host name", "direct_database_url": "the same"}
    defaults = {}
    for name, field in Settings.model_fields.items():
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        shown = f"{default:g}" if isinstance(default, float) and default < 1e5 else str(default).removesuffix(".0")
        defaults[PREFIX + name.upper()] = ours.get(name) or ("–" if default in (None, "") else shown)
    assert documented == defaults


def test_every_metric_is_there_with_its_type_and_labels():
    exported = {}
    for family in text_string_to_metric_families(exposition()):
        if not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            exported[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    rows = table("| metric | type | labels | what |")
    assert {quoted(name)[0]: (kind, set(quoted(labels))) for name, kind, labels, _ in rows} == exported


def test_every_log_event_is_there_with_its_level():
    documented = {name: level for names, level, _ in table("| event | level | when |") for name in quoted(names)}
    assert documented == dict(NAMES.values())


WRITTEN_BY_SQL = {"session_woken": {"force?", "limits?"}}
"""What the database adds, and Python does not look at."""


def test_every_entry_is_there_with_its_keys():
    documented = {quoted(kind)[0]: set(quoted(data)) for kind, data, _ in table("| type | data | |")}
    written = {}
    for kind in EntryData.__args__:
        if kind is Unknown:
            continue
        keys = {
            ("class" if field.name == "error_class" else field.name) + ("?" if field.default is None else "")
            for field in fields(kind)
        }
        written[kind.type] = (keys - {"position?"}) | WRITTEN_BY_SQL.get(kind.type, set())
    written["user_message"] ^= {"when_running", "when_running?"}  # a client that steers writes none
    assert documented == written


def test_every_outcome_of_a_tool_call_is_there():
    words = {quoted(kind)[0]: words for kind, _, words in table("| type | data | |")}
    assert words["tool_result"] == f"`{' '.join(ToolOutcome)}`"


def test_every_client_function_is_there_with_its_parameters_and_options():
    documented = {}
    for signature, options, _ in table("| function | options | returns |"):
        name, _, parameters = quoted(signature)[0].rstrip(")").partition("(")
        documented[name] = (parameters, tuple(quoted(options)))
    defined = {}
    header = r"create function agentrt\.([a-z]\w*)\(([^$]*?)\)\s*returns[^$]*security definer[^$]*"
    for found in re.finditer(header + r"\$\$(.*?)\nend \$\$", MIGRATIONS, re.DOTALL):
        parameters = re.sub(r" default ('[^']*'|\w+)", "", found[2]).replace("integer", "int")
        asked = re.search(r"_check_options\(options, '\{(.*?)\}'", found[3])
        defined[found[1]] = (parameters, tuple(filter(None, (asked[1] if asked else "").split(","))))
    assert documented == defined


def test_every_option_of_a_client_function_is_explained():
    used = {option for _, options, _ in table("| function | options | returns |") for option in quoted(options)}
    explained = {name for names, words in table("| option | what |") for name in quoted(names) + quoted(words)}
    assert used - explained == set()


def test_every_sqlstate_is_there_with_its_error():
    documented = {state: quoted(name)[0] for state, name, _ in table("| SQLSTATE | `agentrt.errors` | when |")}
    assert documented == {state: kind.__name__ for state, kind in errors.CLIENT_ERRORS.items()}


def test_every_method_of_the_client_is_there():
    named = {name for names, _ in table("| method of `Client` | |") for name in re.findall(r"`(\w+)", names)}
    assert named == {name for name, value in vars(Client).items() if callable(value) and not name.startswith("_")}


def test_every_suspension_reason_says_what_to_do():
    assert [quoted(reason)[0] for reason, _, _ in table("| reason | it waits for | do |")] == list(SuspendReason)


def test_every_class_of_model_errors_is_there():
    assert [quoted(kind)[0] for kind, _, _ in table("| class | what | then |")] == [*ModelErrorClass, "empty"]


@pytest.mark.parametrize("group", ["", "sessions"])
def test_every_command_is_named(group):
    commands = get_command(cli.app)
    found = getattr(commands, "commands", {})
    if group:
        found = found[group].commands
        assert set(re.findall(r"`(\w+)`", README.split("`agentrt sessions` has ")[1].split(";")[0])) == set(found)
    else:
        missing = [name for name in found if name != "version" and not re.search(rf"agentrt {name}\b", README)]
        assert missing == []


def options_of(command: Any, words: list[str]) -> set[str]:
    """The options of the command that ``words`` begin with."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_that_is_shown_with_a_command_is_one_of_its_own():
    commands: Any = get_command(cli.app)
    sessions = commands.commands["sessions"]
    shown = 0
    for whole, name, rest in re.findall(r"(?:^|`)(agentrt )?([a-z]+\b)([^`\n#]* --[^`\n#]+)", README, re.MULTILINE):
        if not whole and name not in sessions.commands:
            continue  # another program
        known = options_of(commands if whole else sessions, [name, *rest.split()])
        found = re.findall(r"(?<= )--[a-z-]+", rest)
        shown += len(found)
        assert set(found) <= known, f"{name}{rest}"
    assert shown > 8


def test_every_part_is_in_the_contents():
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    contents = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", " ".join(text.split("Contents: ")[1].split("\n\n")[0].split()))
    assert [title for title, _ in contents] == headings
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
