"""Each guard is taken away in turn, in a copy of the checkout: the tests that claim to cover it must then fail.

That they pass with it is shown by the run that this one belongs to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import CHECKOUT, drop_template
from tests.mutations import MUTATIONS, Mutation
from tests.servers import Server

COPIED = ("agentrt", "migrations", "tests", "pyproject.toml")

CONTROL = "tests/postgres/test_worker_guards.py::test_a_session_lives_through_claim_answer_and_end"
"""Needs none of the guards: it passes, so that what makes the others fail is not a program that cannot run at all."""

UNFINISHED = shutil.ignore_patterns("*.pyc.*")

HANGS_AFTER_SECONDS = 280

OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (tests/\S+?\.py::\w+)", re.MULTILINE)


@pytest.mark.system
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_without_the_guard_its_tests_fail(mutation: Mutation, mutant: Path, server: Server) -> None:
    path = mutant / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, f"{mutation.old!r} stands {text.count(mutation.old)} times in {mutation.file}"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")

    found, output = run_tests(mutant, (CONTROL, *mutation.node_ids), server)

    assert found.pop(CONTROL, None) == {"PASSED"}, output
    assert set(found) == set(mutation.node_ids), output
    unmoved = [test for test, outcomes in found.items() if "FAILED" not in outcomes]
    assert not unmoved, f"{unmoved} do not notice that the guard is gone\n{output}"


@pytest.fixture
def mutant(tmp_path: Path, server: Server) -> Iterator[Path]:
    """A copy of what the tests run."""
    for name in COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=UNFINISHED)  # with what is compiled already
        else:
            shutil.copy(CHECKOUT / name, tmp_path / name)
    yield tmp_path
    drop_template(server.url, tmp_path)
    shutil.rmtree(tmp_path)


def run_tests(checkout: Path, node_ids: tuple[str, ...], server: Server) -> tuple[dict[str, set[str]], str]:
    """Run tests of a copy; the outcomes of each, whatever its parameters, and what was printed."""
    plugins = ("-p", "xdist.plugin", "-p", "pytest_timeout", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider")
    arguments = ("-q", "-rA", "--tb=short", "--numprocesses=0", "--timeout=90", *plugins)
    scratch = tempfile.mkdtemp(prefix="agentrt-mutant-")  # pytest shuts the folder of all runs to other users
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, f"--basetemp={scratch}", *node_ids],
        cwd=checkout,
        env=os.environ
        | {"AGENTRT_TEST_DATABASE_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1"}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # half the time of a start
        | {"PYTHONPATH": str(checkout)},  # in front of an editable install
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER_SECONDS,
    )
    shutil.rmtree(scratch, ignore_errors=True)
    found: dict[str, set[str]] = {}
    for outcome, node_id in OUTCOME.findall(done.stdout):
        found.setdefault(node_id, set()).add(outcome)
    return found, done.stdout + done.stderr
