"""Scripts in which nothing goes wrong but the workers: runs, tools, questions, approvals, results from outside."""

from typing import Any

from agentrt.agents import ToolContext, tool
from agentrt.core.session import Session, Status
from agentrt.models.scripted import Call, Conversation, Scripted
from agentrt.tools.ask_user import ask_user
from tests.crash.effects import DENIED, EVERY_EFFECT, OK, UNKNOWN, book, look, pay, put, wire
from tests.crash.world import WORLD, Script, World, agent_of, no_move

# --- 1: three runs of one answer each -------------------------------------------------------------------------------


async def _talk(world: World, talk: Conversation) -> Scripted:
    return f"answer {talk.turn} to {talk.last_user_text}"


async def _talk_on(world: World, session: Session) -> bool:
    if session.status is Status.COMPLETED and session.run < 3:
        await world.send(f"message {session.run + 1}")
        return True
    return False


PLAIN = Script(
    name="plain",
    agent=agent_of("plain"),
    answer=_talk,
    move=_talk_on,
    texts=("begin", "message 2", "message 3"),
    outcomes={},
    answers=(3,),
    runs=3,
)


# --- 2: five calls of every effect, in three turns, and all at once -------------------------------------------------


async def _work(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("look", {"at": "map"}), Call("put", {"what": "flag"})]
    if talk.turn == 1:
        return [Call("pay", {"whom": "ann"}), Call("wire", {"whom": "bob"}), Call("book", {"line": "x"})]
    return f"answer {talk.turn}"


TOOLS = Script(
    name="tools",
    agent=agent_of("tools", look, put, pay, wire, book),
    answer=_work,
    move=no_move,
    texts=("begin",),
    outcomes=EVERY_EFFECT,
    answers=(3,),
)


async def _work_at_once(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        calls = [Call("book", {"line": "x"}), Call("wire", {"whom": "bob"}), Call("pay", {"whom": "ann"})]
        return [*calls, Call("put", {"what": "flag"}), Call("look", {"at": "map"})]
    return f"answer {talk.turn}"


AT_ONCE = Script(
    name="at once",
    agent=agent_of("at-once", look, put, pay, wire, book),
    answer=_work_at_once,
    move=no_move,
    texts=("begin",),
    outcomes=EVERY_EFFECT,
    answers=(2,),
)


# --- 5: questions ---------------------------------------------------------------------------------------------------


async def _asking(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("look", {"at": "map"}), Call("ask_user", {"question": "Which colour?"})]
    if talk.turn == 1:
        return Call("ask_user", {"question": "Sure?", "options": ["yes", "no"]})
    return f"answer {talk.turn}"


async def _reply(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED and session.suspension is not None:
        assert session.suspension["reason"] == "input"
        await world.send("blue" if len(world.requests[-1]) == 1 else "yes")
        return True
    return False


ASKING = Script(
    name="asking",
    agent=agent_of("asking", look, ask_user),
    answer=_asking,
    move=_reply,
    texts=("begin", "blue", "yes"),
    outcomes={"look": {OK}, "ask_user": {OK}},
    answers=(3,),
)


# --- 6: approvals, approved and rejected ----------------------------------------------------------------------------


@tool(effect="once", requires_approval=True)
async def ship(ctx: ToolContext, what: str) -> str:
    """Ship something, if a person agrees."""
    WORLD.get().effect(f"ship {what}", ctx)
    return f"shipped {what}"


async def _shipping(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("ship", {"what": "gold"}), Call("look", {"at": "map"}), Call("ship", {"what": "lead"})]
    return f"answer {talk.turn}"


async def _decide(world: World, session: Session) -> bool:
    """One of the open approvals: gold is approved, lead is rejected."""
    for approval in await world.client.pending_approvals(world.session_id):
        verdict: Any = "approved" if "gold" in approval["arguments"] else "rejected"
        await world.client.decide(
            approval["id"],
            verdict,
            reviewer="ann",
            arguments_hash=approval["arguments_hash"],
            comment="too heavy" if verdict == "rejected" else None,
        )
        return True
    return False


SHIPPING = Script(
    name="shipping",
    agent=agent_of("shipping", look, ship),
    answer=_shipping,
    move=_decide,
    texts=("begin",),
    outcomes={"look": {OK}, "ship": {OK, UNKNOWN, DENIED}},
    answers=(2,),
    approvals=(2,),
)


# --- 7: results from outside, a model that fails, a drain -----------------------------------------------------------


@tool(effect="idempotent")
async def order(ctx: ToolContext, what: str) -> str:
    """Order something; it arrives later."""
    WORLD.get().effect("order", ctx)
    ctx.defer()
    return ""


async def _ordering(world: World, talk: Conversation) -> Scripted:
    if talk.turn == 0:
        return [Call("order", {"what": "tea"}), Call("look", {"at": "map"})]
    return f"answer {talk.turn}"


async def _deliver(world: World, session: Session) -> bool:
    if session.status is Status.SUSPENDED and session.suspension is not None:
        assert session.suspension["reason"] == "external"
        [call_id] = session.suspension["waits_for"]
        await world.client.complete_tool_call(world.session_id, call_id, result="tea arrived")
        return True
    return False


ORDERING = Script(
    name="ordering",
    agent=agent_of("ordering", order, look),
    answer=_ordering,
    move=_deliver,
    texts=("begin",),
    outcomes={"order": {OK}, "look": {OK}},
    answers=(2,),
)
