"""How much a run may use, and how much it has used."""

from __future__ import annotations

from dataclasses import dataclass


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
