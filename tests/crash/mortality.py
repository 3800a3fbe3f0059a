"""A worker that dies at a chosen port call: everything that it asks of the outside goes through its ``Life``.
Or its database call fails there, before or after it was carried out, and the worker lives on.

Dying is a ``BaseException``: no border of the worker catches it, and whatever the worker still tries on its way down
dies at the next port call, so that nothing reaches the outside after its death. What had been sent to the database
before is carried out, as by a server whose client was killed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from agentrt.agents import Tool
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.messages import ModelIdentity
from agentrt.models.scripted import Conversation, Scripted, ScriptedModel
from agentrt.ports import Answer, ModelAnswer, ModelRequest, SessionStore, ToolTransaction, Write, Written

T = TypeVar("T")


class Moment(StrEnum):
    BEFORE = "before"
    AFTER = "after"
    UNSENT = "unsent"
    """The worker lives; its call never reaches the database."""
    UNANSWERED = "unanswered"
    """The worker lives; the database does what it is asked, and the answer is lost."""


DEATHS = (Moment.BEFORE, Moment.AFTER)
BREAKS = (Moment.UNSENT, Moment.UNANSWERED)
BREAKABLE = ("read", "append", "end", "connection", "commit", "rollback")
"""Calls of the database that a worker repeats by itself. A claim without an answer is the keeper's business."""


@dataclass(frozen=True, slots=True)
class Doom:
    """What comes over the worker at its n-th port call, counted from 1."""

    n: int
    moment: Moment


class Died(BaseException):
    """The process is gone. Nothing catches this, as nothing catches SIGKILL."""


class Life:
    """One worker's life: its port calls in order, and where it met its doom. ``meddle`` is told of each call first."""

    def __init__(self, doom: Doom | None = None, *, meddle: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.doom = doom
        self.calls: list[str] = []
        self.met: str | None = None
        """The port at whose call the doom came."""
        self.over = False
        self._meddle = meddle
        self.acknowledged: list[tuple[Write, Written]] = []
        """Writes that the worker was told are written: they must be in the journal for ever."""
        self._sent: dict[asyncio.Future[Any], str] = {}

    async def sent(self, port: str, ask: Callable[[], Awaitable[T]]) -> T:
        """A call of the database: once sent, it is carried out, whatever becomes of the caller."""
        n = await self._begin(port)
        sent = asyncio.ensure_future(ask())
        self._sent[sent] = port
        sent.add_done_callback(self._sent.pop)
        result = await asyncio.shield(sent)
        self._end(port, n)
        return result

    async def done(self, port: str, do: Callable[[], Awaitable[T]]) -> T:
        """The user's code or a model's call: it ends with its caller."""
        n = await self._begin(port)
        result = await do()
        self._end(port, n)
        return result

    async def settled(self, *ports: str) -> None:
        """Wait for what had been sent: to these ports, or to any."""
        while waiting := [sent for sent, port in self._sent.items() if not ports or port in ports]:
            await asyncio.wait(waiting)

    async def _begin(self, port: str) -> int:
        if self.over:
            raise Died
        self.calls.append(port)
        n = len(self.calls)
        if self._meddle is not None:
            await self._meddle(port)
            if self.over:
                raise Died
        self._meet(port, n, Moment.BEFORE, Moment.UNSENT)
        return n

    def _end(self, port: str, n: int) -> None:
        if self.over:
            raise Died
        self._meet(port, n, Moment.AFTER, Moment.UNANSWERED)

    def _meet(self, port: str, n: int, death: Moment, broken: Moment) -> None:
        if self.doom == Doom(n, death):
            self.met = port
            self.over = True
            raise Died
        if self.doom == Doom(n, broken) and port in BREAKABLE:
            self.met = port
            raise DatabaseUnavailable(f"{port} is {broken}")


class MortalStore:
    """The real store, as a worker with this life sees it."""

    def __init__(self, store: SessionStore, life: Life) -> None:
        self._store = store
        self._life = life

    def __getattr__(self, name: str) -> Any:
        """``claim``, ``read``, ``head`` and ``wrote``."""
        real = getattr(self._store, name)
        return lambda *given, **named: self._life.sent(name, lambda: real(*given, **named))

    async def append(self, worker_id: Any, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        return await self._write("append", worker_id, writes, side=side)

    async def end(self, worker_id: Any, writes: Sequence[Write], *, side: bool = False) -> Sequence[Written]:
        return await self._write("end", worker_id, writes, side=side)

    async def _write(self, port: str, worker_id: Any, writes: Sequence[Write], *, side: bool) -> Sequence[Written]:
        real = getattr(self._store, port)
        answers: Sequence[Written] = await self._life.sent(port, lambda: real(worker_id, writes, side=side))
        for write, written in zip(writes, answers, strict=True):
            self._acknowledge(write, written)
        return answers

    def _acknowledge(self, write: Write, written: Written) -> None:
        if written.answer in (Answer.WRITTEN, Answer.ALREADY):
            self._life.acknowledged.append((write, written))

    @asynccontextmanager
    async def tool_transaction(self, worker_id: Any) -> AsyncIterator[Any]:
        async with self._store.tool_transaction(worker_id) as real:
            try:
                yield MortalTransaction(real, self._life, self._acknowledge)
            finally:
                await self._life.settled("commit", "rollback")  # the server goes on with what it was sent


class MortalTransaction:
    """The real transaction; a worker that dies inside leaves it to the server, which rolls it back."""

    def __init__(self, real: ToolTransaction, life: Life, acknowledge: Callable[[Write, Written], None]) -> None:
        self._real = real
        self._life = life
        self._acknowledge = acknowledge
        self._open = False

    async def connection(self) -> Any:
        if self._open:
            return await self._real.connection()
        connection = await self._life.done("connection", self._real.connection)
        self._open = True
        return connection

    async def commit(self, write: Write) -> Written:
        written = await self._life.sent("commit", lambda: self._real.commit(write))
        self._acknowledge(write, written)
        return written

    def is_conflict(self, error: BaseException) -> bool:
        return self._real.is_conflict(error)

    async def rollback(self) -> None:
        await self._life.sent("rollback", self._real.rollback)


class MortalModel:
    """A scripted model whose request is a port call. ``hear`` gets the request before it is answered."""

    def __init__(
        self,
        life: Life,
        script: Callable[[Conversation], Awaitable[Scripted]],
        hear: Callable[[ModelRequest, Callable[[str], None]], None],
    ) -> None:
        self._life = life
        self._model = ScriptedModel(script)
        self._hear = hear

    @property
    def identity(self) -> ModelIdentity:
        return self._model.identity

    @property
    def context_window(self) -> int | None:
        return None

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        async def ask() -> ModelAnswer:
            self._hear(request, on_text)
            return await self._model.request(request, on_text)

        return await self._life.done("request", ask)


def mortal(tool: Tool, life: Callable[[], Life]) -> Tool:
    """The tool, each execution of which is a port call of the life at that time; so is each question to reconcile."""

    def lived(port: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*given: Any, **arguments: Any) -> Any:
            return await life().done(port, lambda: function(*given, **arguments))

        return run

    reconcile = tool.reconcile and lived(f"reconcile {tool.name}", tool.reconcile)
    return replace(tool, function=lived(f"tool {tool.name}", tool.function), reconcile=reconcile)
