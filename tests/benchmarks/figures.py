"""What a benchmark prints: figures, some with a target, for people or as JSON."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``most`` and ``least`` are targets; ``ratio`` is the value against the machine's own limit, ``against``."""

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    ratio: float | None = None
    against: str = ""

    @property
    def met(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    @property
    def line(self) -> str:
        target = f"  (at most {self.most:g})" if self.most is not None else ""
        target += f"  (at least {self.least:g})" if self.least is not None else ""
        ratio = f"  = {self.ratio:.2f} × {self.against}" if self.ratio is not None else ""
        missed = "" if self.met else "  MISSED"
        return f"{self.name:<66} {self.value:>12,.3f} {self.unit}{ratio}{target}{missed}"


class Report:
    """Shows each figure when it is known; all of them at once for ``--json``."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.figures: list[Figure] = []

    def add(self, *figures: Figure) -> None:
        for figure in figures:
            self.figures.append(figure)
            if not self._as_json:
                print(figure.line, flush=True)

    def say(self, words: str) -> None:
        """For people, also beside JSON: on standard error."""
        print(words, file=sys.stderr, flush=True)

    def end(self) -> int:
        """The exit code: 1 when a target was missed."""
        if self._as_json:
            print(json.dumps([asdict(figure) | {"met": figure.met} for figure in self.figures], indent=1))
        return 0 if all(figure.met for figure in self.figures) else 1


def arguments(description: str) -> argparse.Namespace:
    """``json``, ``quick`` and ``seed``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON array instead of lines")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, to see whether it works")
    parser.add_argument("--seed", type=int, default=0, help="of all dice; 0 draws one, which is printed")
    return parser.parse_args()
