"""What becomes of an open call: by effect, after a crash, behind an end or an interrupt, with an approval."""

from __future__ import annotations

from uuid import UUID

import pytest

from agentrt.core.budget import Limits
from agentrt.core.calls import CRASHED, EXPIRED, GONE, NOT_BEGUN, OBSOLETE, UNKNOWN, interrupted, same_call_key
from agentrt.core.content import ToolCall
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    Effect,
    EntryData,
    SessionCancelled,
    SessionCompleted,
    SessionFailed,
    SessionOrphaned,
    SessionReleased,
    ToolOutcome,
    ToolResult,
    ToolStarted,
)
from agentrt.core.plan import AskApproval, AskModel, CloseCalls, RunTools, Wait, next_step
from agentrt.core.session import SuspendReason
from agentrt.core.transcript import fold
from tests.core.writing import answer, call, journal, plan, result, shape, started, step, user, view, wire_id

APPROVAL = UUID(int=7)
ENDS: tuple[EntryData, ...] = (SessionCancelled(), SessionFailed(), SessionCompleted())
DEATHS: tuple[EntryData, ...] = (SessionOrphaned(), SessionReleased("drain"), SessionReleased("crash"))


def closed(found: object) -> list[tuple[ToolOutcome, str]]:
    """What a step closes, as outcomes and texts."""
    assert isinstance(found, CloseCalls)
    return [(one.outcome, one.content) for one in found.results]


def run(found: object) -> list[str]:
    """The tools that a step runs."""
    assert isinstance(found, RunTools)
    return [one.call.tool for one in found.calls]


# --- after a crash or a release -------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("tool", ["read", "keyed", "local", "write", "plain", "pay"])
def test_a_call_that_never_started_is_run_after_a_crash_or_release(tool: str, death: EntryData) -> None:
    """Case 69: nothing interrupts it."""
    assert run(step(user(), answer(call(tool)), death)) == [tool]
    assert plan(user(), answer(call(tool)), death).close == ()


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("tool", ["write", "plain", "risky"])
def test_a_started_once_call_is_closed_as_unknown(tool: str, death: EntryData) -> None:
    """F15: it may or may not have had its effect."""
    told = (user(), answer(call(tool)), started(2), death)
    assert closed(step(*told)) == [(ToolOutcome.UNKNOWN, UNKNOWN)]
    assert plan(*told).close == (ToolResult(wire_id(2), tool, UNKNOWN, ToolOutcome.UNKNOWN),)


def test_a_started_call_of_a_tool_that_can_tell_is_reconciled() -> None:
    """F15: also behind the end of a run."""
    told = (user(), answer(call("pay"), call("read")), started(2), SessionOrphaned())
    found = step(*told)
    assert isinstance(found, RunTools)
    assert [one.call.tool for one in found.reconcile] == ["pay"]
    assert run(found) == ["read"]
    resumed = plan(*told)
    assert [one.call.tool for one in resumed.reconcile] == ["pay"]
    assert resumed.close == ()
    behind_an_end = plan(*told, SessionCancelled(), user())
    assert [one.call.tool for one in behind_an_end.reconcile] == ["pay"]
    assert behind_an_end.reconcile[0].closed_off


def test_the_effect_that_was_journaled_counts_not_the_new_one() -> None:
    """F15: a tool that was ``once`` when it started is not run again because its new version says ``read``."""
    assert closed(step(user(), answer(call("read")), started(2))) == [(ToolOutcome.UNKNOWN, UNKNOWN)]


def test_a_call_that_killed_two_owners_is_not_tried_again() -> None:
    """Case 80: the result says that it crashed the worker."""
    one = (user(), answer(call("read")), SessionOrphaned())
    assert run(step(*one)) == ["read"]
    assert closed(step(*one, SessionOrphaned())) == [(ToolOutcome.ERROR, CRASHED)]
    assert plan(*one, SessionOrphaned()).close[0].content == CRASHED


def test_owners_that_died_while_the_call_waited_are_not_counted() -> None:
    """Case 50: waiting for a person or for an outside result is no crime."""
    deaths = (SessionOrphaned(), SessionOrphaned())
    waiting = (user(), answer(call("write")), ApprovalRequested(APPROVAL, wire_id(2)), *deaths)
    assert run(step(*waiting, ApprovalDecided(APPROVAL, wire_id(2), "approved"))) == ["write"]
    deferred = (user(), answer(call("read")), started(2, deferred=True, effect=Effect.READ), *deaths)
    assert step(*deferred) == Wait(SuspendReason.EXTERNAL, "waits for a result: read", (wire_id(2),))


def test_a_dangling_call_of_a_tool_that_is_gone_is_closed() -> None:
    """F9: unknown if it was started, else an error that names the tools."""
    never = closed(step(user(), answer(call("vanished"))))
    assert never[0][0] is ToolOutcome.ERROR
    assert "no tool 'vanished'" in never[0][1]
    assert "ask_user, grave, keyed" in never[0][1]
    assert plan(user(), answer(call("vanished"))).close == ()
    begun = (user(), answer(call("vanished")), started(2))
    assert closed(step(*begun)) == [(ToolOutcome.UNKNOWN, GONE)]
    assert plan(*begun).close[0].content == GONE


# --- behind an end or an interrupt ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
def test_open_calls_behind_an_end_are_closed_not_run(end: EntryData) -> None:
    """Case 36: the finished result is kept, the others are closed by one entry each."""
    told = (
        user(),
        answer(call("read"), call("write"), call("write", '{"b": 1}')),
        result(2),
        started(2, 1),
        end,
        user(),
    )
    assert closed(step(*told)) == [(ToolOutcome.UNKNOWN, UNKNOWN), (ToolOutcome.INTERRUPTED, NOT_BEGUN)]
    results = plan(*told).close
    assert step(*told, *results) == AskModel()
    assert shape(view(*told, *results)) == ["u1", "a2", "r[ok,unknown,interrupted]", "u6"]


def test_an_interrupt_closes_what_is_open_and_a_steering_message_does_not() -> None:
    """Case 51: a message with ``interrupt`` against a plain one."""
    told = (user(), answer(call("read"), call("keyed")), result(2))
    may_have_begun = interrupted(begun=False, harmless=False)
    assert closed(step(*told, user("stop", when_running="interrupt"))) == [(ToolOutcome.INTERRUPTED, may_have_begun)]
    assert run(step(*told, user("also"))) == ["keyed"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("tool", "deferred", "words"),
    [
        ("write", False, NOT_BEGUN),
        ("plain", False, NOT_BEGUN),
        ("read", False, interrupted(begun=False, harmless=True)),
        ("local", False, interrupted(begun=False, harmless=True)),
        ("keyed", False, interrupted(begun=False, harmless=False)),
        ("vanished", False, interrupted(begun=False, harmless=False)),
        ("read", True, interrupted(begun=True, harmless=True)),
        ("local", True, interrupted(begun=True, harmless=False)),
        ("keyed", True, interrupted(begun=True, harmless=False)),
    ],
)
def test_a_call_is_said_not_to_have_run_only_where_the_journal_shows_it(
    tool: str, deferred: bool, words: str, end: EntryData
) -> None:
    """Case 36: a call of effect read leaves no trace before its result, so that it may have begun."""
    told: list[EntryData] = [user(), answer(call(tool))]
    if deferred:
        told.append(started(2, deferred=True, effect=Effect.READ))
    assert closed(step(*told, end, user())) == [(ToolOutcome.INTERRUPTED, words)]
    assert words.startswith("Not run") == ("begun, and" not in words)


def test_an_interrupt_that_the_answer_had_seen_closes_nothing() -> None:
    """Case 51: its calls came after the interrupt."""
    assert run(step(user(), user("stop", when_running="interrupt"), answer(call("read")))) == ["read"]


def test_the_first_result_of_a_call_stays() -> None:
    """Case 65: what comes later for it is not in the view."""
    told = (user(), answer(call("read")), result(2, content="first"), result(2, content="second"))
    assert fold(journal(*told)).turns[0].results[0] == result(2, content="first")


# --- approvals ------------------------------------------------------------------------------------------------------


def asked(*decisions: EntryData) -> tuple[EntryData, ...]:
    return (user(), answer(call("write")), ApprovalRequested(APPROVAL, wire_id(2), None, "write", "{}"), *decisions)


def decided(verdict: str, comment: str | None = None) -> ApprovalDecided:
    return ApprovalDecided(APPROVAL, wire_id(2), verdict, "anna", comment)


def test_an_open_approval_waits_also_with_an_undelivered_message() -> None:
    """Case 85: no loop; the message is delivered after the decision."""
    waits = Wait(SuspendReason.APPROVAL, "waits for a decision: write", (wire_id(2),))
    assert step(*asked()) == waits
    assert step(*asked(user("hurry"))) == waits
    assert plan(*asked()).kind == "continue"
    told = asked(user("hurry"), decided("approved"), result(2))
    assert shape(view(*told)) == ["u1", "a2", "r[ok]", "u4"]


def test_an_approved_call_is_run_and_a_refused_one_is_closed_with_the_comment() -> None:
    """Case 47."""
    assert run(step(*asked(decided("approved")))) == ["write"]
    outcome, text = closed(step(*asked(decided("rejected", "too dear"))))[0]
    assert outcome is ToolOutcome.DENIED
    assert text.endswith("too dear")
    assert plan(*asked(decided("rejected"))).close == ()


@pytest.mark.parametrize(("verdict", "text"), [("expired", EXPIRED), ("obsolete", OBSOLETE)])
def test_an_approval_that_ran_out_is_an_error_result(verdict: str, text: str) -> None:
    """Case 49."""
    assert closed(step(*asked(decided(verdict)))) == [(ToolOutcome.DENIED, text)]


def test_the_first_decision_counts() -> None:
    """Case 46: a later one changes nothing; a word that nobody knows decides nothing."""
    assert run(step(*asked(decided("approved"), decided("rejected")))) == ["write"]
    assert isinstance(step(*asked(decided("perhaps"))), Wait)


def test_the_sibling_of_a_call_that_waits_is_run_meanwhile() -> None:
    """Case 45: suspended once, for all that is left."""
    told = (
        user(),
        answer(call("write"), call("read"), call("write", '{"b": 1}')),
        ApprovalRequested(APPROVAL, None, 0),
        ApprovalRequested(UUID(int=8), wire_id(2, 2)),
    )
    assert run(step(*told)) == ["read"]
    waiting = step(*told, result(2, 1))
    assert isinstance(waiting, Wait)
    assert waiting.waits_for == (wire_id(2, 0), wire_id(2, 2))
    assert waiting.message == "waits for a decision: write, write"
    deferred = step(*told, started(2, 1, deferred=True, effect=Effect.READ))
    assert isinstance(deferred, Wait)
    assert deferred.message == "waits for a decision: write, write; waits for a result: read"
    both = (*told, result(2, 1), decided_of(APPROVAL, 0, "rejected"), decided_of(UUID(int=8), 2, "approved"))
    assert [text for text, _ in closed(step(*both))] == [ToolOutcome.DENIED]
    assert run(step(*both, result(2, 0, outcome="denied"))) == ["write"]


def decided_of(approval: UUID, position: int, verdict: str) -> ApprovalDecided:
    return ApprovalDecided(approval, wire_id(2, position), verdict)


def test_a_cancelled_approval_is_closed_and_the_next_message_is_answered() -> None:
    """Case 51."""
    told = asked(SessionCancelled(), user("never mind"))
    assert closed(step(*told)) == [(ToolOutcome.INTERRUPTED, NOT_BEGUN)]
    assert step(*told, *plan(*told).close) == AskModel()


# --- what may repeat ------------------------------------------------------------------------------------------------

REPEATED = (user(), answer(call("write", '{"a": 1}')), started(2), result(2, outcome="unknown"))


def test_a_call_like_one_of_unknown_outcome_becomes_an_approval() -> None:
    """F27: not a second execution; approved it runs."""
    told = (*REPEATED, answer(call("write", '{"a": 1}')))
    found = step(*told)
    assert isinstance(found, AskApproval)
    assert [one.call.call_id for one in found.calls] == [wire_id(5)]
    asks = ApprovalRequested(APPROVAL, wire_id(5), None, "write", '{"a": 1}', "", "may_repeat")
    assert isinstance(step(*told, asks), Wait)
    assert run(step(*told, asks, ApprovalDecided(APPROVAL, wire_id(5), "approved"))) == ["write"]


def test_a_call_that_is_written_in_another_way_is_no_other_call() -> None:
    """F27: white space, order of keys, escapes and forms of a number are not what a tool sees."""
    for written in (' {\n"a" : 1 }\t', '{"\\u0061": 1}', '{"a": 1.0}', '{"a": 1e0}', '{"a": 10E-1}'):
        assert isinstance(step(*REPEATED, answer(call("write", written))), AskApproval)
        settled = (*REPEATED, answer(call("write", written)), result(5), answer(call("write", '{"a": 1}')))
        assert run(step(*settled)) == ["write"]
        together = step(user(), answer(call("write", '{"a": 1}'), call("write", written)))
        assert isinstance(together, RunTools)
        assert [one.call.call_id for one in together.calls] == [wire_id(2)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": {"x": 1, "y": [2, 1]}, "b": "é😀"}', '{"b":"\\u00e9\\ud83d\\ude00","a":{"y":[2,1],"x":1}}', True),
        ("", "{}", True),
        (" ", "{ }", True),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": "5"}', '{"a": 5}', False),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": null}', "{}", False),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}', False),
        ('{"a": 1e400}', '{"a": NaN}', False),
        ('{"a": "\\ud800"}', '{"a":"\\ud800"}', True),
        ('{"a": "\\ud800"}', '{"a": "\\ud801"}', False),
        ('{"a": "\ud800"}', '{"a": "\\ud800"}', True),
        ('{"a": 1', '{"a": 2', False),
        ('{"a": 1', '{"a": 1', True),
        ("9" * 5000, "8" * 5000, False),
        ("[" * 100_000, "[" * 100_001, False),
        ("[" * 100_000 + "]" * 100_000, "[" * 100_000 + "]" * 100_000, True),
    ],
)
def test_two_calls_are_the_same_when_their_tool_would_see_the_same(one: str, other: str, *, same: bool) -> None:
    """F27: whatever a model wrote, without raising."""
    assert (same_call_key(ToolCall("t", one)) == same_call_key(ToolCall("t", other))) is same
    assert same_call_key(ToolCall("t", one)) != same_call_key(ToolCall("u", one))


def test_other_arguments_another_tool_or_a_tool_that_allows_it_are_run() -> None:
    """F27."""
    assert run(step(*REPEATED, answer(call("write", '{"a": 2}')))) == ["write"]
    assert run(step(*REPEATED, answer(call("plain", '{"a": 1}')))) == ["plain"]
    risky = (user(), answer(call("risky")), started(2), result(2, outcome="unknown"), answer(call("risky")))
    assert run(step(*risky)) == ["risky"]


def test_a_later_success_of_the_same_call_settles_the_unknown_one() -> None:
    """F27: then it is an ordinary call again."""
    told = (*REPEATED, answer(call("write", '{"a": 1}')), result(5), answer(call("write", '{"a": 1}')))
    assert run(step(*told)) == ["write"]


def test_two_equal_calls_of_one_answer_are_not_run_side_by_side() -> None:
    """F27: the second follows when it is known how the first one ended."""
    told = (user(), answer(call("write"), call("write"), call("write", '{"b": 1}'), call("read"), call("read")))
    found = step(*told)
    assert isinstance(found, RunTools)
    assert [one.call.call_id for one in found.calls] == [wire_id(2, n) for n in (0, 2, 3, 4)]
    rest = [result(2, n) for n in (2, 3, 4)]
    assert run(step(*told, *rest, result(2, 0))) == ["write"]
    assert isinstance(step(*told, *rest, result(2, 0, outcome="unknown")), AskApproval)


def test_a_deferred_once_call_behind_an_end_is_unknown() -> None:
    """F26: its effect is under way somewhere else."""
    told = (user(), answer(call("write")), started(2), ToolStarted(wire_id(2), "write", deferred=True))
    assert isinstance(step(*told), Wait)
    assert closed(step(*told, SessionCancelled(), user())) == [(ToolOutcome.UNKNOWN, UNKNOWN)]


@pytest.mark.parametrize("end", [*ENDS, user("stop", when_running="interrupt")])
@pytest.mark.parametrize("tool", ["local", "read", "vanished"])
def test_a_deferred_transactional_call_that_is_cut_off_is_unknown(tool: str, end: EntryData) -> None:
    """F26: what it wrote was committed with the deferral, whatever its tool says of itself now."""
    told = (user(), answer(call(tool)), started(2, deferred=True, effect=Effect.TRANSACTIONAL))
    assert closed(step(*told, end, user())) == [(ToolOutcome.UNKNOWN, UNKNOWN)]
    resumed = plan(*told, end, user()).close
    assert [one.outcome for one in resumed] == [ToolOutcome.UNKNOWN]


def test_a_call_like_a_transactional_one_of_unknown_outcome_becomes_an_approval() -> None:
    """F27: its first deferral has left something behind."""
    told = (user(), answer(call("local")), started(2, deferred=True, effect=Effect.TRANSACTIONAL))
    assert isinstance(step(*told, result(2, outcome="unknown"), answer(call("local"))), AskApproval)


def test_no_tools_at_all_close_every_call() -> None:
    """F9."""
    found = next_step(fold(journal(user(), answer(call("read")))), Limits(), {})
    assert closed(found)[0][1].endswith("The tools are: none.")


def test_what_is_said_of_a_call_of_ours_is_not_taken_for_an_older_one_that_was_stored_with_the_same_id() -> None:
    foreign = answer(call("write", call_id=wire_id(5)), stop="stop")
    entries = (user(), foreign, user("go on"), user("now"), answer(call("write")))
    assert isinstance(step(*entries, started(5)), CloseCalls)
    (answered,) = [turn for turn in fold(journal(*entries, started(5), result(5))).turns if turn.seq == 5]
    assert answered.results == (result(5),)
