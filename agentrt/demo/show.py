"""What the demo prints: the journal, line by line, with the worker behind each entry."""

from __future__ import annotations

from collections.abc import Mapping
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

    def entry(self, entry: Entry) -> None:
        """One line: seq, token, worker, type, and what is worth seeing of it."""
        worker = "client" if entry.worker_id is None else self._names.get(entry.worker_id, "?")
        colour = self._colours.setdefault(worker, _COLOURS[len(self._colours) % len(_COLOURS)])
        line = Line(f"{entry.seq:>4}  token {entry.fencing_token}  ")
        line.append(f"{worker:<9}", style=colour).append(f"  {entry.data.type:<18} ", style="bold")
        line.append(_what(entry), style="bold red" if isinstance(entry.data, SessionOrphaned) else "dim")
        line.truncate(max(60, self._console.width), overflow="ellipsis")
        self._console.print(line, soft_wrap=True)

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
    return text.replace("\n", " ")
