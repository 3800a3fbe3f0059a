"""What counts as a tool that has not ended: all that it hands over to the loop's default executor, and nothing else."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agentrt.worker.threads import MAX_THREADS, ToolThreads
from tests.postgres.stage import HANGS_AFTER_SECONDS
from tests.worker.scenes import soon


class Blocking:
    """A function that blocks its thread until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self.let_go.wait(HANGS_AFTER_SECONDS)


@asynccontextmanager
async def blocking() -> AsyncIterator[Blocking]:
    block = Blocking()
    try:
        yield block
    finally:
        block.let_go.set()


async def drained(threads: ToolThreads) -> None:
    """Until nothing counts any more: a thread tells nobody that it has ended."""
    async with asyncio.timeout(HANGS_AFTER_SECONDS):
        while threads.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def by_to_thread(block: Blocking) -> None:
    await asyncio.to_thread(block)


async def by_executor(block: Blocking) -> None:
    await asyncio.get_running_loop().run_in_executor(None, block)


async def by_a_task(block: Blocking) -> None:
    await asyncio.create_task(asyncio.to_thread(block))


@pytest.mark.parametrize("hand_over", [by_to_thread, by_executor, by_a_task])
async def test_what_a_tool_hands_over_counts_until_it_has_ended(
    hand_over: Callable[[Blocking], Awaitable[None]],
) -> None:
    threads = ToolThreads()
    async with blocking() as block:
        call = threads.task(lambda: hand_over(block))
        await soon(asyncio.to_thread(block.begun.acquire))
        call.cancel()
        await soon(asyncio.wait({call}))
        assert threads.running == 1
    await drained(threads)


async def test_what_a_plain_tool_hands_over_to_the_loop_counts_too() -> None:
    threads, loop = ToolThreads(), asyncio.get_running_loop()
    async with blocking() as block:
        async with threads.thread() as start:
            await soon(start(lambda: asyncio.run_coroutine_threadsafe(asyncio.to_thread(block), loop) and None))
        await soon(asyncio.to_thread(block.begun.acquire))
        assert threads.running == 1
    await drained(threads)


async def test_what_nobody_waits_for_before_it_began_does_not_count() -> None:
    threads = ToolThreads(max_threads=1)
    async with blocking() as block:
        both = [threads.task(lambda: asyncio.to_thread(block)) for _ in range(2)]
        await soon(asyncio.to_thread(block.begun.acquire))
        for call in both:
            call.cancel()
        await soon(asyncio.wait(both))
        assert threads.running == 1
    await drained(threads)


async def test_what_the_worker_hands_over_itself_does_not_count_and_finds_a_thread() -> None:
    threads = ToolThreads()
    async with blocking() as block, asyncio.TaskGroup() as tasks:
        async with asyncio.TaskGroup() as calls:
            for _ in range(MAX_THREADS + 1):
                calls.create_task(leave_behind(threads, block))
        ours = Blocking()
        tasks.create_task(asyncio.to_thread(ours))
        await soon(asyncio.to_thread(ours.begun.acquire))
        assert threads.running == MAX_THREADS + 1
        ours.let_go.set()
        block.let_go.set()
        await drained(threads)


async def leave_behind(threads: ToolThreads, block: Blocking) -> None:
    async def tool() -> None:
        asyncio.get_running_loop().run_in_executor(None, block)

    await threads.task(tool)


async def test_a_models_threads_do_not_count() -> None:
    threads = ToolThreads()
    async with blocking() as block:
        call = threads.task(lambda: asyncio.to_thread(block), name="model")
        await soon(asyncio.to_thread(block.begun.acquire))
        call.cancel()
        await soon(asyncio.wait({call}))
        assert threads.running == 0
