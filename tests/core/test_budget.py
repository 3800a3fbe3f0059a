"""What counts of the figures that a provider, or a model of the user's, gives."""

import math
from typing import Any

import pytest

from agentrt.core.budget import MOST_COST, MOST_TOKENS, counted_cost, counted_usage
from agentrt.core.journal import StopReason, Usage
from agentrt.ports import ModelAnswer, ModelError, ModelErrorClass

FIGURES: list[tuple[Any, int, float | None]] = [
    (12.0, 12, 12.0),
    (2.5, 2, 2.5),
    (1e-320, 0, 1e-320),
    (-1, 0, 0.0),
    (math.nan, 0, None),
    (math.inf, MOST_TOKENS, MOST_COST),
    (-math.inf, 0, 0.0),
    (10**400, MOST_TOKENS, MOST_COST),
    (-(10**400), 0, 0.0),
    ("12", 0, None),
    (None, 0, None),
]


@pytest.mark.parametrize(("figure", "tokens", "cost"), FIGURES)
def test_a_figure_counts_as_far_as_it_can_be_added_up(figure: Any, tokens: int, cost: float | None) -> None:
    """Case 82: whole tokens, dollars as a float, and nothing of what is no number."""
    usage = counted_usage(Usage(figure, figure, figure, figure))
    assert usage == Usage(tokens, tokens, tokens, tokens)
    assert type(usage.input_tokens) is int
    assert counted_cost(figure) == cost
    error = ModelError(ModelErrorClass.TRANSIENT, "cut", usage=Usage(figure, 1), cost=figure)
    answer = ModelAnswer(content=(), stop_reason=StopReason.STOP, model="m", usage=Usage(figure, 1), cost=figure)
    assert (error.usage, error.cost) == (answer.usage, answer.cost) == (Usage(tokens, 1), cost)
