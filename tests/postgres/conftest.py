"""Connections to the test's own database, and a stage to put sessions into any state."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import HireOwner, hiring
from tests.postgres.stage import Stage


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Callable[[], Awaitable[asyncpg.Connection]]]:
    """Opens further connections to the test's own database; they are closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_one() -> asyncpg.Connection:
            connection = await asyncpg.connect(database_url)
            stack.push_async_callback(connection.close, timeout=5)
            return connection

        yield open_one


@pytest.fixture
async def stage(connection: asyncpg.Connection) -> Stage:
    return Stage(connection)


@pytest.fixture
async def stages(connect: Callable[[], Awaitable[asyncpg.Connection]]) -> tuple[Stage, Stage]:
    """Two stages with a connection each, for races."""
    return Stage(await connect()), Stage(await connect())


@pytest.fixture
async def hire(database_url: str) -> AsyncIterator[HireOwner]:
    """Registers workers in the test's own database."""
    async with hiring(DatabaseOptions(url=database_url)) as hire:
        yield hire


@pytest.fixture
async def hire_patient(database_url: str) -> AsyncIterator[HireOwner]:
    """Registers workers that wait for what a test lets them wait for, however long it takes between two steps."""
    options = DatabaseOptions(url=database_url, lock_seconds=20, statement_seconds=60, idle_transaction_seconds=60)
    async with hiring(options) as hire:
        yield hire
