"""A worker's ground: the real store on the test's own database."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.worker.ownership import Ground, Heard, stores, worker_info


@pytest.fixture
async def ground(database_url: str, connection: asyncpg.Connection) -> AsyncIterator[Ground]:
    opened = stores(database_url)
    store = await opened.sessions()
    keeper = await opened.keeper()
    worker = worker_info()
    await keeper.register(worker, await keeper.lock_liveness())
    yield Ground(database_url, connection, store, keeper, worker, Heard())
    await keeper.close()
    await store.close()
