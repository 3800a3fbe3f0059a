"""Fixtures of the system tests."""

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from tests.databases import CHECKOUT
from tests.system.fleet import Fleet, fleet
from tests.system.gates import Gates

LAST_LINES = 40
AGENTS = str(CHECKOUT / "tests" / "system" / "agents.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last lines of the workers' logs beside a failure."""
    report = yield
    running = getattr(item, "funcargs", {}).get("workers")
    if report.failed and isinstance(running, Fleet):
        for worker in running.workers:
            lines = worker.logged().splitlines()[-LAST_LINES:]
            report.sections.append((f"the log of {worker.name}", "\n".join(lines)))
    return report


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    """The folder at which agents wait."""
    folder = tmp_path / "gates"
    folder.mkdir()
    return Gates(folder)


@pytest.fixture
async def workers(database_url: str, tmp_path: Path, gates: Gates) -> AsyncIterator[Fleet]:
    """A fleet that serves the agents of ``tests/system/agents.py``."""
    async with fleet(database_url, AGENTS, tmp_path, env={"GATES": str(gates.folder)}) as running:
        yield running
