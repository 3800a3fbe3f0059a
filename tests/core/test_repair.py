"""Fold, view and repair on the journals that older versions, imports and accidents leave behind."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from agentrt.core.budget import Limits
from agentrt.core.calls import with_short_names
from agentrt.core.content import Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import (
    Compaction,
    Entry,
    EntryData,
    ModelRetried,
    SessionWoken,
    StopReason,
    ToolOutcome,
    ToolResult,
    UserMessage,
)
from agentrt.core.messages import Message, ModelIdentity, ModelOutput, Result, ToolResults, UserInput
from agentrt.core.plan import AskModel, next_step
from agentrt.core.repair import NO_RESULT, repair_orphaned_tool_calls
from agentrt.core.session import CallId, Seq
from agentrt.core.transcript import fold
from tests.core.neutral import FORMATS, violations
from tests.core.writing import (
    CLAUDE,
    GPT,
    TOOLS,
    answer,
    call,
    journal,
    plan,
    result,
    shape,
    started,
    user,
    view,
    wire_id,
)
from tests.strictprovider.conversation import WireFormat


def said(text: str = "hello") -> UserInput:
    return UserInput((Text(text),), Seq(1))


def output(*ids: str, stop: StopReason = StopReason.STOP) -> ModelOutput:
    calls = [ToolCall("read", "{}", CallId(one)) for one in ids]
    return ModelOutput((Text("words"), *calls), Seq(1), stop, None, tuple(range(1 + len(ids))))


def results(*ids: str, content: str = "done") -> ToolResults:
    return ToolResults(tuple(Result(CallId(one), "read", content) for one in ids))


def unanswered(*ids: str) -> ToolResults:
    return ToolResults(tuple(Result(CallId(one), "read", NO_RESULT, ToolOutcome.UNKNOWN) for one in ids))


# --- repair ---------------------------------------------------------------------------------------------------------


def test_a_healthy_conversation_is_given_back_as_the_same_object() -> None:
    """Case 62."""
    messages: tuple[Message, ...] = (said(), output("a", "b"), results("a", "b"), said(), output(), said())
    valid, repaired = repair_orphaned_tool_calls(messages)
    assert valid is messages
    assert repaired == ()


def test_orphans_get_a_result_directly_behind_their_answer_wherever_they_stand() -> None:
    """Case 63: in the middle, consecutive, before a user message, trailing; what was there is equal and in order."""
    one, two, three, four = output("a"), output("b"), output("c"), output("d")
    valid, repaired = repair_orphaned_tool_calls((said("1"), one, two, said("2"), three, said("3"), four))
    assert valid == (
        said("1"), one, unanswered("a"), two, unanswered("b"), said("2"), three, unanswered("c"), said("3"), four,
        unanswered("d"),
    )  # fmt: skip
    assert repaired == ("a", "b", "c", "d")


def test_a_late_result_behind_an_aborted_answer_moves_to_its_call() -> None:
    """Case 64."""
    answered = output("a", "b", "c")
    valid, repaired = repair_orphaned_tool_calls(
        (said(), answered, output(stop=StopReason.ABORTED), results("b"), said("on"))
    )
    batch = ToolResults((*unanswered("a").results, *results("b").results, *unanswered("c").results))
    assert valid == (said(), answered, batch, said("on"))
    assert repaired == ("a", "c")


def test_the_first_of_two_results_is_kept_and_a_result_without_a_call_is_left_out() -> None:
    """Case 65."""
    messages = (said(), output("a"), results("a", content="first"), results("x", "a", content="second"))
    assert repair_orphaned_tool_calls(messages)[0] == (said(), output("a"), results("a", content="first"))


def test_user_messages_inside_a_batch_stand_behind_it() -> None:
    """Case 67."""
    messages = (said(), output("a", "b"), results("b"), said("1"), results("a"), said("2"))
    assert repair_orphaned_tool_calls(messages)[0] == (
        said(), output("a", "b"), results("a", "b"), said("1"), said("2"),
    )  # fmt: skip


def test_a_broken_answer_keeps_only_the_calls_that_were_answered() -> None:
    """F6: calls in a broken answer are neither run nor answered, but no result is lost."""
    broken = output("a", "b", stop=StopReason.ERROR)
    valid, repaired = repair_orphaned_tool_calls((said(), broken, results("b"), said("on")))
    kept = ModelOutput((Text("words"), ToolCall("read", "{}", CallId("b"))), Seq(1), StopReason.ERROR, None, (0, 2))
    assert valid == (said(), kept, results("b"), said("on"))
    assert repaired == ()
    assert repair_orphaned_tool_calls((said(), broken, said("on")))[0] == (said(), said("on"))


# --- fold and view --------------------------------------------------------------------------------------------------


def test_orphans_of_earlier_answers_are_repaired_in_the_view_and_never_run() -> None:
    """Case 63: an imported journal."""
    told = (user(), answer(call(), call()), result(2, 1), answer(call()), user(), answer("done"))
    assert shape(view(*told)) == ["u1", "a2", "r[unknown,ok]", "a4", "r[unknown]", "u5", "a6"]
    assert fold(journal(*told)).open_calls == ()
    assert plan(*told).kind == "already_complete"


def test_a_result_that_comes_late_is_shown_at_its_call() -> None:
    """Case 64."""
    told = (user(), answer(call(), call(), call()), answer("cut", stop="aborted"), result(2, 1), user("on"))
    assert shape(view(*told)) == ["u1", "a2", "r[unknown,ok,unknown]", "u5"]


def test_repeated_and_empty_call_ids_become_our_own_and_each_call_has_one_result() -> None:
    """Case 66: results are matched in order, and by our ids, too."""
    calls = [ToolCall("read", "{}", CallId(one)) for one in ("a", "a", "")]
    entries = [
        Entry(seq=Seq(1), data=user()),
        Entry(seq=Seq(2), data=answer(*calls, seen=1)),
        *(
            Entry(seq=Seq(seq), data=ToolResult(CallId(one), "read", content))
            for seq, one, content in [(3, "a", "one"), (4, "", "three"), (5, "a", "two"), (6, "a", "late")]
        ),
        Entry(seq=Seq(7), data=answer(calls[0], seen=1)),
        Entry(seq=Seq(8), data=ToolResult(CallId("a"), "read", "four")),
        Entry(seq=Seq(9), data=answer(calls[0], seen=1)),
        Entry(seq=Seq(10), data=ToolResult(wire_id(9), "read", "five")),
    ]
    shown = [r for message in fold(entries).view(None) if isinstance(message, ToolResults) for r in message.results]
    assert [r.content for r in shown] == ["one", "two", "three", "four", "five"]
    assert [r.call_id for r in shown] == [wire_id(2, 0), wire_id(2, 1), wire_id(2, 2), wire_id(7), wire_id(9)]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", r.call_id) for r in shown)


def test_a_seq_that_a_damaged_journal_has_twice_gives_different_call_ids() -> None:
    """Case 66: nine letters and digits, whatever the seq."""
    entries = [Entry(seq=Seq(seq), data=answer(call(), call(), seen=0)) for seq in (2, 2, -5, 2**40 + 2)]
    ids = [one.call_id for turn in fold(entries).turns for one in turn.calls]
    assert len(set(ids)) == 8
    assert all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in ids)


def test_the_result_of_a_broken_answer_keeps_its_call_in_the_view() -> None:
    """F6: an older version ran it; its sibling without a result is gone."""
    told = (user(), answer("half", call(), call(), stop="error"), result(2, 1))
    assert [type(m).__name__ for m in view(*told)] == ["UserInput", "ModelOutput", "ToolResults"]
    assert fold(journal(*told)).open_calls == ()


def test_thinking_and_item_ids_are_sent_only_to_the_model_that_wrote_them() -> None:
    """F34: another model, another format, or nobody in particular gets the words alone."""
    own = {**CLAUDE._asdict(), "signatures": ["s", None, None]}
    told = (user(), answer(Thinking("hm"), "words", call(), provider=own), result(2))
    kept = next(m for m in view(*told, identity=CLAUDE) if isinstance(m, ModelOutput))
    assert (kept.provider, kept.positions) == (own, (0, 1, 2))
    others: list[ModelIdentity | None] = [GPT, CLAUDE._replace(model="x"), CLAUDE._replace(format="x"), None]
    for other in others:
        foreign = next(m for m in view(*told, identity=other) if isinstance(m, ModelOutput))
        assert (foreign.provider, foreign.positions) == (None, (1, 2))
        assert not any(isinstance(block, Thinking) for block in foreign.content)


def test_thinking_that_was_rejected_stays_away_from_its_model_and_later_thinking_goes() -> None:
    """F10: the rejection and the answer that came without say so, to every later owner; other models' are theirs."""
    own, others = ({**identity._asdict(), "signatures": ["s", None]} for identity in (CLAUDE, GPT))
    rejected = ModelRetried("rejected", "400: thinking")
    told: list[EntryData] = [
        user(),
        answer(Thinking("1"), "one", provider=others),
        user(),
        answer(Thinking("2"), "two", provider=own),
    ]
    assert signed(view(*told, user(), identity=CLAUDE)) == [4]
    assert signed(view(*told, user(), rejected, identity=CLAUDE)) == []
    told += [user(), rejected, answer(Thinking("3"), "three", provider=own), user()]
    assert signed(view(*told, identity=CLAUDE)) == [7]
    assert signed(view(*told, identity=GPT)) == [2]
    assert signed(view(*told, answer("nobody's"), rejected, answer("nobody's"), identity=CLAUDE)) == []


def test_a_rejection_that_nothing_came_of_is_forgotten_when_an_operator_resumes() -> None:
    """F10: without thinking it was rejected as well, so that thinking was not the reason."""
    own = {**CLAUDE._asdict(), "signatures": ["s", None]}
    told = (user(), answer(Thinking("hm"), "one", provider=own), user(), ModelRetried("rejected", "400"))
    assert signed(view(*told, SessionWoken("resume"), identity=CLAUDE)) == [2]


def signed(messages: Sequence[Message]) -> list[int]:
    """The seqs of the answers that go with their thinking and item ids."""
    return [message.seq for message in messages if isinstance(message, ModelOutput) and message.provider]


@pytest.mark.parametrize("wire_format", FORMATS.values())
@pytest.mark.parametrize("name", ["n" * 1_000_000, "", " ", "💥" * 100, "a.b/c"])
def test_names_that_a_model_invented_are_lawful_in_every_format(name: str, wire_format: WireFormat) -> None:
    """F9: as they are kept, and as an older journal holds them."""
    for kept in (name, *(block.tool for block in with_short_names((call(name),)) if isinstance(block, ToolCall))):
        shown = view(user(), answer(call(kept)), ToolResult(wire_id(2), kept, "no such tool"), identity=CLAUDE)
        assert violations(shown, CLAUDE, wire_format=wire_format) == []


def test_what_no_provider_takes_is_left_out_or_replaced() -> None:
    """F7: blank text, thinking at the end, arguments that are no object, names of a wrong form."""
    own = CLAUDE._asdict()
    told = (
        UserMessage((Text(" "), Text("see"), Image(url="https://example.org/a.png"), UnknownBlock(1))),
        answer(call("no such tool!", '{"path": "x", "content": "abc'), "after", " ", Thinking("end"), provider=own),
        result(2, content=" \n"),
        UserMessage(()),
        UserMessage((UnknownBlock(1),)),
    )
    first, said_by_model, answered, empty, unknown = view(*told, identity=CLAUDE)
    assert isinstance(first, UserInput)
    assert first.content == (Text("see"), Image(url="https://example.org/a.png"))
    assert isinstance(said_by_model, ModelOutput)
    shown = ToolCall(
        "no_such_tool_", '{"not_a_json_object": "{\\"path\\": \\"x\\", \\"content\\": \\"abc"}', wire_id(2)
    )
    assert said_by_model.content == (Text("after"), Thinking("end"), shown)
    assert said_by_model.positions == (1, 3, 0)
    assert isinstance(answered, ToolResults)
    assert answered.results[0].content == "(no output)"
    assert isinstance(empty, UserInput)
    assert empty.content == (Text("(A message without content.)"),)
    assert isinstance(unknown, UserInput)
    assert unknown.content == (Text("(A message that cannot be shown here.)"),)


@pytest.mark.parametrize(
    "arguments", ["", "[]", "null", "{", '{"n": NaN}', '{"n": 1e999}', '{"s": "\\ud800"}', "[" * 9999]
)
def test_arguments_that_cannot_be_sent_as_an_object_are_shown_in_one(arguments: str) -> None:
    """F8: and what is fine goes unchanged, byte for byte."""
    assert sent_arguments(arguments).startswith('{"not_a_json_object": ')
    fine = '{"b": 1e2, "a": "\\u0000"}'
    assert sent_arguments(fine) == fine


def sent_arguments(arguments: str) -> str:
    sent = [m.content for m in view(user(), answer(call("read", arguments))) if isinstance(m, ModelOutput)]
    assert isinstance(sent[0][0], ToolCall)
    return sent[0][0].arguments


def test_a_conversation_that_begins_with_an_answer_gets_an_opening() -> None:
    """Case 68: every provider wants the user first."""
    assert shape(view(answer("hi"), user())) == ["+", "a1", "u2"]


def test_a_compaction_stands_for_what_it_covers() -> None:
    """Case 84: the one change of the view that is allowed; what came later stays."""
    told = (user("old"), answer("gone", call()), result(2), user("kept"), Compaction("they spoke", Seq(1), Seq(3)))
    transcript = fold(journal(*told))
    assert shape(transcript.view(None)) == ["+", "u4"]
    assert "they spoke" in str(transcript.view(None)[0])
    assert transcript.undelivered == (4,)
    assert next_step(transcript, Limits(), TOOLS) == AskModel()
    assert fold(journal(*told)[3:]).view(None) == transcript.view(None)
    whole = fold(journal(*told[:3], Compaction("they spoke", Seq(1), Seq(3))))
    assert next_step(whole, Limits(), TOOLS) == AskModel()
    assert whole.highest_user_seq == 3


def test_an_answer_that_claims_to_have_seen_the_future_hides_no_message() -> None:
    """Case 68: nothing behind an answer can have been seen by it."""
    told = (user(), answer("hi", seen=10**9), user("and"))
    assert fold(journal(*told)).undelivered == (3,)
    assert shape(view(*told)) == ["u1", "a2", "u3"]


def test_ten_thousand_entries_fold_and_plan_in_a_tenth_of_a_second() -> None:
    """Case 68: processor time of the fastest of ten."""
    told: list[EntryData] = [user()]
    while len(told) < 10_000:
        seq = len(told) + 1
        told += [answer("words", call("write", '{"n": 1}', call_id=wire_id(seq, 1))), started(seq, 1), result(seq, 1)]
    entries = journal(*told)

    def seconds() -> float:
        began = time.process_time()
        assert next_step(fold(entries), Limits(turns=None), TOOLS) == AskModel()
        return time.process_time() - began

    assert min(seconds() for _ in range(10)) < 0.1
