"""Agents for takeovers: one that kills its worker, one that works in many small steps, one under memory pressure."""

import asyncio
import gc
import os
import signal
from pathlib import Path

from agentrt import Agent, Limits, tool
from agentrt.models.scripted import Call, Conversation, Scripted, ScriptedModel

GATES = Path(os.environ.get("GATES", "/nonexistent"))


def poisonous(conversation: Conversation) -> Scripted:
    """Kills the process that asks."""
    with (GATES / "effects").open("a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@tool(effect="read")
async def rest() -> str:
    """Takes a moment."""
    await asyncio.sleep(0.3)
    return "rested"


def healthy_steps(conversation: Conversation) -> Scripted:
    """Step after step, until the gate "healthy" is opened."""
    return "done" if (GATES / "healthy.open").exists() else Call("rest", {})


@tool(effect="read")
async def litter() -> str:
    """Leaves circles of garbage behind, and has them collected while it waits for something that only it holds."""
    for _ in range(5):
        circle: list[object] = [bytearray(1_000_000)]
        circle.append(circle)
        del circle
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, waiter.set_result, None)
        gc.collect()
        await waiter
    return "littered"


def pressed_steps(conversation: Conversation) -> Scripted:
    """Five calls of ``litter``."""
    return Call("litter", {}) if len(conversation.results) < 5 else "done"


poison = Agent("poison", model=ScriptedModel(poisonous))
healthy = Agent("healthy", model=ScriptedModel(healthy_steps), tools=[rest], limits=Limits(turns=10_000))
pressed = Agent("pressed", model=ScriptedModel(pressed_steps), tools=[litter])
