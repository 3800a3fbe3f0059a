"""A worker's ground: the real store on the test's own database."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from agentrt.worker import keeper as keeper_module
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.ownership import Ground, Heard, stores, worker_info


@pytest.fixture(autouse=True)
def unhurried_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is paused while it says that it has stopped says so all the same."""
    monkeypatch.setattr(keeper_module, "_CLOSE_SECONDS", float(HANGS_AFTER_SECONDS))


@pytest.fixture
async def ground(database_url: str, connection: asyncpg.Connection) -> AsyncIterator[Ground]:
    opened = stores(database_url)
    store = await opened.sessions()
    keeper = await opened.keeper()
    worker = worker_info(lease_seconds=3_600.0)
    await keeper.register(worker, await keeper.lock_liveness())
    yield Ground(database_url, connection, store, keeper, worker, Heard())
    await keeper.close()
    await store.close()
