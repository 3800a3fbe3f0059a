"""The table of what comes next, row by row."""

from __future__ import annotations

import pytest

from agentrt.core.budget import Limits, Spent
from agentrt.core.content import Text, Thinking, UnknownBlock
from agentrt.core.journal import (
    EntryData,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionFailed,
    SessionRetried,
    SessionWoken,
    Usage,
)
from agentrt.core.messages import ModelIdentity, ModelOutput
from agentrt.core.plan import AskModel, Finish, RunTools, Wait, next_step
from agentrt.core.resume import plan_resume
from agentrt.core.session import Completed, Failed, SuspendReason
from agentrt.core.transcript import fold
from tests.core.writing import TOOLS, answer, call, journal, plan, result, shape, step, user, view, wire_id


def test_nothing_waits_for_a_message() -> None:
    """Case 58."""
    for entries in (None, [], journal(MessageQueued((Text("later"),)))):
        transcript = fold(entries)
        assert next_step(transcript, Limits(), TOOLS) == Wait(SuspendReason.INPUT, "waits for a message")
        assert plan_resume(transcript, TOOLS).kind == "start"


def test_user_messages_alone_ask_the_model() -> None:
    """Case 58."""
    assert step(user(), user("and")) == AskModel()
    assert plan(user(), user("and")).kind == "start"


def test_answered_calls_ask_the_model_again() -> None:
    """Case 58: nothing is repaired."""
    told = (user(), answer(call()), result(2))
    assert step(*told) == AskModel()
    resumed = plan(*told)
    assert (resumed.kind, resumed.close, resumed.rerun) == ("continue", (), ())
    assert shape(view(*told)) == ["u1", "a2", "r[ok]"]


def test_calls_without_a_result_are_run() -> None:
    """Case 61: continue, and only the second call is named."""
    told = (user(), answer(call(), call("keyed")), result(2))
    found = step(*told)
    assert isinstance(found, RunTools)
    assert [open_call.call.call_id for open_call in found.calls] == [wire_id(2, 1)]
    resumed = plan(*told)
    assert resumed.kind == "continue"
    assert [open_call.call.tool for open_call in resumed.rerun] == ["keyed"]


@pytest.mark.parametrize("blank", [answer(stop="length"), answer("  ", stop="error"), answer(stop="aborted")])
def test_a_blank_answer_behind_open_calls_does_not_hide_them(blank: EntryData) -> None:
    """Case 61."""
    found = step(user(), answer(call(), call("keyed")), result(2), blank)
    assert isinstance(found, RunTools)
    assert [open_call.call.call_id for open_call in found.calls] == [wire_id(2, 1)]


def test_a_question_to_the_user_waits_for_the_answer_and_takes_it() -> None:
    """Case 42."""
    asked = (user(), answer(call("ask_user")), result(2))
    assert step(*asked) == Wait(SuspendReason.INPUT, "waits for an answer")
    assert plan(*asked).kind == "already_complete"
    assert step(*asked, user("blue")) == AskModel()
    assert shape(view(*asked, user("blue"))) == ["u1", "a2", "r[ok]", "u4"]


def test_a_question_in_a_batch_waits_when_both_results_are_there() -> None:
    """Case 43."""
    asked = (user(), answer(call("ask_user"), call("read")), result(2, 0))
    assert isinstance(step(*asked), RunTools)
    assert step(*asked, result(2, 1)) == Wait(SuspendReason.INPUT, "waits for an answer")


def test_a_question_that_failed_does_not_wait() -> None:
    """Case 43: only a successful pausing tool pauses."""
    assert step(user(), answer(call("ask_user")), result(2, outcome="error")) == AskModel()


def test_an_old_answered_question_does_not_stop_later_work() -> None:
    """Case 44."""
    told = (user(), answer(call("ask_user")), result(2), user("blue"), answer(call()), result(5))
    assert step(*told) == AskModel()
    assert plan(*told).kind == "continue"


def test_an_answer_without_calls_finishes() -> None:
    """Nothing undelivered: already complete."""
    told = (user(), answer("one ", "two"))
    assert step(*told) == Finish(Completed({"text": "one two"}))
    assert plan(*told).kind == "already_complete"


def test_a_message_that_the_answer_had_not_seen_is_answered_first() -> None:
    """Case 83: it stands behind the answer, which it came before."""
    told = (user(), user("and"), answer("hi", seen=1))
    assert step(*told) == AskModel()
    assert plan(*told).kind == "continue"
    assert shape(view(*told)) == ["u1", "a3", "u2"]
    assert fold(journal(*told)).highest_user_seq == 2


def test_an_answer_paused_by_its_provider_stays_last() -> None:
    """Case 83: the one exception; another model is asked to go on instead."""
    told = (user(), answer("let me", stop="paused", provider={"format": "f", "provider": "p", "model": "m"}))
    assert step(*told) == AskModel()
    assert plan(*told).kind == "continue"
    transcript = fold(journal(*told))
    assert shape(transcript.view(ModelIdentity("f", "p", "m"))) == ["u1", "a2"]
    assert shape(transcript.view(ModelIdentity("f", "p", "other"))) == ["u1", "a2", "+"]


def test_an_answer_cut_by_length_is_continued_twice_and_then_shown_as_truncated() -> None:
    """F29."""
    cut = answer("half ", stop="length")
    assert step(user(), cut) == AskModel()
    assert shape(view(user(), cut)) == ["u1", "a2", "+"]
    assert step(user(), cut, cut) == AskModel()
    assert step(user(), cut, answer("done")) == Finish(Completed({"text": "half done"}))
    assert step(user(), cut, cut, cut) == Finish(Completed({"text": "half half half ", "truncated": True}))
    assert plan(user(), cut, cut, cut).kind == "already_complete"
    assert shape(view(user(), cut, cut, cut, user())) == ["u1", "a2", "+", "a3", "+", "a4", "u5"]


def test_a_new_message_allows_going_on_again() -> None:
    """F29: twice in a row, not twice in a session."""
    cut = answer("half", stop="length")
    assert step(user(), cut, cut, cut, user(), cut) == AskModel()


def test_a_message_that_waits_already_takes_the_place_of_go_on() -> None:
    """Case 84: whether "go on" stands behind an answer never changes afterwards."""
    cut = answer("half", stop="length", seen=1)
    assert shape(view(user(), user(), cut)) == ["u1", "a3", "u2"]
    assert shape(view(user(), cut, user())) == ["u1", "a2", "+", "u3"]


@pytest.mark.parametrize(("text", "words"), [("", "policy"), ("I cannot", "policy")])
def test_a_refusal_ends_the_run_with_the_providers_words(text: str, words: str) -> None:
    """F28."""
    told = (user(), answer(*([text] if text else []), stop="refused", message="policy"))
    assert step(*told) == Finish(Completed({"text": text, "refused": words}))
    assert plan(*told).kind == "already_complete"
    assert step(*told, user("then this")) == AskModel()


def test_calls_of_a_refused_or_interrupted_answer_are_not_run() -> None:
    """F6."""
    assert step(user(), answer("no", call("write"), stop="refused")) == Finish(
        Completed({"text": "no", "refused": "no"})
    )
    told = (user(), answer("I was", call("write"), stop="interrupted"))
    assert step(*told) == Wait(SuspendReason.INPUT, "was interrupted, waits for a message")
    assert shape(view(*told)) == ["u1", "a2"]


@pytest.mark.parametrize(
    "broken",
    [
        answer("half a sentence", stop="aborted"),
        answer("half a sentence", stop="error"),
        answer("half a sentence", message="overloaded"),
        answer("  \n", stop="length"),
        answer(Thinking("hm"), stop="length"),
        answer(call("write"), stop="error"),
    ],
)
def test_an_answer_that_came_to_nothing_is_as_if_it_had_not_been(broken: EntryData) -> None:
    """Case 59: the plan and the view continue from what is before it."""
    assert step(user(), broken) == AskModel()
    assert plan(user(), broken).kind == "start"
    assert shape(view(user(), broken)) == ["u1"]
    told = (user(), answer(call()), result(2), broken, broken)
    assert step(*told) == AskModel()
    assert plan(*told).kind == "continue"
    assert shape(view(*told)) == ["u1", "a2", "r[ok]"]


def test_a_normal_stop_without_content_is_complete_and_left_out() -> None:
    """Case 60."""
    told = (user(), answer())
    assert step(*told) == Finish(Completed({"text": ""}))
    assert plan(*told).kind == "already_complete"
    assert shape(view(*told, user())) == ["u1", "u3"]


def test_an_unknown_block_counts_as_content_and_is_not_sent() -> None:
    """Case 60."""
    unknown = UnknownBlock({"type": "hologram"})
    assert step(user(), answer(unknown)) == Finish(Completed({"text": ""}))
    told = (user(), answer(unknown, "and words", stop="length"))
    assert shape(view(*told)) == ["u1", "a2", "+"]
    assert [m.content for m in view(*told) if isinstance(m, ModelOutput)] == [(Text("and words"),)]


def test_the_third_empty_answer_ends_the_run() -> None:
    """F7: asked again twice; a transient error between does not count, an answer does."""
    empty, transient = ModelRetried("empty", "only thinking"), ModelRetried("transient", "503")
    assert step(user(), empty, transient, empty) == AskModel()
    found = step(user(), empty, transient, empty, empty)
    assert isinstance(found, Finish)
    assert isinstance(found.outcome, Failed)
    assert found.outcome.code == "empty_answer"
    assert "only thinking" in found.outcome.message
    assert step(user(), empty, empty, answer(call()), result(4), empty) == AskModel()
    assert step(user(), empty, empty, empty, SessionFailed(), SessionRetried()) == AskModel()


def test_three_identical_failures_in_a_row_end_the_run() -> None:
    """F8."""
    fails = [part for n in range(3) for part in (answer(call("read", "[]")), result(2 * n + 2, outcome="error"))]
    assert step(user(), *fails[:4]) == AskModel()
    found = step(user(), *fails)
    assert isinstance(found, Finish)
    assert found.outcome == Failed(
        "repeated_tool_failure", "the call of read failed 3 times in a row in the same way: done"
    )
    assert step(user(), *fails, user("try otherwise")) == AskModel()
    assert step(user(), *fails, SessionFailed(), SessionRetried()) == AskModel()


def test_identical_failures_may_be_written_in_different_ways() -> None:
    """F8: white space and escapes make no other call."""
    written = ('{"n":"a"}', '{ "n": "a" }', '{"n": "\\u0061"}')
    fails = [
        part
        for n, text in enumerate(written)
        for part in (answer(call("read", text)), result(2 * n + 2, outcome="error"))
    ]
    assert isinstance(step(user(), *fails), Finish)


def test_failures_that_differ_do_not_end_the_run() -> None:
    """F8."""
    told: list[EntryData] = [user()]
    for n in range(5):
        told += [answer(call("read", f'{{"n": {n}}}')), result(2 * n + 2, outcome="error")]
    assert step(*told) == AskModel()


def test_a_limit_that_is_used_up_suspends_with_the_figures() -> None:
    """The limit is looked at before the model is asked, never before an end."""
    told = (user(), answer(call(), usage=Usage(10, 5)), result(2))
    found = step(*told, limits=Limits(turns=1))
    assert found == Wait(SuspendReason.BUDGET, "1 turns of 1 are used: resume with higher limits")
    assert isinstance(step(*told, limits=Limits(tokens=15)), Wait)
    assert step(*told, limits=Limits(turns=2, tokens=16)) == AskModel()
    assert isinstance(step(user(), answer("done"), limits=Limits(turns=1)), Finish)
    transcript = fold(journal(*told))
    spent = Spent(turns=1, running_seconds=61.0)
    assert isinstance(next_step(transcript, Limits(running_seconds=60.0), TOOLS, spent=spent), Wait)


def test_a_new_run_has_spent_nothing() -> None:
    """Case 37."""
    told = (user(), answer(call(), usage=Usage(10, 5), cost=0.5), SessionCancelled(), user())
    assert fold(journal(*told)).spent == Spent()
    assert fold(journal(*told[:2], ModelRetried("transient", usage=Usage(1), cost=0.25))).spent == Spent(1, 16, 0.75)


def test_queued_messages_wait_for_the_next_run() -> None:
    """Case 86: they are neither seen nor undelivered; a promoted one is a message, a cancel drops them."""
    queued = MessageQueued((Text("next"),))
    told = (user(), queued, user("steer"), answer("hi"))
    transcript = fold(journal(*told))
    assert transcript.queued == (2,)
    assert shape(transcript.view(None)) == ["u1", "u3", "a4"]
    assert fold(journal(*told, user("next", message_seq=2))).queued == ()
    assert fold(journal(*told, SessionCancelled(None, (2,)))).queued == ()


def test_an_unknown_effect_of_a_grave_tool_waits_for_an_operator() -> None:
    """F27: ``on_unknown="suspend"``; once resumed it goes on."""
    told = (user(), answer(call("grave")), result(2, outcome="unknown"))
    assert step(*told) == Wait(SuspendReason.BLOCKED, "the outcome is unknown of: grave", (wire_id(2),))
    assert isinstance(step(*told, user("so?")), Wait)
    assert step(*told, SessionWoken("resume")) == AskModel()
