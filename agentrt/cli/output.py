"""What commands print: tables for people, JSON for programs, and no control characters of others in either."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    plain = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
    document = json.dumps(value, indent=indent, default=_jsonable, ensure_ascii=plain)
    typer.echo("\n".join(line if line.isprintable() else _escaped(line) for line in document.split("\n")))


def _escaped(line: str) -> str:
    """JSON takes an escape wherever a control character can be: inside of texts."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


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


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str | None,
    optional: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print a table without lines, of which nothing is cut.

    A column without any text is left out. On a narrow terminal those of ``optional`` are, in this order, until the rest
    fits; a text of the last column that does not fit goes below its row.

    Args:
        columns: Their names.
        rows: A value for each column.
        empty: What to say when there is no row.
        optional: Names of columns.
        below: A line for under each row.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    if not cells:
        if empty is not None:
            typer.echo(empty, err=True)
        return
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000  # a pipe has no width
    kept = _kept(columns, cells, optional, room=room)
    widths = {at: max(cell_len(columns[at]), *(cell_len(row[at]) for row in cells)) for at in kept}
    last = len(columns) - 1
    typer.echo(typer.style(next(_lines(columns, widths, last=last, room=room)), bold=True))
    for position, row in enumerate(cells):
        for line in _lines(row, widths, last=last, room=room):
            typer.echo(line)
        if position < len(below):
            typer.echo(f"  {below[position]}")


def _kept(columns: Sequence[str], cells: Sequence[Sequence[str]], optional: Sequence[str], *, room: int) -> list[int]:
    kept = [at for at in range(len(columns)) if any(row[at] for row in cells)]

    def needed() -> int:
        fixed = [at for at in kept if at < len(columns) - 1]
        return sum(2 + max(cell_len(columns[at]), *(cell_len(row[at]) for row in cells)) for at in fixed) - 2

    for name in optional:
        if needed() > room:
            kept = [at for at in kept if columns[at] != name]
    return kept


def _lines(row: Sequence[str], widths: Mapping[int, int], *, last: int, room: int) -> Iterator[str]:
    """The row as one line, and what is too long of its last cell in further ones."""
    line, used, padding, rest = "", 0, "", ""
    for at, width in widths.items():
        if at == last and used + len(padding) + cell_len(row[at]) > room:
            rest = row[at]
            break
        if row[at]:
            line += padding + _coloured(row[at])
            used, padding = used + len(padding) + cell_len(row[at]), ""
        padding += " " * (width - cell_len(row[at]) + 2)
    yield line
    for part in textwrap.wrap(rest, max(20, room - 4)):
        yield f"    {part}"


def _coloured(cell: str) -> str:
    colour = COLOURS.get(cell)
    return cell if colour is None else typer.style(cell, dim=True) if colour == "dim" else typer.style(cell, fg=colour)


def cell_len(text: str) -> int:
    """How many places of a terminal the text takes."""
    from rich.cells import cell_len

    return cell_len(text)


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
