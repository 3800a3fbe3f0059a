"""One ownership of a session in progress: its journal in memory, and the only ways to read and write it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentrt.agents import Agent, Registry
from agentrt.core.budget import Spent
from agentrt.core.codec import decode
from agentrt.core.errors import OUTAGES, LeaseLost
from agentrt.core.events import SessionEvent
from agentrt.core.journal import (
    ApprovalRequested,
    AssistantMessage,
    Compaction,
    Entry,
    EntryData,
    ModelRetried,
    Usage,
    UserMessage,
    call_id,
)
from agentrt.core.session import CallId, Outcome, Seq, Session, WorkerId
from agentrt.core.transcript import Transcript, fold
from agentrt.ports import Answer, EventSink, ModelFactory, NewEntry, SessionStore, Written
from agentrt.settings import Settings
from agentrt.worker.committer import Committer
from agentrt.worker.gates import ModelGates
from agentrt.worker.holding import Holding, event_keys
from agentrt.worker.threads import ToolThreads

_T = TypeVar("_T")


def _nobody(agent: str, error: str) -> None:
    """No daemon is there to stop offering the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerDeps:
    """What every runner of a worker shares. ``agent_unavailable(agent, error)`` is called when a model cannot be used
    as configured: the worker then does not offer that agent for a while."""

    store: SessionStore
    committer: Committer
    registry: Registry
    models: ModelFactory
    events: EventSink
    settings: Settings
    worker_id: WorkerId
    threads: ToolThreads = field(default_factory=ToolThreads)
    gates: ModelGates = field(default_factory=ModelGates)
    agent_unavailable: Callable[[str, str], None] = _nobody
    secrets: tuple[str, ...] = ()
    """Texts that no error message may carry, such as the password of the database."""
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random


class Interrupted(Exception):
    """A user message with ``interrupt`` arrived while a model call or tools were in flight."""


class Ownership:
    """A session while this worker runs it. Writes go one after the other, and each is absorbed into the journal in
    memory as a reader of the database would get it."""

    def __init__(self, holding: Holding, deps: RunnerDeps, agent: Agent) -> None:
        self.holding = holding
        self.deps = deps
        self.agent = agent
        self.traits = agent.traits()
        self.entries: list[Entry] = []
        self.writing = asyncio.Lock()
        """Held during each write; a transactional tool holds it around its commit."""
        self.begun: dict[CallId, float] = {}
        """When the functions of calls began, by ``deps.clock``: what the journal does not say of most effects."""
        self._folded: Transcript | None = None
        self._since = deps.clock()

    @property
    def session(self) -> Session:
        """As it was claimed."""
        return self.holding.session

    @property
    def transcript(self) -> Transcript:
        """The journal in memory, folded."""
        if self._folded is None:
            self._folded = fold(self.entries)
        return self._folded

    def spent(self) -> Spent:
        """What this run has used, earlier ownerships included."""
        head = self.session
        tokens, cost, turns = head.input_tokens + head.output_tokens, float(head.cost), head.turns
        for entry in self.entries_behind(head.last_seq):
            if isinstance(entry.data, AssistantMessage | ModelRetried | Compaction):
                usage = entry.data.usage or Usage()
                tokens += usage.input_tokens + usage.output_tokens
                cost += entry.data.cost or 0.0
                turns += isinstance(entry.data, AssistantMessage)
        seconds = head.running_seconds + self.deps.clock() - self._since
        return Spent(turns=turns, tokens=tokens, cost=cost, running_seconds=seconds)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Read what the database holds behind our last entry."""
        async with self.writing:
            await self.read_behind()

    async def read_behind(self) -> Sequence[Entry]:
        """Like ``catch_up``, for whoever holds ``writing``."""
        self.holding.ahead.clear()
        try:
            entries = await self.patiently(lambda: self.deps.store.read(self.session.id, self.holding.last_seq))
        except BaseException:
            self.holding.ahead.set()
            raise
        self._add(entries)
        return entries

    async def patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a reading question until the database answers; the keeper ends us when that takes too long."""
        while True:
            try:
                return await ask()
            except OUTAGES:
                if self.holding.lost:
                    raise LeaseLost(self.holding.lost_reason) from None
                await asyncio.sleep(0.2 + 0.8 * self.deps.random())

    def _add(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.entries.extend(entries)
            self.holding.last_seq = entries[-1].seq
            self._folded = None

    # --- writing ----------------------------------------------------------------------------------------------------

    async def append(self, *data: EntryData, dedup_key: str | None = None) -> Seq:
        """Commit entries under the fence; returns the seq of the first. ``dedup_key`` is that of the first.

        Raises:
            LeaseLost: somebody else owns the session now.
        """
        return await self.append_entries(new_entries(data, dedup_key=dedup_key))

    async def append_entries(self, new: Sequence[NewEntry]) -> Seq:
        """Like ``append``, for entries with keys of their own."""
        async with self.writing:
            written = await self.deps.committer.append(self.holding, new)
            await self.absorb(new, written)
            return Seq(written.last_seq - len(new) + 1)

    async def absorb(self, new: Sequence[NewEntry], written: Written) -> None:
        """Add to the journal in memory what a write committed; read instead when a client wrote in between."""
        first = written.last_seq - len(new) + 1
        if first != self.holding.last_seq + 1:
            if any(map(_interrupts, await self.read_behind())):
                self.holding.ahead.set()  # whoever attends an operation looks again
            return
        self._add([self._entry(first + index, entry, first=first) for index, entry in enumerate(new)])

    def _entry(self, seq: int, new: NewEntry, *, first: int) -> Entry:
        data = decode(new.data.type, new.stored, seq=seq)
        if isinstance(data, ApprovalRequested) and data.position is not None:
            data = replace(data, call_id=call_id(first, data.position), position=None)
        return Entry(
            seq=Seq(seq),
            run=self.session.run,
            fencing_token=self.holding.lease.fencing_token,
            worker_id=self.deps.worker_id,
            data=data,
            dedup_key=new.dedup_key,
        )

    async def end(self, outcome: Outcome, *, planned_from: Seq) -> Written:
        """End this ownership; ``STALE`` when a client wrote after ``planned_from``, which is then read.

        Raises:
            LeaseLost: somebody else owns the session now.
        """
        async with self.writing:
            written = await self.deps.committer.end(self.holding, outcome, planned_from=planned_from)
            if written.answer is Answer.STALE:
                await self.read_behind()
            return written

    # --- while something is in flight -------------------------------------------------------------------------------

    async def attended(self, operation: Awaitable[_T]) -> _T:
        """Await ``operation``, and cancel it when the user interrupts.

        Raises:
            Interrupted: it was cancelled; what it had done stands.
        """
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch_for_interrupt())
                try:
                    return await operation
                finally:
                    watch.cancel()
        except BaseExceptionGroup as raised:
            error = most_telling(raised)
            if isinstance(error, Interrupted):
                await self._settle()
            raise error from None

    async def _settle(self) -> None:
        """Writes go on when their callers are cancelled: what they brought is part of what is planned from next."""
        await self.deps.committer.settled(self.holding)
        if self.holding.committed_seq > self.holding.last_seq:
            await self.catch_up()

    async def _watch_for_interrupt(self) -> None:
        seen = self.holding.last_seq
        while True:
            await self.holding.ahead.wait()
            await self.catch_up()
            if any(map(_interrupts, self.entries_behind(seen))):
                raise Interrupted
            seen = self.holding.last_seq

    def entries_behind(self, seq: Seq) -> Sequence[Entry]:
        """The entries in memory above ``seq``."""
        index = len(self.entries)
        while index and self.entries[index - 1].seq > seq:
            index -= 1
        return self.entries[index:]

    # --- telling ----------------------------------------------------------------------------------------------------

    def tell(self, kind: Callable[..., SessionEvent], **fields: Any) -> None:
        """Tell observers an event of this session."""
        self.deps.events(kind(**event_keys(self.holding), **fields))


def _interrupts(entry: Entry) -> bool:
    return isinstance(entry.data, UserMessage) and entry.data.when_running == "interrupt"


def new_entries(data: Sequence[EntryData], *, dedup_key: str | None = None) -> tuple[NewEntry, ...]:
    """Entries to be written, the first with ``dedup_key``."""
    keys = [dedup_key, *[None] * len(data)]
    return tuple(NewEntry(data=entry, dedup_key=key) for entry, key in zip(data, keys, strict=False))


def most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a group that decides what happens: a lost lease, a surprise, an interrupt."""
    leaves = list(_leaves(group))
    lost = [leaf for leaf in leaves if isinstance(leaf, LeaseLost)]
    surprises = [leaf for leaf in leaves if not isinstance(leaf, Interrupted)]
    return (lost or surprises or leaves)[0]


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
