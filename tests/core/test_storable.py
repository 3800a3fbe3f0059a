"""What is written is storable, whatever it was, and stays as it is when it is written again."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.core import storable as module
from agentrt.core.journal import ToolResult
from agentrt.core.session import CallId
from agentrt.core.storable import (
    CIRCULAR,
    MAX_DEPTH,
    MAX_KEY,
    MAX_SIZE,
    TOO_DEEP,
    TOO_LARGE,
    about_bytes,
    storable,
    storable_text,
)

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**400), 10**400), st.floats(), texts,
    st.binary(max_size=9), st.uuids(), st.decimals(), st.datetimes(), st.just(object()),
)  # fmt: skip
keys = st.one_of(texts, st.integers(), st.floats(), st.none(), st.booleans())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4), st.tuples(inner), st.sets(texts)
    ),
    max_leaves=12,
)


@given(values)
def test_anything_becomes_json_that_postgres_can_take(value: Any) -> None:
    """F1: no NUL, no lone surrogate, no NaN; also in keys and in what is no JSON at all."""
    text = json.dumps(storable(value), ensure_ascii=False, allow_nan=False)
    text.encode()
    assert "\x00" not in text
    assert "\\u0000" not in text.replace("\\\\", "")


@given(values)
def test_what_is_storable_is_not_changed_again(value: Any) -> None:
    """F1."""
    once = storable(value)
    assert storable(once) == once
    assert json.loads(json.dumps(once)) == once


@given(values, st.integers(0, 300))
def test_a_value_that_is_too_large_is_cut_once_and_then_stays(value: Any, room: int) -> None:
    """F1: with next to no room, so that the cuts happen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SIZE", room)
        once = storable(value)
        assert storable(once) == once
    assert len(json.dumps(once, ensure_ascii=False)) < 50 * (room + 100)


def test_bad_characters_are_replaced_visibly_and_typed_ones_stay() -> None:
    """F1."""
    assert storable("a\x00b") == "a\u2400b"
    assert storable("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert storable({"k\x00": ["\x00"]}) == {"k\u2400": ["\u2400"]}
    typed = "six typed characters: \\u0000, and \U0001f600"
    assert storable_text(typed) is typed


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\ud83d" + "\ude00b", "a\U0001f600b"),
        ("\ud83d\ud83d" + "\ude00", "\ufffd\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\x00\ude00", "\ufffd\u2400\ufffd"),
        ("\ufeff\ud83d" + "\ude00", "\ufeff\U0001f600"),
    ],
)
def test_the_halves_of_a_pair_are_joined_and_only_lone_ones_are_replaced(text: str, stored: str) -> None:
    """F1: a provider cuts its stream anywhere, also in the middle of a character."""
    assert storable_text(text) == stored
    assert storable({text: text}) == {stored: stored}


def test_keys_that_become_the_same_keep_all_their_values() -> None:
    """F1: and no key is longer than the bound."""
    assert storable({"a\x00": 1, "a\u2400": 2}) == {"a\u2400": 1, "a\u2400~2": 2}
    long = storable({"k" * 2000 + "a": 1, "k" * 2000 + "b": 2})
    assert [len(key) for key in long] == [MAX_KEY, MAX_KEY]
    assert storable({None: 0, True: 1, 2: 2, 0.5: 3}) == {"null": 0, "true": 1, "2": 2, "0.5": 3}


def test_depth_and_circles_are_bounded() -> None:
    """F1: 3,000 nested lists, and a list that contains itself many times over."""
    nested: list[Any] = []
    for _ in range(3_000):
        nested = [nested]
    found, depth = storable(nested), 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1
    assert (found, depth) == (TOO_DEEP, MAX_DEPTH)
    circle: list[Any] = [1]
    circle += [circle, circle]
    assert storable(circle) == [1, CIRCULAR, CIRCULAR]
    twice = ["shared"]
    assert storable([twice, twice]) == [["shared"], ["shared"]]


def test_size_is_bounded() -> None:
    """F1: a text is cut and says so; what no longer fits is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SIZE", 100)
        assert storable("x" * 200) == "x" * 84 + "[cut: too large]"
        assert storable(["x" * 90, 1, {"a": 2}]) == ["x" * 68 + "[cut: too large]", TOO_LARGE]
        assert storable(list(range(50)))[-1] == TOO_LARGE


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


def test_what_json_does_not_know_becomes_words() -> None:
    """F1: numbers that nobody else can read, too."""
    when = datetime(2024, 5, 1, tzinfo=UTC)
    assert storable([UUID(int=1), when, Decimal("1.50"), b"a\xff"]) == [
        "00000000-0000-0000-0000-000000000001", "2024-05-01 00:00:00+00:00", "1.50", "a\ufffd",
    ]  # fmt: skip
    assert storable([Colour.RED, Level.HIGH, object()]) == ["red", 3, "[object]"]
    assert storable([math.nan, math.inf, -math.inf, 1e300, 0.1]) == ["nan", "inf", "-inf", 1e300, 0.1]
    assert storable([2**64, 10**400, 10**5000]) == [2**64, hex(10**400), hex(10**5000)]


@given(values)
def test_a_size_is_told_of_anything_and_covers_its_texts(value: Any) -> None:
    assert about_bytes([value, "ü" * 1000]) >= 2000


def test_the_size_of_an_entry_is_about_that_of_its_texts() -> None:
    entry = ToolResult(CallId("c"), "look", "ü" * 100_000)
    assert 200_000 <= about_bytes((entry,)) <= 201_000
    assert 200_000 <= about_bytes({"provider": ["x" * 200_000]}) <= 201_000


def test_the_size_of_what_contains_itself_is_bounded() -> None:
    circle: list[Any] = ["text"]
    circle.append(circle)
    wide: list[Any] = []
    wide.extend([wide] * 10)
    assert about_bytes(circle) < 10_000
    assert about_bytes(wide) >= MAX_SIZE
