"""``append.sql`` and ``end.sql`` decide about ownership in the same words: who changes one, changes both."""

from agentrt.postgres import statements

STALE = "      when h.kind in ('suspend', 'complete') and h.last_seq <> h.planned_from then 'stale'\n"


def decision(statement: str) -> str:
    """The part that judges the locked rows."""
    _, head, rest = statement.partition("\ndecided as materialized (")
    assert head
    return rest.partition("\n),\n")[0]


def test_both_judge_a_locked_row_alike_but_for_the_endings_own_rule() -> None:
    assert STALE in decision(statements.END)
    assert decision(statements.END).replace(STALE, "") == decision(statements.APPEND)


def test_each_locks_its_rows_once_and_waits_in_its_other_form() -> None:
    for waits, skips in ((statements.APPEND_WAITING, statements.APPEND), (statements.END_WAITING, statements.END)):
        assert skips.count(" skip locked") == skips.count("for no key update skip locked") == 1
        assert waits.count("for no key update") == 1
        assert "skip locked" not in waits
