"""Fixtures of the system tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import CHECKOUT
from tests.system.fleet import Fleet, fleet
from tests.system.gates import Gates

AGENTS = str(CHECKOUT / "tests" / "system" / "agents.py")


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
