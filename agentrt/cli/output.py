"""What commands print: tables for people, JSON for programs, and no control characters of others in either."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import typer

COLOURS = {
    "queued": "cyan", "running": "blue", "suspended": "yellow", "completed": "green", "failed": "red",
    "cancelled": "magenta", "alive": "green", "draining": "yellow", "dead": "red", "stopped": "dim",
}  # fmt: skip


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one JSON document; with ``indent`` None on one line."""
    typer.echo(json.dumps(value, indent=indent, default=_jsonable, ensure_ascii=False))


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    match value:
        case datetime():
            return value.isoformat()
        case Decimal():
            return float(value)
        case Mapping():
            return dict(value)
        case tuple() | set() | frozenset():
            return list(value)
        case _:
            return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table without lines; first columns are never cut, the last one gives way."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=True, overflow="ellipsis" if position == len(columns) - 1 else "fold")
    for row in rows:
        table.add_row(*(Text(shown := one_line(cell), style=COLOURS.get(shown, "")) for cell in row))
    if not table.row_count:
        typer.echo(empty, err=True)
        return
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width: nothing is cut
        console = Console(highlight=False, width=1_000)
    console.print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair per line; values that are None are left out."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{typer.style(name.ljust(width), bold=True)}  {printable(str(value))}")


def relative(time: datetime | None, *, now: datetime | None = None) -> str:
    """``time`` as people say it: ``12 s ago``, ``in 3 min``."""
    if time is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    words = duration(abs(seconds))
    return f"in {words}" if seconds <= -1 else f"{words} ago" if seconds >= 1 else "now"


def duration(seconds: float) -> str:
    """A length of time in its largest fitting unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def one_line(value: object) -> str:
    """``value`` without line ends and control characters."""
    return printable(" ".join(str(value).split()))


def printable(text: str) -> str:
    """``text`` that cannot steer a terminal: models and users write what they like."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
