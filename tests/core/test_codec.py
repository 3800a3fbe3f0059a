"""The JSON form of entries: what is written is read back; what is damaged or newer is read with care."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.core.codec import decode, encode
from agentrt.core.content import File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Compaction,
    Effect,
    Entry,
    EntryData,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionClaimed,
    SessionCompleted,
    SessionCreated,
    SessionFailed,
    SessionOrphaned,
    SessionReleased,
    SessionResumed,
    SessionRetried,
    SessionSuspended,
    SessionWoken,
    StopReason,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    Unknown,
    Usage,
    UserMessage,
    stored_type,
)
from agentrt.core.session import CallId, Seq
from agentrt.core.storable import storable, storable_text
from agentrt.core.stored import NewEntry
from agentrt.core.transcript import fold
from tests.core.strategies import RAW, stories
from tests.core.world import World

CALL = CallId("000005001")
ONE_OF_EACH: tuple[EntryData, ...] = (
    SessionCreated("agent"),
    SessionClaimed("w1", "v1"),
    SessionResumed((CALL,)),
    SessionReleased("drain", "words"),
    SessionOrphaned(UUID(int=3), "w1"),
    SessionSuspended({"reason": "input"}),
    SessionWoken("message"),
    SessionCompleted({"text": "done"}),
    SessionFailed({"code": "empty_answer"}),
    SessionCancelled("why", (3, 4)),
    SessionRetried(),
    UserMessage((Text("a"), Image(url="u"), File("text/plain", base64="AA==")), "r1", Seq(3), "interrupt"),
    MessageQueued((Text("b"),), "r2"),
    AssistantMessage(
        (Thinking("t"), Text("c"), ToolCall("read", '{"a": 1e2}', CALL), UnknownBlock({"type": "hologram"})),
        "claude", StopReason.LENGTH, Seq(2), Usage(1, 2, 3, 4), 0.25, {"format": "f"}, "words",
    ),
    ToolStarted(CALL, "read", Effect.ONCE, True, 60.0),
    ToolResult(CALL, "read", "d", ToolOutcome.TIMEOUT, 1.5),
    ApprovalRequested(UUID(int=4), CALL, None, "read", "{}", "hash", "may_repeat", 60.0),
    ApprovalDecided(UUID(int=4), CALL, "approved", "anna", "fine"),
    ModelRetried("transient", "503", 1.5, Usage(1), 0.5),
    Compaction("summary", Seq(1), Seq(4), Usage(1), 0.5),
)  # fmt: skip


def test_one_of_each_is_really_one_of_each() -> None:
    assert {type(data) for data in ONE_OF_EACH} | {Unknown} == set(EntryData.__args__)


@pytest.mark.parametrize("data", [*ONE_OF_EACH, Unknown("newer\x00", {"a\ud800": 1}, "no such type")])
def test_what_is_sent_of_an_entry_is_its_type_its_storable_data_and_its_key(data: EntryData) -> None:
    """F1."""
    entry = NewEntry(data=data, dedup_key="w:key\x00")
    assert entry.stored == storable(encode(data))
    assert json.loads(entry.json) == {
        "type": storable_text(stored_type(data)), "data": entry.stored, "dedup_key": "w:key\u2400",
    }  # fmt: skip
    assert entry.size == len(entry.json.encode())
    assert "dedup_key" not in json.loads(NewEntry(data=data).json)


def test_an_entry_is_sent_as_it_was_when_it_was_made() -> None:
    """A repeat of a write is the same, byte for byte, whoever still holds parts of what it says."""
    outcome: dict[str, Any] = {"text": "done"}
    entry = NewEntry(data=SessionCompleted(outcome))
    sent = entry.json
    outcome["text"] = "something else"
    assert entry.json == sent
    assert entry.stored == {"outcome": {"text": "done"}}


@pytest.mark.parametrize("data", ONE_OF_EACH, ids=lambda data: data.type)
def test_every_entry_is_read_back_as_it_was_written(data: EntryData) -> None:
    """F1: and its JSON form is storable as it is."""
    encoded = encode(data)
    assert storable(encoded) == encoded
    assert decode(data.type, encoded, seq=5) == data


@given(stories)
def test_a_journal_in_json_folds_like_the_one_in_memory(story: World) -> None:
    """Case 68: what a takeover reads is what the owner knew."""
    read = [Entry(seq=e.seq, run=e.run, data=decode(e.data.type, encode(e.data), seq=e.seq)) for e in story.entries]
    assert fold(read) == fold(story.entries)


any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.sampled_from(RAW)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=8,
)
fields = ["content", "call_id", "outcome", "effect", "seen_seq", "usage", "provider", "dropped", "covers_to", "class"]


@given(
    st.sampled_from([*(data.type for data in ONE_OF_EACH), "unknown", "from_the_future"]),
    st.one_of(any_json, st.dictionaries(st.sampled_from([*fields, "schema_version"]), any_json)),
)
def test_nothing_that_is_stored_makes_the_reader_raise(type: str, raw: Any) -> None:
    """Case 96: what cannot be taken is kept as it is, and says why."""
    data = decode(type, raw, seq=7)
    assert not isinstance(data, Unknown) or (data.name, data.problem != "") == (type, True)
    assert isinstance(encode(data), dict)
    fold([Entry(seq=Seq(1), data=data)]).view(None)


@pytest.mark.parametrize(
    ("type", "raw"),
    [
        ("session_from_the_future", {}),
        ("user_message", {"schema_version": 2, "content": "hi"}),
        ("assistant_message", {"schema_version": "two", "content": []}),
        ("compaction", {"covers_to": "x"}),
        ("tool_result", {"content": "whose?"}),
        ("user_message", None),
    ],
)
def test_unknown_types_and_newer_versions_are_kept_and_not_sent(type: str, raw: Any) -> None:
    """Case 60."""
    data = decode(type, raw, seq=7)
    assert isinstance(data, Unknown)
    assert data.raw == raw
    assert fold([Entry(seq=Seq(7), data=data)]).view(None) == ()


def test_a_result_or_start_with_a_new_word_still_guards_against_running_twice() -> None:
    """F15: an outcome that nobody knows is ``unknown``, an effect is ``once``; also of a newer version."""
    raw = {"call_id": CALL, "tool": "read", "outcome": "exploded", "content": {"a": 1}, "schema_version": 2}
    assert decode("tool_result", raw, seq=7) == ToolResult(CALL, "read", '{"a": 1}', ToolOutcome.UNKNOWN)
    assert decode("tool_started", {"call_id": CALL, "effect": "thrice"}, seq=7) == ToolStarted(CALL)


def test_the_end_of_a_run_is_one_whatever_stands_in_it() -> None:
    """Case 34."""
    assert decode("session_cancelled", {"reason": 5, "dropped": [1, "x"]}, seq=7) == SessionCancelled(None, (1,))
    assert decode("session_completed", {"outcome": 5}, seq=7) == SessionCompleted()
    assert decode("session_failed", {"schema_version": 3}, seq=7) == SessionFailed()


def test_an_answer_without_seen_seq_has_seen_everything_before_it() -> None:
    """Case 60: an import; its calls get our ids, its unknown stop reason is a normal one."""
    raw = {"content": [{"type": "tool_call", "tool": "read", "arguments": "{}"}], "stop_reason": "toolUse", "usage": 5}
    data = decode("assistant_message", raw, seq=5)
    assert data == AssistantMessage(
        (ToolCall("read", "{}", CallId("000005000")),), "", StopReason.TOOL_CALLS, Seq(4), Usage()
    )
