"""What holds for every journal: lawful ones (safety and liveness), and any at all (totality)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from agentrt.core.budget import Limits
from agentrt.core.content import ToolCall
from agentrt.core.journal import (
    AssistantMessage,
    Compaction,
    Entry,
    ModelRetried,
    SessionCancelled,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from agentrt.core.messages import Message, ModelOutput, ToolResults, UserInput
from agentrt.core.plan import AskModel, CloseCalls, Finish, Wait, next_step
from agentrt.core.repair import repair_orphaned_tool_calls
from agentrt.core.resume import plan_resume
from agentrt.core.session import CallId, Completed, Seq, Status
from agentrt.core.transcript import fold
from tests.core.neutral import FORMATS, violations
from tests.core.strategies import many, message_lists, plain_stories, stories, unlawful_journals
from tests.core.world import MODELS, TOOLS, World

# --- lawful journals ------------------------------------------------------------------------------------------------


@given(stories)
def test_every_request_of_a_story_is_taken_by_a_strict_provider(story: World) -> None:
    """Case 68: for lawful journals, in the model's own format."""
    for request in story.requests:
        assert violations(request.messages, request.identity) == []


@given(stories)
def test_a_request_begins_with_the_whole_request_before_it(story: World) -> None:
    """Case 84: unless the model was changed, or has rejected the one before, or nothing came of that."""
    for before, after in zip(story.requests, story.requests[1:], strict=False):
        plain = [any(retry.rejected for retry in request.transcript.retries) for request in (before, after)]
        answered = len(after.transcript.turns) > len(before.transcript.turns)
        if before.identity == after.identity and (answered or plain[0] == plain[1]):
            assert after.messages[: len(before.messages)] == before.messages


@given(stories)
def test_a_message_stands_directly_behind_the_last_answer_that_had_not_seen_it(story: World) -> None:
    """Case 83: and so a request never ends with an answer, but with one that its provider paused."""
    for request in story.requests:
        answers = {turn.seq: turn.answer.seen_seq for turn in request.transcript.turns}
        seen_before = -1
        for message in request.messages:
            if isinstance(message, ModelOutput):
                seen_before = answers[message.seq]
            elif isinstance(message, UserInput) and message.seq:
                assert message.seq > seen_before
                assert all(
                    seen >= message.seq
                    for seq, seen in answers.items()
                    if seq > message.seq and _behind(request.messages, message, seq)
                )
        last = request.messages[-1]
        assert not isinstance(last, ModelOutput) or last.stop_reason == "paused"


def _behind(messages: tuple[Message, ...], message: UserInput, seq: Seq) -> bool:
    """Whether the answer at ``seq`` stands behind ``message``."""
    return any(isinstance(m, ModelOutput) and m.seq == seq for m in messages[messages.index(message) :])


@given(stories)
def test_every_message_is_seen_exactly_once_and_answered(story: World) -> None:
    """Case 69: liveness of messages, whatever crashes; in the order in which they came."""
    transcript = fold(story.entries)
    kept = [entry.seq for entry in story.entries if isinstance(entry.data, UserMessage)]
    for messages in (transcript.view(story.identity), *(request.messages for request in story.requests)):
        shown = [message.seq for message in messages if isinstance(message, UserInput) and message.seq]
        assert shown == [seq for seq in kept if seq <= max(shown, default=0)]
    if story.status is Status.COMPLETED:
        assert transcript.undelivered == ()
        assert transcript.queued == ()


@given(plain_stories)
def test_without_faults_every_call_runs_exactly_once_and_ends_well(story: World) -> None:
    """Case 69."""
    calls = {call_id: tool for call_id, tool in _calls(story.entries).items() if tool in TOOLS}
    results = {e.data.call_id: e.data for e in story.entries if isinstance(e.data, ToolResult)}
    assert {call_id: story.executions[call_id] for call_id in calls} == dict.fromkeys(calls, 1)
    assert {results[call_id].outcome for call_id in calls} <= {ToolOutcome.OK}
    assert story.status is Status.COMPLETED


def _calls(entries: list[Entry]) -> dict[CallId, str]:
    return {
        block.call_id: block.tool
        for entry in entries
        if isinstance(entry.data, AssistantMessage) and entry.data.stop_reason != "refused"
        for block in entry.data.content
        if isinstance(block, ToolCall)
    }


@given(stories)
def test_no_call_of_effect_once_runs_twice(story: World) -> None:
    """Case 70: whatever crashes, the pure part: at most once for ``once``, committed once for ``transactional``."""
    for call_id, tool in _calls(story.entries).items():
        if tool in TOOLS and TOOLS[tool].once:
            assert story.executions[call_id] <= 1, f"{tool} {call_id}"
    assert all(count == 1 for count in _results(story).values())


@given(stories)
def test_every_call_ends_with_exactly_one_result(story: World) -> None:
    """Case 61: open calls are closed once and for all before the model is asked again."""
    results = _results(story)
    for request in story.requests:
        for turn in request.transcript.turns:
            for call in turn.calls:
                assert results[call.call_id] == 1
    if story.status is Status.COMPLETED:
        assert set(_calls(story.entries)) <= set(results)


def _results(story: World) -> Counter[CallId]:
    return Counter(entry.data.call_id for entry in story.entries if isinstance(entry.data, ToolResult))


@given(stories)
def test_a_second_result_of_a_call_changes_nothing(story: World) -> None:
    """Case 65: the first is kept."""
    results = [entry for entry in story.entries if isinstance(entry.data, ToolResult)]
    later = [
        replace(entry, seq=Seq(len(story.entries) + n), data=replace(entry.data, content="second"))
        for n, entry in enumerate(results, 1)
        if isinstance(entry.data, ToolResult)
    ]
    assert fold([*story.entries, *later]).view(story.identity) == fold(story.entries).view(story.identity)


@given(stories)
def test_a_call_is_closed_as_interrupted_only_behind_an_interrupt_or_the_end_of_a_run(story: World) -> None:
    """Case 36: a crash alone interrupts nothing that never started."""
    for entry in story.entries:
        if isinstance(entry.data, ToolResult) and entry.data.outcome is ToolOutcome.INTERRUPTED:
            answered = next(e for e in story.entries if entry.data.call_id in _calls([e]))
            assert isinstance(answered.data, AssistantMessage)
            assert any(
                isinstance(e.data, SessionCancelled)
                or (isinstance(e.data, UserMessage) and e.data.when_running == "interrupt")
                for e in story.entries[answered.data.seen_seq : entry.seq]
            )


@given(stories)
def test_what_may_repeat_an_unknown_effect_is_run_only_after_an_approval(story: World) -> None:
    """F27: the same tool and arguments as a call whose outcome is unknown."""
    calls = {
        b.call_id: b
        for e in story.entries
        if isinstance(e.data, AssistantMessage)
        for b in e.data.content
        if isinstance(b, ToolCall)
    }
    unknown: set[tuple[str, str]] = set()
    for entry in story.entries:
        if isinstance(entry.data, ToolStarted) and not entry.data.deferred:
            call = calls[entry.data.call_id]
            if (call.tool, call.arguments) in unknown:
                assert call.call_id in story.asked_twice or call.tool == "guarded"
        elif isinstance(entry.data, ToolResult) and entry.data.call_id in calls:
            call = calls[entry.data.call_id]
            if entry.data.outcome is ToolOutcome.UNKNOWN:
                unknown.add((call.tool, call.arguments))
            elif entry.data.outcome is ToolOutcome.OK:
                unknown.discard((call.tool, call.arguments))


@given(stories)
def test_a_takeover_at_any_entry_plans_what_the_next_step_does(story: World) -> None:
    """Case 61: what plan_resume closes, next_step would close; what is rerun, it would run."""
    for end in range(len(story.entries) + 1):
        transcript = fold(story.entries[:end])
        plan, step = plan_resume(transcript, TOOLS), next_step(transcript, Limits(turns=None), TOOLS)
        if plan.close:
            assert isinstance(step, CloseCalls)
            assert set(plan.close) <= set(step.results)
        assert (plan.kind == "start") == (not transcript.turns)
        assert (plan.kind == "already_complete") == (
            bool(transcript.turns) and not transcript.open_calls and isinstance(step, Finish | Wait)
        )


@given(stories)
def test_a_run_ends_as_its_last_answer_says(story: World) -> None:
    """Case 69: completed with the text of the last answer; failed only for empty answers or repeated failures."""
    for step in story.steps:
        if isinstance(step, Finish) and isinstance(step.outcome, Completed):
            assert isinstance(step.outcome.outcome["text"], str)
    if any(isinstance(step, Finish) and not isinstance(step.outcome, Completed) for step in story.steps):
        assert any(isinstance(e.data, ModelRetried) for e in story.entries) or any(
            isinstance(e.data, ToolResult) and e.data.outcome is ToolOutcome.ERROR for e in story.entries
        )


PROMISES: tuple[Any, ...] = (
    test_every_request_of_a_story_is_taken_by_a_strict_provider,
    test_a_request_begins_with_the_whole_request_before_it,
    test_a_message_stands_directly_behind_the_last_answer_that_had_not_seen_it,
    test_every_message_is_seen_exactly_once_and_answered,
    test_no_call_of_effect_once_runs_twice,
    test_every_call_ends_with_exactly_one_result,
    test_a_second_result_of_a_call_changes_nothing,
    test_a_call_is_closed_as_interrupted_only_behind_an_interrupt_or_the_end_of_a_run,
    test_what_may_repeat_an_unknown_effect_is_run_only_after_an_approval,
    test_a_run_ends_as_its_last_answer_says,
)


@pytest.mark.timeout(300)
@many
@given(stories)
def test_a_story_keeps_every_promise_at_once(story: World) -> None:
    """Case 70: the pure part, crashes between any two writes; what each promise is, the tests above say."""
    for promise in PROMISES:
        promise.hypothesis.inner_test(story)


# --- any journal ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@many
@given(unlawful_journals())
def test_nothing_raises_and_every_view_is_valid_whatever_the_journal_holds(entries: list[Entry]) -> None:
    """Case 68: for any list of entries at all."""
    transcript = fold(entries)
    step = next_step(transcript, Limits(), TOOLS)
    plan_resume(transcript, TOOLS)
    identity = MODELS[len(entries) % len(MODELS)]
    view = transcript.view(identity)
    assert violations(view, identity, asked=isinstance(step, AskModel)) == []
    assert repair_orphaned_tool_calls(view) == (view, ())


@given(unlawful_journals())
def test_the_same_entries_always_give_the_same_answers(entries: list[Entry]) -> None:
    """Case 68: deterministic, also for a copy of the journal."""
    first, second = fold(entries), fold(list(entries))
    assert first == second
    assert first.view(MODELS[0]) == second.view(MODELS[0])
    assert next_step(first, Limits(), TOOLS) == next_step(second, Limits(), TOOLS)
    assert plan_resume(first, TOOLS) == plan_resume(second, TOOLS)


@given(unlawful_journals())
def test_no_user_message_is_lost_whatever_the_journal_holds(entries: list[Entry]) -> None:
    """Case 67: but for those that a compaction covers."""
    transcript = fold(entries)
    compactions = [e for e in sorted(entries, key=lambda e: e.seq) if isinstance(e.data, Compaction)]
    covered = [min(e.data.covers_to, e.seq - 1) for e in compactions if isinstance(e.data, Compaction)][-1:]
    kept = [e.seq for e in entries if isinstance(e.data, UserMessage) and all(e.seq > end for end in covered)]
    shown = [message.seq for message in transcript.view(None) if isinstance(message, UserInput)]
    assert Counter(kept) <= Counter(shown)


@given(unlawful_journals())
def test_a_view_is_valid_in_the_other_formats_too(entries: list[Entry]) -> None:
    """Case 68: three formats, the same view."""
    view = fold(entries).view(MODELS[0])
    for wire_format in FORMATS.values():
        assert violations(view, MODELS[0], asked=False, wire_format=wire_format) == []


# --- repair ---------------------------------------------------------------------------------------------------------


@given(message_lists())
def test_repairing_twice_is_the_same_as_once(messages: tuple[Message, ...]) -> None:
    """Case 62."""
    once, _ = repair_orphaned_tool_calls(messages)
    twice, repaired = repair_orphaned_tool_calls(once)
    assert twice is once
    assert repaired == ()


@given(message_lists())
def test_repair_gives_every_answer_its_results_and_nothing_else(messages: tuple[Message, ...]) -> None:
    """Case 63: one message of results directly behind each answer with calls, in call order."""
    valid, repaired = repair_orphaned_tool_calls(messages)
    answered = {r.call_id for m in messages if isinstance(m, ToolResults) for r in m.results}
    expecting: list[CallId] = []
    for message in valid:
        if isinstance(message, ToolResults):
            assert [result.call_id for result in message.results] == expecting
        else:
            assert not expecting
        expecting = (
            [b.call_id for b in message.content if isinstance(b, ToolCall)] if isinstance(message, ModelOutput) else []
        )
    assert not expecting
    assert not answered & set(repaired)


@given(message_lists())
def test_repair_never_loses_or_reorders_user_messages(messages: tuple[Message, ...]) -> None:
    """Case 67."""
    valid, _ = repair_orphaned_tool_calls(messages)
    assert [m for m in valid if isinstance(m, UserInput)] == [m for m in messages if isinstance(m, UserInput)]


@given(message_lists())
def test_repair_keeps_the_first_result_of_a_call(messages: tuple[Message, ...]) -> None:
    """Case 65."""
    valid, repaired = repair_orphaned_tool_calls(messages)
    first: dict[CallId, str] = {}
    for message in messages:
        if isinstance(message, ToolResults):
            for result in message.results:
                first.setdefault(result.call_id, result.content)
    for message in valid:
        if isinstance(message, ToolResults):
            for result in message.results:
                assert result.call_id in repaired or result.content == first[result.call_id]
