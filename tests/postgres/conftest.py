"""Connections to the test's own database, and a stage to put sessions into any state."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import asyncpg
import pytest

from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.owner import HireOwner, hiring
from tests.postgres.stage import Stage

PATIENT = partial(DatabaseOptions, statement_seconds=120, lock_seconds=120, idle_transaction_seconds=120)


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
    """Registers workers in the test's own database. What a test lets them wait for, they wait for, however long the
    machine takes between two steps."""
    async with hiring(PATIENT(url=database_url)) as hire:
        yield hire
