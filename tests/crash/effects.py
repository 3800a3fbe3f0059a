"""Tools of every effect, which leave their traces in the session's world."""

from agentrt.agents import Done, NotDone, ToolContext, tool
from agentrt.core.journal import ToolOutcome
from tests.crash.world import WORLD, Expected

OK, UNKNOWN = ToolOutcome.OK, ToolOutcome.UNKNOWN
INTERRUPTED, DENIED = ToolOutcome.INTERRUPTED, ToolOutcome.DENIED


@tool(effect="read")
async def look(ctx: ToolContext, at: str) -> str:
    """Look at something."""
    WORLD.get().effect("look", ctx)
    return f"saw {at}"


@tool(effect="idempotent")
async def put(ctx: ToolContext, what: str) -> str:
    """Put something in its place; twice is the same."""
    WORLD.get().effect("put", ctx)
    return f"put {what}"


@tool(effect="once")
async def pay(ctx: ToolContext, whom: str) -> str:
    """Pay somebody; nobody can tell afterwards."""
    WORLD.get().effect("pay", ctx)
    return f"paid {whom}"


async def _wired(ctx: ToolContext, whom: str) -> Done | NotDone:
    return Done(f"wired {whom}") if WORLD.get().count(ctx.call_id) else NotDone()


@tool(effect="once", reconcile=_wired)
async def wire(ctx: ToolContext, whom: str) -> str:
    """Wire money; the bank can be asked."""
    WORLD.get().effect("wire", ctx)
    return f"wired {whom}"


@tool(effect="transactional")
async def book(ctx: ToolContext, line: str) -> str:
    """Write a line into the ledger, without any key that would keep it from standing there twice."""
    await ctx.connection.execute("insert into public.ledger values ($1, $2)", ctx.session_id, line)
    WORLD.get().effect("book", ctx)
    return f"booked {line}"


EVERY_EFFECT: Expected = {"look": {OK}, "put": {OK}, "pay": {OK, UNKNOWN}, "wire": {OK}, "book": {OK}}
