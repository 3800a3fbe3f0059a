"""Scripts in which the user, the model and the operator disturb the session as well."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentrt.agents import ToolContext, tool
from agentrt.core.session import Session, Status
from agentrt.models.scripted import Call, Conversation, Reply, Scripted
from agentrt.ports import ModelError, ModelErrorClass
from tests.crash.effects import INTERRUPTED, OK, UNKNOWN, look, pay
from tests.crash.world import WORLD, Script, World, agent_of, forever, no_move

# --- 3: a message in mid-run, one for the next run, and an interrupt ------------------------------------------------


@tool(effect="read", name="look")
async def steered_look(ctx: ToolContext, at: str) -> str:
    """Look at something, while the user says more; the worker hears of it by a gap in the seqs."""
    WORLD.get().effect("look", ctx)
    await WORLD.get().send("steer")
    return f"saw {at}"


async def _steered(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        await world.send("later", when_running="queue")
        return Call("look", {"at": "map"})
    if "stop" not in talk.user_texts:
        world.say("Let me think")
        await world.send("stop", when_running="interrupt", notified=True)
        await forever()
    return f"answer {talk.turn}"


STEERED = Script(
    name="steered",
    agent=agent_of("steered", steered_look),
    answer=_steered,
    move=no_move,
    texts=("begin", "steer", "stop", "later"),
    outcomes={"look": {OK}},
    answers=(3, 4),  # what was heard of the interrupted answer is kept, unless the worker died with it
    runs=2,
)


@tool(effect="once")
async def stay(ctx: ToolContext) -> str:
    """Stay until the user says stop."""
    WORLD.get().effect("stay", ctx)
    await WORLD.get().send("stop", when_running="interrupt", notified=True)
    await forever()
    return "never"


async def _stopped(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("look", {"at": "map"}), Call("pay", {"whom": "ann"}), Call("stay")]
    if "stop" not in talk.user_texts:
        await world.send("stop")  # ``stay`` had begun, and died before it said so
    return f"answer {talk.turn}"


STOPPED = Script(
    name="stopped",
    agent=agent_of("stopped", look, pay, stay),
    answer=_stopped,
    move=no_move,
    texts=("begin", "stop"),
    outcomes={"look": {OK, INTERRUPTED}, "pay": {OK, UNKNOWN, INTERRUPTED}, "stay": {UNKNOWN, INTERRUPTED}},
    answers=(2, 3),
)


# --- 4: cancelled in mid-run, then revived --------------------------------------------------------------------------


@tool(effect="once", name="pay")
async def cancelled_pay(ctx: ToolContext, whom: str) -> str:
    """Pay, while the user cancels."""
    WORLD.get().effect("pay", ctx)
    await WORLD.get().cancel(run=1, notified=whom == "ann")
    return f"paid {whom}"


def _cancelled(whom: str) -> Callable[[World, Conversation], Awaitable[Scripted]]:
    async def answer(world: World, talk: Conversation) -> Scripted:
        if talk.turn == 0:
            await world.send("dropped", when_running="queue")
            return [Call("look", {"at": "map"}), Call("pay", {"whom": whom})]
        if "go on" not in talk.user_texts:
            await world.cancel(run=1)
        return f"answer {talk.turn}"

    return answer


async def _revive(world: World, session: Session) -> bool:
    if session.status is Status.CANCELLED:
        await world.send("go on")
        return True
    return False


CANCELLED = Script(
    name="cancelled",
    agent=agent_of("cancelled", look, cancelled_pay),
    answer=_cancelled("ann"),
    move=_revive,
    texts=("begin", "go on"),
    outcomes={"look": {OK, INTERRUPTED}, "pay": {UNKNOWN}},
    answers=(2,),
    runs=2,
)

CANCELLED_UNHEARD = replace(CANCELLED, name="cancelled unheard", answer=_cancelled("bob"))


@tool(effect="idempotent", name="put")
async def drained_put(ctx: ToolContext, what: str) -> str:
    """Put something in its place while the worker is told to drain."""
    world = WORLD.get()
    world.effect("put", ctx)
    if world.holding is not None and len(world.done) == 1:
        world.holding.draining.set()
    return f"put {what}"


async def _stormy(world: World, talk: Conversation) -> Scripted:
    if len(world.requests) == 1:
        raise ModelError(ModelErrorClass.TRANSIENT, "come back in an hour", retry_after_seconds=3600)
    if len(world.requests) == 2:
        return Reply(thinking="nothing to say")
    if talk.turn == 0:
        return Call("put", {"what": "flag"})
    return f"answer {talk.turn}"


STORMY = Script(
    name="stormy",
    agent=agent_of("stormy", drained_put),
    answer=_stormy,
    move=no_move,
    texts=("begin",),
    outcomes={"put": {OK}},
    answers=(2,),
)
