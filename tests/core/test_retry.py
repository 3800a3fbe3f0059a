"""Delays and what providers ask for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.core.budget import Limits, Spent, over
from agentrt.core.retry import LONGEST_SECONDS, clamp, delay_seconds, parse_retry_after, wait_seconds

NOW = datetime(2015, 10, 21, 7, 28, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("999999999", LONGEST_SECONDS),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:28:30 -0000", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wed, 21 Oct 9999 07:27:00 GMT", LONGEST_SECONDS),
        ("-5", None),
        ("abc", None),
        ("", None),
        (None, None),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("Wed, 99 Oct 2015 07:28:30 GMT", None),
        ("\u0663", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_nonsense_is_nothing(text: str | None, seconds: float | None) -> None:
    """F13."""
    assert parse_retry_after(text, NOW) == seconds


@given(st.text())
def test_no_header_makes_the_reading_fail(text: str) -> None:
    """F13."""
    found = parse_retry_after(text, NOW)
    assert found is None or 0 <= found <= LONGEST_SECONDS


@given(st.integers(-(10**6), 10**6), st.floats(allow_nan=False))
def test_every_delay_lies_between_nothing_and_the_ceiling(retries: int, jitter: float) -> None:
    """F22: also the five-thousandth."""
    assert 0 <= delay_seconds(retries, jitter=jitter) <= 60


def test_delays_double_up_to_the_ceiling() -> None:
    """F22."""
    assert [delay_seconds(n, jitter=1.0) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert delay_seconds(5_000, jitter=0.5) == 30


def test_a_provider_is_never_asked_earlier_than_it_said() -> None:
    """F13: and never later than in a day."""
    assert wait_seconds(0, jitter=0.0, retry_after_seconds=40) == 40
    assert wait_seconds(6, jitter=1.0, retry_after_seconds=2) == 60
    assert wait_seconds(2, jitter=0.5) == 2
    assert wait_seconds(0, jitter=0.5, retry_after_seconds=float("inf")) == LONGEST_SECONDS
    assert clamp(float("nan")) == 0


@given(st.floats(0, 86_400), st.floats(0, 1), st.integers(0, 5_000))
def test_those_who_were_sent_away_together_do_not_come_back_together(asked: float, jitter: float, retries: int) -> None:
    """F13: within a second after the time that was asked for, or by their own back-off."""
    wait = wait_seconds(retries, jitter=jitter, retry_after_seconds=asked)
    assert asked <= wait <= max(asked + 1, 60)
    assert wait_seconds(0, jitter=0.25, retry_after_seconds=40) != wait_seconds(0, jitter=0.5, retry_after_seconds=40)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(turns=3), "3 turns of 3 are used"),
        (Limits(tokens=100), "120 tokens of 100 are used"),
        (Limits(cost=0.5), "0.5000 of 0.5000 US dollars are used"),
        (Limits(running_seconds=60), "61 of 60 running seconds are used"),
        (Limits(turns=4, tokens=121, cost=0.6, running_seconds=62), None),
        (Limits(turns=None), None),
    ],
)
def test_a_limit_is_over_when_nothing_is_left(limits: Limits, words: str | None) -> None:
    assert over(limits, Spent(turns=3, tokens=120, cost=0.5, running_seconds=61.0)) == words
