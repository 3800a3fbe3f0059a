"""What must hold of a session whatever its workers died of."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import asyncpg

from agentrt.core.calls import CRASHED
from agentrt.core.content import Text
from agentrt.core.journal import (
    AssistantMessage,
    Effect,
    Entry,
    MessageQueued,
    SessionCancelled,
    ToolOutcome,
    ToolResult,
    UserMessage,
)
from agentrt.core.lint import lint
from agentrt.core.messages import Message, ModelIdentity, UserInput
from agentrt.core.session import Seq, Session, Status
from agentrt.core.transcript import fold
from agentrt.models.scripted import text_of
from tests.core.neutral import FORMATS, violations
from tests.crash.points import Point, Stage

IDENTITY = ModelIdentity("scripted", "scripted", "scripted")
CLOSED = {ToolOutcome.INTERRUPTED, ToolOutcome.NOT_RUN, ToolOutcome.DENIED}
"""Ends that say that there was no effect."""


@dataclass(frozen=True)
class Ending:
    """A session as the database shows it in the end."""

    point: Point
    session: Session
    entries: Sequence[Entry]
    ledger: int
    approvals: int


@dataclass(frozen=True)
class Messages:
    """What became of the user's messages."""

    sent: int
    lost: int
    doubled: int


async def ending_of(stage: Stage, point: Point) -> Ending:
    session_id = point.world.session_id
    return Ending(
        point=point,
        session=await stage.client.get(session_id),
        entries=await point.world.journal(),
        ledger=await _count(stage.connection, "public.ledger", session_id),
        approvals=await _count(stage.connection, "agentrt.approvals", session_id),
    )


async def _count(connection: asyncpg.Connection, table: str, session_id: object) -> int:
    return int(await connection.fetchval(f"select count(*) from {table} where session_id = $1", session_id))


def wrong(ending: Ending) -> list[str]:
    """Every promise that was not kept, in words; the session's point stands before each."""
    checks = (_ended, _messages, _counts, _calls, _effects, _requests, _view, _acknowledged, _linted)
    return [f"[{ending.point.name}] {words}" for check in checks for words in check(ending)]


def messages(ending: Ending) -> Messages:
    """Lost: not in front of the model in the end. Doubled: there, or in the journal, more than once."""
    expected = Counter(_expected(ending))
    journaled = Counter(text_of(entry.data.content) for entry in ending.entries if isinstance(entry.data, UserMessage))
    seen = _texts(ending.point.world.requests[-1]) if ending.point.world.requests else Counter[str]()
    return Messages(
        sent=expected.total(),
        lost=max((expected - seen).total(), (expected - journaled).total()),
        doubled=max((seen - expected).total(), (journaled - expected).total()),
    )


def _expected(ending: Ending) -> tuple[str, ...]:
    """What the user said. Some is said by way of a tool, which may be given up after two crashes."""
    texts, said = ending.point.script.texts, ending.point.world.said
    if texts is None:
        dropped = _dropped(ending.entries)
        return tuple(text for text in said if text not in dropped)
    return texts if ending.point.crashes < 2 else tuple(text for text in texts if text in said)


def _dropped(entries: Sequence[Entry]) -> set[str]:
    """Queued messages that a cancel dropped, as its entry says."""
    queued = {entry.seq: text_of(entry.data.content) for entry in entries if isinstance(entry.data, MessageQueued)}
    return {
        queued[Seq(seq)] for entry in entries if isinstance(entry.data, SessionCancelled) for seq in entry.data.dropped
    }


def _texts(view: Sequence[Message]) -> Counter[str]:
    return Counter(
        block.text
        for message in view
        if isinstance(message, UserInput)
        for block in message.content
        if isinstance(block, Text)
    )


# --- the session ----------------------------------------------------------------------------------------------------


def _ended(ending: Ending) -> Iterator[str]:
    session, script = ending.session, ending.point.script
    if session.status is not Status.COMPLETED or (session.run != script.runs and script.texts is not None):
        yield f"ended as {session.status} in run {session.run}: {session.outcome or session.suspension}"
    most = max(entry.attempt for entry in ending.entries)
    if most > 1 + ending.point.crashes:
        yield f"attempt {most} after {ending.point.crashes} crashes"
    yield from ending.point.trouble


def _messages(ending: Ending) -> Iterator[str]:
    found = messages(ending)
    if found.lost or found.doubled:
        yield f"{found}: {ending.point.world.requests[-1:]}"
    view = fold(ending.entries).view(None)
    shown = [
        block.text
        for message in view
        if isinstance(message, UserInput)
        for block in message.content
        if isinstance(block, Text)
    ]
    in_order = ending.point.script.texts is not None
    if (shown if in_order else sorted(shown)) != (list if in_order else sorted)(_expected(ending)):
        yield f"the user's messages in the view: {shown}"


def _counts(ending: Ending) -> Iterator[str]:
    script = ending.point.script
    if script.texts is None:
        return
    answers = sum(isinstance(entry.data, AssistantMessage) for entry in ending.entries)
    if answers not in script.answers:
        yield f"{answers} answers"
    if ending.approvals not in script.approvals:
        yield f"{ending.approvals} requests for approval"


# --- calls and their effects ----------------------------------------------------------------------------------------


def _results(ending: Ending) -> list[ToolResult]:
    return [entry.data for entry in ending.entries if isinstance(entry.data, ToolResult)]


def _calls(ending: Ending) -> Iterator[str]:
    """Every call ended as its effect allows; without a crash the unknown is no excuse."""
    point = ending.point
    for result in _results(ending):
        allowed = set(point.script.outcomes[result.tool])
        if not point.crashes and ToolOutcome.OK in allowed and point.script.texts is not None:
            allowed.discard(ToolOutcome.UNKNOWN)
        given_up = result.outcome is ToolOutcome.ERROR and result.content == CRASHED and point.crashes > 1
        if result.outcome not in allowed and not given_up:
            yield f"{result.tool} ended {result.outcome}: {result.content}"


def _effects(ending: Ending) -> Iterator[str]:
    world = ending.point.world
    for result in _results(ending):
        times = world.count(result.call_id)
        keys = {key for _, call_id, key in world.done if call_id == result.call_id}
        if len(keys) > 1:
            yield f"{result.tool} ran under the keys {keys}"
        if result.outcome is ToolOutcome.OK and result.tool != "ask_user" and not times:
            yield f"{result.tool} ended ok without its effect"
        match ending.point.script.agent.tools[result.tool].effect:
            case Effect.ONCE if times > 1 or (times and result.outcome in CLOSED):
                yield f"{result.tool} ended {result.outcome} and had its effect {times} times"
            case Effect.TRANSACTIONAL if ending.ledger != (result.outcome is ToolOutcome.OK):
                yield f"{result.tool} ended {result.outcome} and wrote {ending.ledger} rows"


# --- what the model was sent ----------------------------------------------------------------------------------------


def _requests(ending: Ending) -> Iterator[str]:
    """Each request is valid, and a prefix of the next one, whoever sent them."""
    before: Sequence[Message] = ()
    for number, request in enumerate(ending.point.world.requests, start=1):
        if tuple(request[: len(before)]) != tuple(before):
            yield f"request {number} does not begin with the one before"
        before = request
        yield from _violations(f"request {number}", request, asked=True)


def _view(ending: Ending) -> Iterator[str]:
    yield from _violations("the view", fold(ending.entries).view(IDENTITY), asked=False)


def _violations(what: str, view: Sequence[Message], *, asked: bool) -> Iterator[str]:
    for name, wire_format in FORMATS.items():
        for violation in violations(view, IDENTITY, asked=asked, wire_format=wire_format):
            yield f"{what} as {name}: {violation}"


# --- the journal ----------------------------------------------------------------------------------------------------


def _acknowledged(ending: Ending) -> Iterator[str]:
    """What a worker was told is written stands where it was told."""
    entries = {int(entry.seq): entry for entry in ending.entries}
    for life in ending.point.lives:
        for write, written in life.acknowledged:
            if write.ending is not None:
                continue  # its own entries follow; the rules of the history look at endings
            first = written.last_seq - len(write.entries) + 1
            for seq, new in enumerate(write.entries, start=first):
                kept = entries.get(seq)
                if kept is None or kept.data.type != new.data.type or kept.fencing_token != write.lease.fencing_token:
                    yield f"{new.data.type} was written at {seq}, where {kept} stands"


def _linted(ending: Ending) -> Iterator[str]:
    yield from (f"{breach}" for breach in lint(ending.entries))
