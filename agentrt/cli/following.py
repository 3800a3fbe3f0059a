"""What happens in a session, shown as it happens; and whether anybody is there to make it happen."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from agentrt.cli.border import DONE, FAILED, warn
from agentrt.cli.lines import reader_watched, unless_told
from agentrt.cli.output import print_json, printable
from agentrt.core.session import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrt.client import Client
    from agentrt.core.journal import Entry
    from agentrt.core.session import Session, SessionId, WorkerId

PATIENCE_SECONDS = 2.0
"""A worker that was started just before the session is given so long until it is missed."""
_LOOK_SECONDS = 0.2


async def follow_entries(
    client: Client, session_id: SessionId, *, after_seq: int, as_json: bool, stay: bool = False
) -> int:
    """Show entries until the run has ended, or waits; the exit code. ``stay``: until nobody reads any more."""
    seen = _Seen()
    shown = _show_entries(client, session_id, after_seq=after_seq, as_json=as_json, stay=stay, seen=seen)
    try:
        code = await unless_told(shown, reader_watched)
    except asyncio.CancelledError:  # by Ctrl-C, which ends a look and no session
        if seen.goes_on:
            behind = "\n" if sys.stderr.isatty() else ""  # ^C stands there
            typer.echo(f"{behind}the session goes on; agentrt sessions follow {session_id} shows it", err=True)
        raise
    return DONE if code is None else code


@dataclass(slots=True)
class _Seen:
    """What was seen of a session: whether it goes on, as far as that is known."""

    goes_on: bool = False


async def _show_entries(
    client: Client, session_id: SessionId, *, after_seq: int, as_json: bool, stay: bool, seen: _Seen
) -> int:
    from agentrt.core.journal import TERMINAL, SessionSuspended

    names = WorkerNames(client)
    show_entry = printer(as_json=as_json, names=names)
    head = await client.get(session_id)
    seen.goes_on = not idle(head)
    if head.last_seq <= after_seq:
        if idle(head) and not stay:
            return _exit_code(head)
        await warn_if_waiting(client, head)
    async with aclosing(client.follow(session_id, after_seq=after_seq)) as entries:
        async for entry in entries:
            if not as_json:
                await names.learn(entry)
            show_entry(entry)
            ended = isinstance(entry.data, (*TERMINAL, SessionSuspended))
            if entry.seq > head.last_seq:
                seen.goes_on = not ended
            if entry.seq == head.last_seq:  # all that there was is shown
                await warn_if_waiting(client, head)
            if stay or entry.seq < head.last_seq:
                continue
            if idle(head) or ended:
                head = await client.get(session_id)
                if idle(head) and head.last_seq == entry.seq:
                    break
    return _exit_code(head)


def idle(head: Session) -> bool:
    """Nothing happens to the session until somebody does something."""
    return head.status.terminal or head.status == Status.SUSPENDED


def _exit_code(head: Session) -> int:
    return FAILED if head.status in (Status.FAILED, Status.CANCELLED) else DONE


# --- who is there ----------------------------------------------------------------------------------------------------


async def warn_if_waiting(client: Client, head: Session) -> bool:
    """Warn if the session is queued and nobody comes to run it; True if so."""
    if head.status != Status.QUEUED:
        return False
    return await warn_if_unserved(client, head.agent, head.queue, patience_seconds=PATIENCE_SECONDS)


async def warn_if_unserved(client: Client, agent: str, queue: str, *, patience_seconds: float = 0) -> bool:
    """Warn if no worker serves the agent in the queue, nor does so soon; True if so."""
    until = time.monotonic() + patience_seconds
    while (missing := await _missing(client, agent, queue)) is not None:
        if time.monotonic() >= until:
            warn(missing)
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return False


async def _missing(client: Client, agent: str, queue: str) -> str | None:
    workers = [worker for worker in await client.workers() if worker.state == "alive" and not worker.expired]
    if any(agent in worker.agents and queue in worker.queues for worker in workers):
        return None
    agents = sorted({name for worker in workers for name in worker.agents})
    if agent in agents:
        queues = sorted({name for worker in workers if agent in worker.agents for name in worker.queues})
        return f"no running worker serves queue {queue} for agent {agent}; it is served in: {', '.join(queues)}"
    if agents:
        return f"no running worker serves agent {agent}, so the session waits; known agents: {', '.join(agents)}"
    return f"no worker is running, so the session waits until one that serves agent {agent} starts"


class WorkerNames:
    """Names of workers by id, asked for when an entry bears an id that is new: most entries do not name theirs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: set[object] = set()
        self.known: dict[WorkerId, str] = {}

    async def learn(self, entry: Entry) -> None:
        """Know the worker of this entry, if anybody does."""
        if entry.worker_id is None or entry.worker_id in self.known or entry.worker_id in self._asked:
            return
        self._asked.add(entry.worker_id)
        self.known |= {row.id: row.name for row in await self._client.workers()}


# --- what they see ---------------------------------------------------------------------------------------------------


def printer(*, as_json: bool, names: WorkerNames) -> Callable[[Entry], Any]:
    """A function that prints an entry, for programs or for people."""
    from agentrt.cli import entries

    if as_json:
        return lambda entry: print_json(entries.as_json(entry), indent=None)

    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    lines = entries.EntryLines(names.known)

    def show_entry(entry: Entry) -> None:
        text, style = lines.line(entry)
        line = Text(printable(text), style=style)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)

    return show_entry
