"""What the demo prints: the journal, line by line, with the worker behind each entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from rich.console import Console
from rich.text import Text as Line

from agentrt.core.content import in_words
from agentrt.core.journal import (
    AssistantMessage,
    Entry,
    SessionClaimed,
    SessionCompleted,
    SessionFailed,
    SessionOrphaned,
    SessionResumed,
    ToolResult,
    UserMessage,
)

if TYPE_CHECKING:
    from agentrt.demo.run import Summary

_COLOURS = ("cyan", "magenta", "yellow", "blue")


class Show:
    """Prints to the terminal; ``quiet`` prints nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, highlight=False)
        self._names: dict[UUID, str] = {}
        self._colours: dict[str, str] = {}

    def say(self, text: str) -> None:
        self._console.print(text)

    def know(self, names: Mapping[UUID, str]) -> None:
        """Learn the workers' names."""
        self._names.update(names)

    def heading(self) -> None:
        """Names of the columns of what follows."""
        self._console.print(f"{'seq':>4} {'token':>5}  {'by':<8}  {'entry':<17}", style="dim", highlight=False)

    def entry(self, entry: Entry) -> None:
        """Seq, token, worker, type, and what is worth seeing of it; on a terminal in two lines at most."""
        worker = "client" if entry.worker_id is None else self._names.get(entry.worker_id, "?")
        colour = self._colours.setdefault(worker, _COLOURS[len(self._colours) % len(_COLOURS)])
        line = Line(f"{entry.seq:>4} {entry.fencing_token:>5}  ")
        line.append(f"{worker:<8}", style=colour).append(f"  {entry.data.type:<17}  ", style="bold")
        what = Line(_what(entry), style="bold red" if isinstance(entry.data, SessionOrphaned) else "dim")
        indent = line.cell_len
        for part in self._fitted(what, self._console.width - indent):
            part.rstrip()
            self._console.print(line.append_text(part), soft_wrap=True)
            line = Line(" " * indent)

    def _fitted(self, what: Line, room: int) -> Sequence[Line]:
        if not self._console.is_terminal:  # a pipe has no width
            return [what]
        first, *rest = what.wrap(self._console, max(20, room))
        if len(rest) > 1:
            rest[0].truncate(max(20, room) - 1)
            rest[0].append("…")
        return [first, *rest[:1]]

    def kill(self, name: str, pid: int) -> None:
        self._console.print(f"\n[bold red]SIGKILL to {name} (pid {pid}) between a report row and its commit[/]\n")

    def end(self, summary: Summary) -> None:
        """The closing figures."""
        takeover = "no takeover" if summary.takeover_seconds is None else f"{summary.takeover_seconds:.2f} s"
        self._console.print(
            f"\nstatus            {summary.status}"
            f"\nkilled            {summary.killed}"
            f"\ntaken over after  {takeover}"
            f"\nentries           {summary.entries}, lost {summary.entries_lost}"
            f"\neffects doubled   {summary.effects_doubled}"
        )
        verdict = (
            "[bold green]Nothing was lost and nothing was done twice.[/]" if summary.passed else "[bold red]Failed.[/]"
        )
        self._console.print(f"\n{verdict}")


def _what(entry: Entry) -> str:
    match entry.data:
        case UserMessage(content=content) | AssistantMessage(content=content):
            text = in_words(content)
        case ToolResult(tool=tool, outcome=outcome, content=content):
            text = f"{tool} → {outcome}: {content}"
        case SessionOrphaned(worker=worker):
            text = f"{worker or 'the owner'} is dead; the session is free again"
        case SessionResumed(repaired=repaired):
            text = f"closed: {', '.join(repaired)}"
        case SessionClaimed(worker=worker):
            text = f"by {worker}, attempt {entry.attempt}"
        case SessionCompleted(outcome=outcome) | SessionFailed(outcome=outcome):
            text = str(outcome.get("message") or outcome.get("text") or "")
        case _:
            text = ""
    return " ".join(text.split())
