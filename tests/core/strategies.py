"""Journals for hypothesis: lawful ones are told by ``simulation``, unlawful ones are those, damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from agentrt.core.codec import decode
from agentrt.core.content import Block, Content, File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import (
    AssistantMessage,
    Compaction,
    Entry,
    SessionCancelled,
    SessionOrphaned,
    StopReason,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from agentrt.core.messages import Message, ModelOutput, Result, ToolResults, UserInput
from agentrt.core.session import CallId, Seq
from tests.core.simulation import tell
from tests.core.world import Tape, World

assert settings.default is not None
many = settings(max_examples=20 * settings.default.max_examples)
"""For the two properties that hold everything together."""

tapes = st.binary(min_size=20, max_size=100)


def _told(tape: bytes) -> World:
    return tell(tape)


def _told_without_faults(tape: bytes) -> World:
    return tell(tape, faults=False)


stories = tapes.map(_told)
"""Sessions with crashes, cancels, interrupts, releases and failing tools."""

plain_stories = tapes.map(_told_without_faults)
"""Sessions in which nothing of that happens."""


# --- damage ---------------------------------------------------------------------------------------------------------

IDS = ("a", "b", "", "000003000", "00000400", "call_1", "é" * 9)
TEXTS = ("", " \n\t", "words", "nul \x00 here", "half \ud800 a pair", "\\u0000 typed")
RAW: tuple[Any, ...] = (
    None,
    "text",
    {},
    {"content": 5},
    {"content": [{"type": "hologram"}, None, 7]},
    {"content": [{"type": "tool_call", "tool": 3}]},
    {"call_id": "a", "outcome": "exploded", "content": {"x": 1}},
    {"call_id": "a", "effect": "thrice"},
    {"schema_version": 9, "content": []},
    {"covers_to": "x"},
)
TYPES = (
    "user_message", "assistant_message", "tool_result", "tool_started", "session_cancelled", "compaction",
    "approval_requested", "session_from_the_future",
)  # fmt: skip


def damage(entries: list[Entry], tape: Tape) -> list[Entry]:
    """``entries`` after a few accidents that no writer of ours has."""
    damaged = list(entries)
    while tape.at < len(tape.content):
        at = tape.pick(len(damaged) + 1)
        if at == len(damaged):
            damaged.insert(tape.pick(len(damaged) + 1), Entry(seq=Seq(tape.pick(20) - 3), data=_anything(tape)))
        else:
            _ACCIDENTS[tape.pick(len(_ACCIDENTS))](damaged, at, tape)
    return damaged


def _drop(entries: list[Entry], at: int, tape: Tape) -> None:
    del entries[at]


def _double(entries: list[Entry], at: int, tape: Tape) -> None:
    entries.insert(tape.pick(len(entries) + 1), entries[at])


def _swap(entries: list[Entry], at: int, tape: Tape) -> None:
    other = tape.pick(len(entries))
    one, two = entries[at], entries[other]
    entries[at], entries[other] = replace(one, seq=two.seq), replace(two, seq=one.seq)


def _renumber(entries: list[Entry], at: int, tape: Tape) -> None:
    entries[at] = replace(entries[at], seq=Seq((-1, 0, 5, 2**24 + 3, 2**62)[tape.pick(5)]))


def _shorten(entries: list[Entry], at: int, tape: Tape) -> None:
    del entries[at:]


def _garble(entries: list[Entry], at: int, tape: Tape) -> None:
    entries[at] = replace(entries[at], data=decode(TYPES[tape.pick(len(TYPES))], RAW[tape.pick(len(RAW))], seq=at + 1))


def _rewrite(entries: list[Entry], at: int, tape: Tape) -> None:
    entries[at] = replace(entries[at], data=_anything(tape))


def _blur(entries: list[Entry], at: int, tape: Tape) -> None:
    """Another stop reason, seen_seq, or content for an answer; another id for what belongs to a call."""
    data = entries[at].data
    if isinstance(data, AssistantMessage):
        data = (
            replace(data, stop_reason=tuple(StopReason)[tape.pick(len(StopReason))]),
            replace(data, seen_seq=Seq((-1, 0, 3, 10**9)[tape.pick(4)])),
            replace(data, content=_content(tape), provider=None),
            replace(data, message="the provider's words"),
            replace(data, provider=None),
        )[tape.pick(5)]
    elif isinstance(data, ToolResult | ToolStarted):
        data = replace(data, call_id=CallId(IDS[tape.pick(len(IDS))]))
    elif isinstance(data, UserMessage):
        data = replace(data, content=_content(tape))
    entries[at] = replace(entries[at], data=data)


_ACCIDENTS: tuple[Callable[[list[Entry], int, Tape], None], ...] = (
    _drop, _double, _swap, _renumber, _shorten, _garble, _rewrite, _blur, _blur, _blur,
)  # fmt: skip


def _anything(tape: Tape) -> Any:
    call_id = CallId(IDS[tape.pick(len(IDS))])
    return (
        UserMessage(_content(tape), when_running=("steer", "interrupt")[tape.pick(2)]),
        AssistantMessage(_content(tape), "", tuple(StopReason)[tape.pick(len(StopReason))], Seq(tape.pick(12))),
        ToolResult(call_id, "read", TEXTS[tape.pick(len(TEXTS))], tuple(ToolOutcome)[tape.pick(len(ToolOutcome))]),
        ToolStarted(call_id, "write"),
        SessionCancelled(),
        SessionOrphaned(),
        Compaction("what was said", Seq(1), Seq(tape.pick(15))),
    )[tape.pick(7)]


def _content(tape: Tape) -> Content:
    return tuple(_block(tape) for _ in range(tape.pick(5)))


def _block(tape: Tape) -> Block:
    text = TEXTS[tape.pick(len(TEXTS))]
    return (
        Text(text),
        Thinking(text),
        ToolCall(("read", "write", "gone", "", "no name!" * 20)[tape.pick(5)], text, CallId(IDS[tape.pick(len(IDS))])),
        ToolCall("read", ("{}", "[]", '{"n": NaN}', '{"n": 1e999}', '{"s": "\\ud800"}')[tape.pick(5)]),
        Image(url="https://example.org/a.png"),
        File(base64="AA=="),
        UnknownBlock({"type": "hologram"}),
    )[tape.pick(7)]


@st.composite
def unlawful_journals(draw: st.DrawFn) -> list[Entry]:
    """A lawful journal after accidents."""
    return damage(tell(draw(st.binary(min_size=10, max_size=60))).entries, Tape(draw(st.binary(max_size=40))))


@st.composite
def message_lists(draw: st.DrawFn) -> tuple[Message, ...]:
    """Any messages at all, in any order, with unique call ids."""
    tape = Tape(draw(st.binary(min_size=5, max_size=60)))
    messages: list[Message] = []
    calls = 0
    while tape.at < len(tape.content):
        match tape.pick(3):
            case 0:
                messages.append(UserInput((Text(f"user {len(messages)}"),), Seq(len(messages) + 1)))
            case 1:
                count = tape.pick(4)
                blocks = [ToolCall("read", "{}", CallId(f"c{calls + n}")) for n in range(count)]
                calls += count
                reason = (StopReason.STOP, StopReason.TOOL_CALLS, StopReason.ABORTED, StopReason.ERROR)[tape.pick(4)]
                messages.append(ModelOutput((Text("words"), *blocks), Seq(1), reason, None, tuple(range(count + 1))))
            case _:
                ids = [CallId(f"c{tape.pick(calls + 2)}") for _ in range(tape.pick(4))]
                messages.append(ToolResults(tuple(Result(i, "read", f"result {len(messages)}") for i in ids)))
    return tuple(messages)
