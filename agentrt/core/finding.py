"""What a look at the surroundings showed: the lines of ``agentrt doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: ``warning`` works, but less well; ``problem`` does not work."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look showed; ``text`` says what to do unless it is ok."""

    check: str
    level: Level
    text: str
