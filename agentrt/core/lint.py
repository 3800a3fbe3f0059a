"""Checks a journal, and the view that is made of it, against the rules that a lawful journal keeps.

Reading never needs this: ``fold`` takes every journal. It tells people what is odd about one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from agentrt.core.content import ToolCall, UnknownBlock
from agentrt.core.journal import (
    AssistantMessage,
    Entry,
    MessageQueued,
    SessionCreated,
    ToolResult,
    ToolStarted,
    Unknown,
    UserMessage,
)
from agentrt.core.repair import repair_orphaned_tool_calls
from agentrt.core.transcript import fold

MAX_TOKEN: Final = 2**62
"""Leaves as many claims again before the database's bigint is full."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that the journal breaks at ``seq`` (0: as a whole)."""

    seq: int
    rule: str
    text: str


@dataclass(slots=True)
class _Seen:
    seq: int = 0
    run: int = 1
    fencing_token: int = 0
    seen_seq: int = 0
    tools: dict[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)


def lint(entries: Sequence[Entry]) -> list[Breach]:
    """All breaches, in the order of the journal; those of the view last."""
    seen = _Seen()
    breaches = [breach for entry in entries for breach in _of_entry(seen, entry)]
    if not entries:
        breaches.append(Breach(0, "not_empty", "a journal begins with session_created"))
    return [*breaches, *_of_view(entries)]


def _of_entry(seen: _Seen, entry: Entry) -> Iterator[Breach]:
    def breach(rule: str, text: str) -> Breach:
        return Breach(entry.seq, rule, text)

    if entry.seq != seen.seq + 1:
        yield breach("gapless", f"follows {seen.seq}: seqs count from 1 without a gap")
    if (entry.seq == 1) != isinstance(entry.data, SessionCreated):
        yield breach("created_first", f"is {entry.data.type}: session_created is the first entry, and no other")
    if entry.fencing_token < seen.fencing_token:
        yield breach(
            "token_grows", f"has token {entry.fencing_token} behind {seen.fencing_token}: tokens never go down"
        )
    if entry.fencing_token > MAX_TOKEN:
        yield breach("token_range", f"has token {entry.fencing_token}: the largest is {MAX_TOKEN}")
    if entry.run not in (seen.run, seen.run + 1):
        yield breach("run_grows", f"is of run {entry.run} behind run {seen.run}: runs count up by one")
    yield from (breach(rule, text) for rule, text in _of_data(seen, entry))
    seen.seq = entry.seq
    seen.run = max(seen.run, entry.run)
    seen.fencing_token = max(seen.fencing_token, entry.fencing_token)


def _of_data(seen: _Seen, entry: Entry) -> Iterator[tuple[str, str]]:
    match entry.data:
        case Unknown(name=name, problem=problem):
            yield "known_type", f"{name} cannot be taken: {problem}"
        case UserMessage(content=content) | MessageQueued(content=content):
            if not content:
                yield "content", "is a message without content"
            yield from _of_blocks(content)
        case AssistantMessage() as answer:
            yield from _of_answer(seen, entry, answer)
        case ToolStarted(call_id=call_id):
            yield from _of_call(seen, call_id)
            seen.started.add(call_id)
        case ToolResult(call_id=call_id):
            yield from _of_call(seen, call_id)
            seen.results.add(call_id)
        case _:
            pass


def _of_blocks(content: Sequence[object]) -> Iterator[tuple[str, str]]:
    for position, block in enumerate(content):
        if isinstance(block, UnknownBlock):
            yield "known_block", f"block {position} cannot be taken, and is not sent"


def _of_answer(seen: _Seen, entry: Entry, answer: AssistantMessage) -> Iterator[tuple[str, str]]:
    yield from _of_blocks(answer.content)
    if entry.worker_id is None:
        yield "owner", "is an answer that no worker wrote"
    if not seen.seen_seq <= answer.seen_seq < entry.seq:
        yield "seen_seq", f"has seen_seq {answer.seen_seq}: at least {seen.seen_seq}, and below its own seq"
    seen.seen_seq = max(seen.seen_seq, answer.seen_seq)
    for block in answer.content:
        if isinstance(block, ToolCall):
            if block.call_id in seen.tools:
                yield "call_id", f"repeats the call id {block.call_id}"
            seen.tools[block.call_id] = block.tool


def _of_call(seen: _Seen, call_id: str) -> Iterator[tuple[str, str]]:
    if call_id not in seen.tools:
        yield "call_exists", f"is about call {call_id}, which no answer before it makes"
    if call_id in seen.results:
        yield "one_result", f"follows the result of call {call_id}: a call is answered once"


def _of_view(entries: Sequence[Entry]) -> Iterator[Breach]:
    """The view has to be valid as it is, but for calls that are still open."""
    transcript = fold(entries)
    messages = transcript.view(None)
    valid, repaired = repair_orphaned_tool_calls(messages)
    still_open = {call.call.call_id for call in transcript.open_calls}
    lost = [call_id for call_id in repaired if call_id not in still_open]
    if lost:
        yield Breach(0, "view_pairs", f"calls without a result in the view: {', '.join(lost)}")
    elif valid is not messages and not still_open:
        yield Breach(0, "view_order", "results do not stand directly behind their calls in the view")
