"""Each guard of the pure core is taken away in turn: the test that claims to cover it must then fail."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

from agentrt.core import calls, plan, repair, transcript, view
from agentrt.core.messages import ModelIdentity
from tests.core import test_calls, test_plan, test_properties, test_repair
from tests.core.strategies import message_lists, plain_stories, stories, unlawful_journals


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in the source of ``function``; ``test`` must fail, for some example of ``given``."""

    name: str
    function: Any
    old: str
    new: str
    test: Callable[..., None]
    given: SearchStrategy[Any] | None = None


of_stories = test_properties
of_anything = test_properties.test_nothing_raises_and_every_view_is_valid_whatever_the_journal_holds
valid = test_properties.test_every_request_of_a_story_is_taken_by_a_strict_provider

MUTATIONS = (
    # the planner
    Mutation(
        "dangling calls are ignored when the last message is an answer",
        plan.next_step, "if transcript.open_calls:", "if transcript.open_calls and not transcript.turns:",
        of_stories.test_every_call_ends_with_exactly_one_result, stories,
    ),
    Mutation(
        "calls that never started are interrupted",
        calls.judge, "if call.closed_off:", "if call.closed_off or call.orphaned:",
        of_stories.test_a_call_is_closed_as_interrupted_only_behind_an_interrupt_or_the_end_of_a_run, stories,
    ),
    Mutation(
        "calls that never started are interrupted, also without a crash",
        calls.judge, "if call.closed_off:", "if not call.started:",
        of_stories.test_without_faults_every_call_runs_exactly_once_and_ends_well, plain_stories,
    ),
    Mutation(
        "foreign thinking is kept",
        view._output, "or (isinstance(block, Thinking) and not own)", "",
        valid, stories,
    ),
    Mutation(
        "foreign thinking is kept with its signature",
        ModelIdentity.signed, "return self == owner_of(provider)", "return provider is not None",
        valid, stories,
    ),
    Mutation(
        "what was taken without thinking goes with it next time",
        transcript._take_answer, "if any(retry.rejected for retry in found.retries):", "if False:",
        of_stories.test_a_request_begins_with_the_whole_request_before_it, stories,
    ),
    Mutation(
        "late messages are placed before the answer",
        transcript._slots, "bisect_left(later, user.seq)", "max(bisect_left(later, user.seq) - 1, 0)",
        of_stories.test_a_message_stands_directly_behind_the_last_answer_that_had_not_seen_it, stories,
    ),
    Mutation(
        "of two results the last is kept",
        transcript._find, " and ours.result is None", "",
        of_stories.test_a_second_result_of_a_call_changes_nothing, stories,
    ),
    Mutation(
        "repair keeps the last of two results",
        repair._batch, "found.pop(0)", "found.pop()",
        of_stories.test_repair_keeps_the_first_result_of_a_call, message_lists(),
    ),
    # effects
    Mutation(
        "a started once call is run again",
        calls.judge, "if call.started and not call.deferred:", "if False:",
        of_stories.test_no_call_of_effect_once_runs_twice, stories,
    ),
    Mutation(
        "what may repeat an unknown effect is run",
        calls._judge_runnable, "if may_repeat and", "if False and",
        of_stories.test_what_may_repeat_an_unknown_effect_is_run_only_after_an_approval, stories,
    ),
    Mutation(
        "a call that is written in another way is another call",
        calls.same_call_key, "read = json.loads(text, parse_float=_number)", "read = text",
        test_calls.test_a_call_that_is_written_in_another_way_is_no_other_call,
    ),
    Mutation(
        "equal calls of one answer run side by side",
        plan._one_of_each, "if key in under_way:", "if not under_way:",
        test_calls.test_two_equal_calls_of_one_answer_are_not_run_side_by_side,
    ),
    Mutation(
        "owners that died while a call waited are counted",
        transcript._take_of_call, "call.result is None and not call.waits", "call.result is None",
        test_calls.test_owners_that_died_while_the_call_waited_are_not_counted,
    ),
    Mutation(
        "calls behind an interrupt go on",
        transcript._open_calls, "or found.interrupt_seq > seen", "",
        test_calls.test_an_interrupt_closes_what_is_open_and_a_steering_message_does_not,
    ),
    # the view
    Mutation(
        "whether go on stands there depends on later messages",
        transcript._turns, "users[0].seq < turn.seq", "users[0].seq",
        of_stories.test_a_request_begins_with_the_whole_request_before_it, stories,
    ),
    Mutation(
        "an answer that claims to have seen the future hides messages",
        transcript._arrange, "min(answer.answer.seen_seq, answer.seq - 1)", "answer.answer.seen_seq",
        test_repair.test_an_answer_that_claims_to_have_seen_the_future_hides_no_message,
    ),
    Mutation(
        "what another model paused stays last",
        view.view, "not (output and output.provider)", "not output",
        test_plan.test_an_answer_paused_by_its_provider_stays_last,
    ),
    Mutation(
        "calls without a result get none", repair.repair_orphaned_tool_calls, "if calls:", "if False:",
        of_anything, unlawful_journals(),
    ),
    Mutation("no opening", view.view, "if turns and not messages:", "if False:", of_anything, unlawful_journals()),
    Mutation(
        "thinking may come last", view._output, "while kept and", "while False and", valid, stories
    ),
    Mutation("text behind calls", view._output, "if turn.calls:", "if False:", valid, stories),
    Mutation("arguments go as they are", view._arguments, "        pass", "        return text", valid, stories),
    Mutation(
        "blank results", view._result_text, "if content.strip() else EMPTY_RESULT", "", valid, stories
    ),
    Mutation(
        "item ids are sent twice", transcript._take_answer, "if seq in found.answer_seqs and", "if False and",
        of_anything, unlawful_journals(),
    ),
    Mutation(
        "call ids as they were stored", transcript._unused, "while unused in used:", "while False:",
        test_repair.test_a_seq_that_a_damaged_journal_has_twice_gives_different_call_ids,
    ),
)  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_without_the_guard_its_test_fails(mutation: Mutation) -> None:
    """Case 68: a property that no mutation can break proves nothing."""
    with mutated(mutation), pytest.raises(AssertionError):
        runnable(mutation)()


def runnable(mutation: Mutation) -> Callable[[], None]:
    """The test, with the same examples every time and without the search for the smallest one."""
    if mutation.given is None:
        return mutation.test
    inner: Callable[[Any], None] = mutation.test.hypothesis.inner_test  # type: ignore[attr-defined]

    def once_more(example: Any) -> None:
        inner(example)

    quick = settings(
        max_examples=2_000, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
    )
    return quick(given(mutation.given)(once_more))


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The function's code is exchanged, so that every module that has imported it runs the mutant."""
    function = mutation.function
    assert isinstance(function, FunctionType)
    original = function.__code__
    function.__code__ = _mutant(function, mutation.old, mutation.new)
    try:
        yield
    finally:
        function.__code__ = original


def _mutant(function: FunctionType, old: str, new: str) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function.__qualname__}"
    namespace = dict(function.__globals__)
    exec(source.replace(old, new), namespace)  # noqa: S102 - the project's own source
    mutant = namespace[function.__name__]
    assert isinstance(mutant, FunctionType)
    return mutant.__code__
