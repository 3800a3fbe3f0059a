"""Scripts that take a turn for the worse: unknown ends, failures, limits, approvals that become obsolete, crowds."""

from typing import Any

from agentrt.agents import Limits, ToolContext, ToolError, tool
from agentrt.core.journal import ToolOutcome
from agentrt.core.session import Session, Status
from agentrt.models.scripted import Call, Conversation, Scripted
from tests.crash.calm import ship
from tests.crash.effects import DENIED, INTERRUPTED, OK, UNKNOWN, book, look, pay, put
from tests.crash.world import WORLD, Script, World, agent_of, no_move

ERROR = ToolOutcome.ERROR


def _reason(session: Session) -> str | None:
    return session.suspension["reason"] if session.suspension is not None else None


# --- a message between the last answer and the ending ---------------------------------------------------------------


async def _answer(world: World, talk: Conversation) -> Scripted:
    return f"answer {talk.turn} to {talk.last_user_text}"


async def _too_late(world: World, port: str) -> None:
    """The ending was planned, and is stale by the time that it arrives."""
    if port == "end":
        await world.send("late")


LATE = Script(
    name="late",
    agent=agent_of("late"),
    answer=_answer,
    move=no_move,
    meddle=_too_late,
    texts=("begin", "late"),
    outcomes={},
    answers=(2,),
)


# --- the model repeats what is unknown ------------------------------------------------------------------------------


async def _repeating(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0 or (talk.turn == 1 and talk.last_results[0].outcome is UNKNOWN):
        return Call("pay", {"whom": "ann"})
    return f"answer {talk.turn}"


async def _approve(world: World, session: Session) -> bool:
    for approval in await world.client.pending_approvals(world.session_id):
        await world.client.decide(approval["id"], "approved", reviewer="ann")
        return True
    return False


REPEATING = Script(
    name="repeating",
    agent=agent_of("repeating", pay),
    answer=_repeating,
    move=_approve,
    texts=("begin",),
    outcomes={"pay": {OK, UNKNOWN}},
    answers=(2, 3),
    approvals=(0, 1),
)


# --- what is unknown waits for a person -----------------------------------------------------------------------------


@tool(effect="once", on_unknown="suspend")
async def fire(ctx: ToolContext, at: str) -> str:
    """Fire; if nobody knows whether it did, nothing goes on before a person has looked."""
    WORLD.get().effect("fire", ctx)
    return f"fired at {at}"


async def _firing(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("fire", {"at": "mark"}), Call("put", {"what": "flag"})]
    return f"answer {talk.turn}"


async def _resume(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED and _reason(session) == "blocked":
        await world.client.resume(world.session_id)
        return True
    return False


BLOCKED = Script(
    name="blocked",
    agent=agent_of("blocked", fire, put),
    answer=_firing,
    move=_resume,
    texts=("begin",),
    outcomes={"fire": {OK, UNKNOWN}, "put": {OK}},
    answers=(2,),
)


# --- a run that fails, with a message left for the next -------------------------------------------------------------


@tool(effect="read")
async def stumble(ctx: ToolContext) -> str:
    """Fail in the same way each time."""
    WORLD.get().effect("stumble", ctx)
    raise ToolError("there is a step")


async def _stumbling(world: World, talk: Conversation) -> Scripted:
    if "next" in talk.user_texts:
        return f"answer {talk.turn}"
    await world.send("next", when_running="queue")
    return Call("stumble")


FAILING = Script(
    name="failing",
    agent=agent_of("failing", stumble),
    answer=_stumbling,
    move=no_move,
    texts=("begin", "next"),
    outcomes={"stumble": {ERROR}},
    answers=(4, 5, 6, 7),  # a call that is given up after two crashes fails in another way
    runs=2,
)


# --- a run that uses up its turns -----------------------------------------------------------------------------------


async def _costly(world: World, talk: Conversation) -> Scripted:
    if talk.turn < 2:
        return [Call("look", {"at": f"page {talk.turn}"})]
    return f"answer {talk.turn}"


async def _raise_limits(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED and _reason(session) == "budget":
        await world.client.resume(world.session_id, limits={"turns": 5})
        return True
    return False


BUDGET = Script(
    name="budget",
    agent=agent_of("budget", look, limits=Limits(turns=2)),
    answer=_costly,
    move=_raise_limits,
    texts=("begin",),
    outcomes={"look": {OK}},
    answers=(3,),
)


# --- approvals that nobody needs any more ---------------------------------------------------------------------------


@tool(effect="idempotent", name="put")
async def deciding_put(ctx: ToolContext, what: str) -> str:
    """Put something in its place, while a person approves the lead, and the gold waits."""
    world = WORLD.get()
    world.effect("put", ctx)
    for approval in await world.client.pending_approvals(world.session_id):
        if "lead" in approval["arguments"]:
            await world.client.decide(approval["id"], "approved", reviewer="ann")
    return f"put {what}"


async def _shipping(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("ship", {"what": "gold"}), Call("put", {"what": "flag"}), Call("ship", {"what": "lead"})]
    return f"answer {talk.turn}"


async def _interrupt(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED and _reason(session) == "approval":
        await world.send("kept")
        await world.send("never mind", when_running="interrupt")
        return True
    return False


OBSOLETE = Script(
    name="obsolete",
    agent=agent_of("obsolete", ship, deciding_put),
    answer=_shipping,
    move=_interrupt,
    texts=("begin", "kept", "never mind"),
    outcomes={"put": {OK}, "ship": {OK, UNKNOWN, DENIED, INTERRUPTED}},
    answers=(2,),
    approvals=(2,),
)


async def _abandon(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED:
        await world.client.cancel(world.session_id, run=1)
        return True
    if session.status is Status.CANCELLED:
        await world.send("go on")
        return True
    return False


ABANDONED = Script(
    name="abandoned",
    agent=agent_of("abandoned", ship, put),
    answer=_shipping,
    move=_abandon,
    texts=("begin", "go on"),
    outcomes={"put": {OK}, "ship": {DENIED, INTERRUPTED}},
    answers=(2,),
    approvals=(2,),
    runs=2,
)


# --- more calls than run at once, some of them alone ----------------------------------------------------------------


@tool(effect="idempotent", sequential=True)
async def alone(ctx: ToolContext, what: str) -> str:
    """Do something while nothing else runs."""
    WORLD.get().effect("alone", ctx)
    return f"did {what}"


async def _crowded(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        looks: list[Any] = [Call("look", {"at": str(number)}) for number in range(9)]
        return [*looks, Call("alone", {"what": "a"}), Call("book", {"line": "x"}), Call("alone", {"what": "b"})]
    return f"answer {talk.turn}"


CROWDED = Script(
    name="crowded",
    agent=agent_of("crowded", look, alone, book),
    answer=_crowded,
    move=no_move,
    texts=("begin",),
    outcomes={"look": {OK}, "alone": {OK}, "book": {OK}},
    answers=(2,),
)
