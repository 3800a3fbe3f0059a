"""What a session's workers cannot take along when they die: its user, what its tools did outside, its script."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentrt.agents import Agent, Limits, ToolContext
from agentrt.client import Client
from agentrt.core.journal import Entry, ToolOutcome
from agentrt.core.messages import Message
from agentrt.core.session import CallId, Session, SessionId
from agentrt.models.scripted import Conversation, Scripted
from agentrt.worker.holding import Holding
from tests.crash.mortality import Life, mortal


@dataclass(eq=False)
class World:
    """One session's surroundings, which survive its workers: its user, and what its tools have done outside."""

    client: Client
    session_id: SessionId
    life: Life = field(default_factory=Life)
    holding: Holding | None = None
    done: list[tuple[str, CallId, str]] = field(default_factory=list)
    """Effects outside: tool, call and idempotency key, in order."""
    requests: list[Sequence[Message]] = field(default_factory=list)
    said: list[str] = field(default_factory=lambda: ["begin"])
    _acts: set[asyncio.Future[object]] = field(default_factory=set)
    say: Callable[[str], None] = lambda _: None
    """Streams visible text of the model's present answer."""

    def effect(self, name: str, ctx: ToolContext) -> None:
        self.done.append((name, ctx.call_id, ctx.idempotency_key))

    def count(self, call_id: CallId) -> int:
        return sum(done[1] == call_id for done in self.done)

    async def journal(self) -> list[Entry]:
        return [entry async for entry in self.client.read(self.session_id)]

    async def send(self, text: str, *, notified: bool = False, when_running: Any = None) -> None:
        """The user says this, once. ``notified``: the worker hears of it at once."""
        if text not in self.said:
            self.said.append(text)
        await self.by_user(self.client.send(self.session_id, text, when_running=when_running, request_id=text))
        if notified and self.holding is not None:
            self.holding.ahead.set()

    async def cancel(self, *, run: int, notified: bool = False) -> None:
        await self.by_user(self.client.cancel(self.session_id, run=run))
        if notified and self.holding is not None:
            self.holding.lose("the session was cancelled")

    async def by_user(self, doing: Coroutine[Any, Any, object]) -> None:
        """No worker's end keeps a user from it."""
        act = asyncio.ensure_future(doing)
        self._acts.add(act)
        act.add_done_callback(self._acts.discard)
        await asyncio.shield(act)

    async def settled(self) -> None:
        """The user has done what they were about to do."""
        while self._acts:
            await asyncio.wait(set(self._acts))


WORLD: ContextVar[World] = ContextVar("world")

Expected = Mapping[str, set[ToolOutcome]]


@dataclass(frozen=True, kw_only=True)
class Script:
    """``answer`` is the model, ``move`` what the user does when nothing is due: False when the story is over.

    ``texts``: what the user said, in the order in which the model sees it; None: nothing is known beforehand but how
    calls may end. ``outcomes``: how the calls of a tool may
    end when a worker died. ``answers`` and ``approvals``: how many of them the journal may hold. ``meddle`` is what the
    user does before a port call.
    """

    name: str
    agent: Agent
    answer: Callable[[World, Conversation], Awaitable[Scripted]]
    move: Callable[[World, Session], Awaitable[bool]]
    texts: tuple[str, ...] | None
    outcomes: Expected
    answers: tuple[int, ...] = ()
    runs: int = 1
    approvals: tuple[int, ...] = (0,)
    meddle: Callable[[World, str], Awaitable[None]] | None = None


def agent_of(name: str, *tools: Any, limits: Limits | None = None) -> Agent:
    """An agent whose tools die with their worker."""
    lived = [mortal(each, lambda: WORLD.get().life) for each in tools]
    return Agent(name, model="crash:model", tools=lived, limits=limits)


async def no_move(world: World, session: Session) -> bool:
    return False


async def forever() -> None:
    await asyncio.Event().wait()
