"""Owners, clients and a reaper that hammer on the same sessions, and a ledger of what each of them was told."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID, uuid4

import asyncpg

from agentrt.core.content import Text, ToolCall
from agentrt.core.errors import LeaseLost
from agentrt.core.events import CommitFailed, Event
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Entry,
    StopReason,
    ToolResult,
    UserMessage,
    call_id,
)
from agentrt.core.session import (
    CallId,
    Completed,
    Crashed,
    Failed,
    Outcome,
    Released,
    ReleaseReason,
    Seq,
    Suspended,
    SuspendReason,
    WorkerId,
)
from agentrt.ports import Answer, KeeperStore, NewEntry, WorkerState
from agentrt.postgres.store import PostgresSessionStore
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding
from tests.postgres.owner import OFFER, Owner, expire_lease, may_judge
from tests.postgres.stage import Stage

SLOTS = 60
REFUSALS = ("AR002", "AR003")
"""What a client may hear whose command came too late."""
DEADLOCK = "40P01"
"""What a client may hear who waits among others that hold several sessions; it repeats its command."""


@dataclass
class Ledger:
    """``sent``: messages that the database took, by their text. ``written`` and ``lost``: owners' answers, likewise."""

    sent: dict[str, tuple[UUID, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    said: Counter[str] = field(default_factory=Counter)
    failures: list[CommitFailed] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        if isinstance(event, CommitFailed):
            self.failures.append(event)


# --- owners ---------------------------------------------------------------------------------------------------------


class HammeringWorker:
    """Claims, answers and ends sessions. Declared dead it goes on under a new id at once, while the tasks of its old
    one still try to write, as those of a process would that was stopped and let go again."""

    def __init__(self, owner: Owner, ledger: Ledger, dice: random.Random) -> None:
        self._store: PostgresSessionStore = owner.store
        self._keeper: KeeperStore = owner.keeper
        self._owner = owner
        self._ledger = ledger
        self._dice = dice

    async def work(self, over: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as zombies:
            while not over.is_set():
                self._owner = await self._owner.reborn()
                committer = Committer(self._store, self._owner.id, emit=self._ledger.hear)
                serving = asyncio.create_task(committer.run())
                await asyncio.sleep(0)
                tasks = await self._incarnation(committer, over)
                zombies.create_task(self._let_end(tasks, serving))
                self._ledger.said["incarnations"] += 1

    async def _let_end(self, tasks: set[asyncio.Task[None]], serving: asyncio.Task[None]) -> None:
        await asyncio.gather(*tasks)
        serving.cancel()
        await asyncio.wait({serving})

    async def _incarnation(self, committer: Committer, over: asyncio.Event) -> set[asyncio.Task[None]]:
        """Until it is declared dead; returns what still runs then."""
        tasks: set[asyncio.Task[None]] = set()
        while not over.is_set() and (await self._owner.renew()).state is WorkerState.ALIVE:
            claimed = await self._store.claim(
                self._owner.id, OFFER, limit=max(1, SLOTS - len(tasks)), fragile_limit=SLOTS
            )
            for session in claimed.sessions:
                tasks.add(asyncio.create_task(self._run(committer, Holding(session))))
            if tasks:
                await asyncio.wait(tasks, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
            tasks = {task for task in tasks if not task.done() or task.exception() is not None}
        return tasks

    async def _run(self, committer: Committer, holding: Holding) -> None:
        try:
            while True:
                for _ in range(self._dice.randint(0, 3)):
                    await self._answer(committer, holding)
                seen, waits_for = await self._answer(committer, holding)
                entries = await self._store.read(holding.session.id, Seq(0))
                if last_message(entries) > seen or decided(entries) & {*waits_for}:
                    continue
                outcome = self._outcome(waits_for)
                written = await committer.end(holding, outcome, planned_from=entries[-1].seq)
                self._ledger.said[f"{type(outcome).__name__} {written.answer}"] += 1
                if written.answer is not Answer.STALE:
                    return
        except LeaseLost:
            self._ledger.said["LeaseLost"] += 1
        finally:
            committer.forget(holding)

    def _outcome(self, waits_for: tuple[CallId, ...]) -> Outcome:
        if waits_for:
            return Suspended(SuspendReason.APPROVAL, "", waits_for)
        endings: list[tuple[Outcome, int]] = [
            (Completed({"text": "done"}), 60),
            (Suspended(SuspendReason.INPUT, "well?"), 15),
            (Released(ReleaseReason.DRAIN), 15),
            (Failed("agent_error", "no"), 5),
            (Crashed("boom"), 5),
        ]
        return self._dice.choices([e for e, _ in endings], [weight for _, weight in endings])[0]

    async def _answer(self, committer: Committer, holding: Holding) -> tuple[Seq, tuple[CallId, ...]]:
        """Read, close what is open, answer; the message seen last, and the calls that wait for an approval then."""
        entries = await self._store.read(holding.session.id, Seq(0))
        for open_call in open_calls(entries):
            await committer.append(holding, [outcome_of(open_call)])
        text = f"answer {uuid4()}"
        kind = self._dice.choices(["text", "tool", "approval"], [6, 3, 1])[0]
        answer = AssistantMessage(
            content=(Text(text), *(() if kind == "text" else (ToolCall("measure", "{}"),))),
            model="scripted",
            stop_reason=StopReason.STOP if kind == "text" else StopReason.TOOL_CALLS,
            seen_seq=last_message(entries),
        )
        more = [NewEntry(data=approval_request(self._dice))] if kind == "approval" else []
        try:
            written = await committer.append(holding, [NewEntry(data=answer), *more])
        except LeaseLost:
            self._ledger.lost.add(text)
            raise
        self._ledger.written.add(text)
        call = call_id(written.last_seq - len(more), 1)
        if kind == "tool":
            await committer.append(holding, [outcome_of(call)])
        return answer.seen_seq, (call,) if kind == "approval" else ()


def last_message(entries: Sequence[Entry]) -> Seq:
    return max(entry.seq for entry in entries if isinstance(entry.data, UserMessage))


def decided(entries: Sequence[Entry]) -> set[CallId]:
    return {entry.data.call_id for entry in entries if isinstance(entry.data, ApprovalDecided)}


def open_calls(entries: Sequence[Entry]) -> list[CallId]:
    closed = {entry.data.call_id for entry in entries if isinstance(entry.data, ToolResult)}
    called = [
        block.call_id
        for entry in entries
        if isinstance(entry.data, AssistantMessage)
        for block in entry.data.content
        if isinstance(block, ToolCall)
    ]
    return [call for call in called if call not in closed]


def outcome_of(call: CallId) -> NewEntry:
    return NewEntry(data=ToolResult(call, "measure", "42"), dedup_key=f"w:result:{call}")


def approval_request(dice: random.Random) -> ApprovalRequested:
    return ApprovalRequested(
        approval_id=uuid4(),
        position=1,
        tool="measure",
        arguments="{}",
        arguments_hash=hashlib.sha256(b"{}").hexdigest(),
        expires_seconds=dice.choice([None, 0.2]),
    )


# --- the reaper -----------------------------------------------------------------------------------------------------


async def reap(judge: Owner, connection: asyncpg.Connection, *, found: Counter[str], over: asyncio.Event) -> None:
    """Sweeps all the time; now and then a worker's lease is over, and it may be marked before it renews."""
    while not over.is_set():
        await judge.renew()
        await may_judge(connection, judge.id)
        victim: WorkerId | None = await connection.fetchval(
            "select id from agentrt.workers where state = 'alive' and id <> $1 order by random() limit 1", judge.id
        )
        if victim is not None and found["rounds"] % 10 == 9:
            await expire_lease(connection, victim)
        found["marked"] += len(await judge.reaper.mark(judge.id))
        swept = await judge.reaper.sweep(judge.id)
        found += Counter(requeued=swept.requeued, failed=swept.failed, expired=swept.expired, due=swept.due, rounds=1)
        await asyncio.sleep(0.02)


# --- clients --------------------------------------------------------------------------------------------------------


class HammeringClient:
    """Sends, cancels, decides, resumes, retries and releases; sometimes in one transaction for several sessions."""

    def __init__(self, stage: Stage, sessions: Sequence[UUID], ledger: Ledger, dice: random.Random) -> None:
        self._stage = stage
        self._sessions = sessions
        self._ledger = ledger
        self._dice = dice

    async def act(self) -> None:
        match self._dice.choices(["send", "send several", "cancel", "decide", "resume", "retry", "release"],
                                 [55, 8, 7, 20, 4, 4, 2])[0]:  # fmt: skip
            case "send":
                await self.send(self._dice.choice(self._sessions))
            case "send several":
                await self.send_several()
            case "decide":
                await self.decide()
            case "cancel":
                session = self._dice.choice(self._sessions)
                await self.tell("cancel", partial(self._stage.cancel, session, reason="enough"))
            case command:
                session = self._dice.choice(self._sessions)
                await self.tell(command, partial(self._stage.call, f"{command}_session", session, {}))

    async def tell(self, what: str, call: Callable[[], Awaitable[object]]) -> bool:
        """Whether the database took it."""
        while True:
            try:
                await call()
            except asyncpg.PostgresError as error:
                self._ledger.said[f"{what} {error.sqlstate}"] += 1
                if error.sqlstate in REFUSALS:
                    return False
                if error.sqlstate != DEADLOCK:
                    raise
            else:
                self._ledger.said[what] += 1
                return True

    async def send(self, session: UUID) -> None:
        text = f"message {uuid4()}"
        mode = self._dice.choice(["steer", "steer", "queue", "interrupt", "reject"])

        async def send() -> None:
            self._ledger.sent[text] = session, await self._stage.send(session, text, when_running=mode)

        if not await self.tell("send", send):
            self._ledger.refused.add(text)

    async def send_several(self) -> None:
        """In any order; a deadlock with other clients is repeated, with the same request ids."""
        texts = {f"message {uuid4()}": session for session in self._dice.sample(self._sessions, 5)}
        seqs = {}

        async def send() -> None:
            async with self._stage.connection.transaction():
                for text, session in texts.items():
                    seqs[text] = session, await self._stage.send(session, text, request_id=text)

        await self.tell("send several", send)
        self._ledger.sent |= seqs

    async def hold(self, session: UUID, seconds: float) -> None:
        """Keep a transaction open in which a message was sent."""
        text = f"message {uuid4()}"

        async def send() -> None:
            async with self._stage.connection.transaction():
                seq = await self._stage.send(session, text)
                await asyncio.sleep(seconds)
            self._ledger.sent[text] = session, seq

        await self.tell("held", send)

    async def decide(self) -> None:
        approval = await self._stage.connection.fetchval(
            "select id from agentrt.pending_approvals order by random() limit 1"
        )
        if approval is not None:
            verdict = self._dice.choice(["approved", "rejected"])
            await self.tell("decide", partial(self._stage.decide, approval, verdict, str(uuid4())))
