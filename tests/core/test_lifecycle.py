"""The transition table itself; tests/postgres/test_lifecycle_matrix.py compares it with the database."""

from collections import Counter

import pytest

from agentrt.core.lifecycle import TRANSITIONS, Actor, Trigger, render_diagram, render_table, transitions
from agentrt.core.session import Status
from tests.databases import CHECKOUT

STATUSES = (None, *Status)


def test_every_trigger_and_every_actor_has_a_transition():
    assert {t.trigger for t in TRANSITIONS} == set(Trigger)
    assert {t.by for t in TRANSITIONS} == set(Actor)


def test_conditions_tell_the_transitions_of_a_status_and_a_trigger_apart():
    """Case 41."""
    assert max(Counter((t.before, t.trigger, t.when) for t in TRANSITIONS).values()) == 1
    for before in STATUSES:
        for trigger in Trigger:
            found = transitions(before, trigger)
            assert len(found) < 2 or all(t.when for t in found), (before, trigger)


@pytest.mark.parametrize("status", [status for status in Status if status.terminal])
def test_only_a_message_or_a_retry_leads_out_of_a_status_that_is_terminal(status):
    leaving = [t for trigger in Trigger for t in transitions(status, trigger) if t.after != status]
    assert all(t.new_run and t.after == Status.QUEUED for t in leaving)
    assert {t.by for t in leaving} <= {Actor.CLIENT, Actor.OPERATOR}


def test_only_the_owner_completes_suspends_or_fails_a_session_that_it_runs():
    for t in TRANSITIONS:
        if t.by == Actor.OWNER:
            assert t.before == Status.RUNNING
        if t.after in (Status.COMPLETED, Status.SUSPENDED) and t.before != t.after:
            assert t.by == Actor.OWNER


def test_every_status_can_be_reached_and_left():
    assert {t.after for t in TRANSITIONS} == set(Status)
    assert {t.before for t in TRANSITIONS if t.before != t.after} == set(STATUSES)


def test_the_table_names_every_transition():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in render_table().splitlines()[2:]]
    named = {(trigger, before, when) for trigger, sources, when, _, _ in rows for before in sources.split(", ")}
    assert named == {(t.trigger, str(t.before or "nothing"), t.when) for t in TRANSITIONS}


def test_the_readme_holds_the_table_and_the_picture():
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert render_table() in readme
    assert f"```mermaid\n{render_diagram()}```" in readme
