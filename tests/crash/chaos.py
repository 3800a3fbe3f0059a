"""Scripts drawn from a seed: the user steers, queues, interrupts, cancels, and the operator releases, at random port
calls of workers that are slowed down at random. Nothing is known of the order of things; every promise holds."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from random import Random
from typing import Any

from agentrt.core.content import ToolCall
from agentrt.core.errors import InvalidTransition
from agentrt.core.journal import ToolOutcome
from agentrt.core.messages import ModelOutput
from agentrt.core.session import Session, Status
from agentrt.core.transcript import fold
from agentrt.models.scripted import Call, Conversation, Scripted
from agentrt.ports import ModelError, ModelErrorClass
from agentrt.tools.ask_user import ask_user
from tests.crash.calm import order, ship
from tests.crash.effects import DENIED, INTERRUPTED, OK, UNKNOWN, book, look, pay, put, wire
from tests.crash.mortality import Doom, Moment
from tests.crash.turns import stumble
from tests.crash.world import Script, World, agent_of

AGENT = agent_of("chaos", look, put, pay, wire, book, ship, order, stumble, ask_user)
ARGUMENT = {"look": "at", "put": "what", "pay": "whom", "wire": "whom", "ship": "what", "order": "what"}
ENDS = {OK, INTERRUPTED}
OUTCOMES = {
    **dict.fromkeys(("look", "put", "wire", "book", "order", "ask_user"), ENDS),
    "pay": {*ENDS, UNKNOWN},
    "ship": {*ENDS, UNKNOWN, DENIED},
    "stumble": {ToolOutcome.ERROR, INTERRUPTED},
}


class _Chaos:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.calls = 0
        self.batches = [self._batch(turn) for turn in range(self.dice.randint(1, 3))]
        self.troubles = self.dice.randint(0, 2)
        ways = ("steer", "steer", "queue", "interrupt")
        self.messages = [(self._when(), f"message {n}", self.dice.choice(ways)) for n in range(self.dice.randint(0, 4))]
        self.cancel_at = self._when() if self.dice.random() < 0.4 else None
        self.release_at = self._when() if self.dice.random() < 0.3 else None

    def _when(self) -> int:
        return self.dice.randint(2, 40)

    def _batch(self, turn: int) -> list[Call]:
        names = [self.dice.choice([*ARGUMENT, "stumble", "ask_user"]) for _ in range(self.dice.randint(1, 5))]
        calls = [self._call(name, f"{turn}.{n}") for n, name in enumerate(names)]
        return [*calls, Call("book", {"line": "x"})] if turn == 0 and self.dice.random() < 0.6 else calls

    def _call(self, name: str, word: str) -> Call:
        if name in ARGUMENT:
            return Call(name, {ARGUMENT[name]: word})
        return Call(name, {"question": word} if name == "ask_user" else {})

    # --- the model --------------------------------------------------------------------------------------------------

    async def answer(self, world: World, talk: Conversation) -> Scripted:
        called = sum(_calls_something(message) for message in talk.messages)
        if self.troubles and self.dice.random() < 0.3:
            self.troubles -= 1
            raise ModelError(ModelErrorClass.TRANSIENT, "overloaded", retry_after_seconds=60)
        if called < len(self.batches):
            return self.batches[called]
        world.say("Well")
        await asyncio.sleep(self.dice.random() * 0.01)
        return f"answer {talk.turn}"

    # --- the user and the operator ----------------------------------------------------------------------------------

    async def meddle(self, world: World, port: str) -> None:
        self.calls += 1
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.random() * 0.004)
        for due, text, way in self.messages:
            if due <= self.calls and text not in world.said:
                await world.send(text, when_running=way, notified=self.dice.random() < 0.7)
        if self.cancel_at is not None and self.cancel_at <= self.calls:
            self.cancel_at = None
            await self._command(world, world.client.cancel(world.session_id))
        if self.release_at is not None and self.release_at <= self.calls:
            self.release_at = None
            await self._command(world, world.client.release(world.session_id))

    async def _command(self, world: World, command: Awaitable[object]) -> None:
        """The worker may hear of it at once, or when it writes next."""
        await world.by_user(_if_possible(command))
        if world.holding is not None and self.dice.random() < 0.5:
            world.holding.lose("taken away")

    async def move(self, world: World, session: Session) -> bool:
        if session.status is Status.SUSPENDED and session.suspension is not None:
            return await self._wake(world, session.suspension)
        for _, text, way in self.messages:
            if text not in world.said:
                await world.send(text, when_running=way)
                return True
        if session.status in (Status.CANCELLED, Status.FAILED):
            await world.send(f"go on from run {session.run}")
            return True
        return False

    async def _wake(self, world: World, suspension: Any) -> bool:
        """What the session waits for comes, in any order: a decision, a result from outside, an answer."""
        if suspension["reason"] == "input":
            await world.send(f"reply {len(world.said)}")
            return True
        assert suspension["reason"] in ("approval", "external"), suspension
        approvals = await world.client.pending_approvals(world.session_id)
        deferred = [call for call in fold(await world.journal()).open_calls if call.deferred]
        if approvals and (not deferred or self.dice.random() < 0.5):
            verdict: Any = self.dice.choice(["approved", "rejected"])
            await world.client.decide(approvals[0]["id"], verdict, reviewer="ann")
        else:
            await world.client.complete_tool_call(world.session_id, deferred[0].call.call_id, result="it arrived")
        return True


async def _if_possible(command: Awaitable[object]) -> None:
    with suppress(InvalidTransition):  # there is nothing to cancel or to release
        await command


def _calls_something(message: object) -> bool:
    return isinstance(message, ModelOutput) and any(isinstance(block, ToolCall) for block in message.content)


def chaos(seed: int) -> tuple[Script, tuple[Doom, ...]]:
    """A script and up to three dooms, all drawn from ``seed``."""
    drawn = _Chaos(seed)
    script = Script(
        name=f"chaos {seed}",
        agent=AGENT,
        answer=drawn.answer,
        move=drawn.move,
        meddle=drawn.meddle,
        texts=None,
        outcomes=OUTCOMES,
    )
    dooms = [Doom(drawn.dice.randint(1, 30), drawn.dice.choice(list(Moment))) for _ in range(drawn.dice.randint(0, 3))]
    return script, tuple(dooms)
