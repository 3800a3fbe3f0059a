"""Agents whose tools leave something behind that does not end; GATES is a folder, as in ``agents.py``."""

import asyncio
import atexit
import threading
import time

from agentrt import Agent, tool
from agentrt.models.scripted import Call, Conversation, Scripted, ScriptedModel
from tests.system.agents import GATES

LONG_SECONDS = 600
KEPT: list[object] = []


def block() -> None:
    (GATES / "blocked.reached").touch()
    time.sleep(LONG_SECONDS)


async def swallow() -> None:
    while True:
        try:
            await asyncio.sleep(LONG_SECONDS)
        except asyncio.CancelledError:
            continue


@tool(effect="read", timeout_seconds=3)  # the thread has begun by then
async def past_its_limit() -> None:
    """Waits for a thread for longer than it may."""
    await asyncio.to_thread(block)


@tool(effect="read")
async def in_thread() -> None:
    """Waits for a thread that blocks."""
    await asyncio.to_thread(block)


@tool(effect="read")
async def in_executor() -> str:
    """Starts a thread that blocks, and waits for nothing."""
    KEPT.append(asyncio.get_running_loop().run_in_executor(None, block))
    return "left"


@tool(effect="read")
async def in_many_threads() -> str:
    """Fills whatever holds the threads of tools."""
    loop = asyncio.get_running_loop()
    KEPT.extend([loop.run_in_executor(None, block) for _ in range(80)])
    return "left"


@tool(effect="read")
async def own_thread() -> str:
    """Starts a thread of its own."""
    threading.Thread(target=block, name="own").start()
    return "left"


@tool(effect="read")
async def own_task() -> str:
    """Starts a task that cannot be cancelled."""
    KEPT.append(asyncio.create_task(swallow()))
    return "left"


@tool(effect="read", timeout_seconds=0.5)
async def swallowing() -> None:
    """Cannot be cancelled."""
    await swallow()


@tool(effect="read")
async def at_exit() -> str:
    """Has something to do at the end of the process."""
    atexit.register(time.sleep, LONG_SECONDS)
    return "left"


@tool(effect="read")
async def nothing() -> str:
    """Leaves nothing behind."""
    return "done"


async def one_tool(conversation: Conversation) -> Scripted:
    """Calls the tool that the message names, and ends."""
    return "done" if conversation.results else Call(conversation.last_user_text, {})


TOOLS = [past_its_limit, in_thread, in_executor, in_many_threads, own_thread, own_task, swallowing, at_exit, nothing]
leftover = Agent("leftover", model=ScriptedModel(one_tool), tools=TOOLS)
