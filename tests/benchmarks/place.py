"""Where benchmarks run: a server with default durability, AGENTRT_TEST_DATABASE_URL's or one for the moment."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from agentrt.postgres import embedded
from tests.databases import fresh_database


@asynccontextmanager
async def benchmark_server() -> AsyncIterator[str]:
    """The URL of its maintenance database; what is committed is on a disk."""
    with ExitStack() as stack:
        url = os.environ.get("AGENTRT_TEST_DATABASE_URL", "")
        if not url:
            server = embedded.temporary(settings={"max_connections": 300})
            url = (await asyncio.to_thread(stack.enter_context, server)).url
        yield url


@asynccontextmanager
async def benchmark_database(server_url: str) -> AsyncIterator[str]:
    """A migrated database for one measurement."""
    async with fresh_database(server_url, migrated=True) as url:
        yield url
