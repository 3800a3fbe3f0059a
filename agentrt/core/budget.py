"""How much a run may use, and how much it has used."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrt.core.journal import Usage

MOST_TOKENS = 10**12
"""Of one model call that are counted."""

MOST_COST = 100_000.0
"""Of one model call that is counted, in US dollars."""


def counted_usage(usage: Usage) -> Usage:
    """What can be added up and stored of what a provider says it used."""
    return Usage(
        _tokens(usage.input_tokens),
        _tokens(usage.output_tokens),
        _tokens(usage.cache_read_tokens),
        _tokens(usage.cache_write_tokens),
    )


def _tokens(count: object) -> int:
    """Providers may send fractions; what is no number counts nothing."""
    return int(_clamped(count, MOST_TOKENS) or 0)


def counted_cost(cost: float | None) -> float | None:
    """What can be added up and stored of what a call is said to have cost; None for what is no number."""
    clamped = _clamped(cost, MOST_COST)
    return None if clamped is None else float(clamped)


def _clamped(value: object, most: float) -> float | None:
    """``value`` from 0 to ``most``; None for what is no number."""
    clamped = min(max(value, 0), most) if isinstance(value, int | float) else math.nan
    return None if math.isnan(clamped) else clamped


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use; None is no limit. ``tokens`` counts input and output, retries and compactions included;
    ``cost`` is in US dollars; ``running_seconds`` is time with a slot, waiting is free."""

    turns: int | None = 100
    tokens: int | None = None
    cost: float | None = None
    running_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What the present run has used."""

    turns: int = 0
    tokens: int = 0
    cost: float = 0.0
    running_seconds: float = 0.0


def over(limits: Limits, spent: Spent) -> str | None:
    """Which limit leaves no room for one more model call, in words with the figures; None when there is room."""
    if limits.turns is not None and spent.turns >= limits.turns:
        return f"{spent.turns} turns of {limits.turns} are used"
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"{spent.tokens} tokens of {limits.tokens} are used"
    if limits.cost is not None and spent.cost >= limits.cost:
        return f"{spent.cost:.4f} of {limits.cost:.4f} US dollars are used"
    if limits.running_seconds is not None and spent.running_seconds >= limits.running_seconds:
        return f"{spent.running_seconds:.0f} of {limits.running_seconds:.0f} running seconds are used"
    return None
