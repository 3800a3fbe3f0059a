"""``agentrt chat``: a conversation through the database, as any client would have it."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from agentrt.cli.border import DONE, FAILED, complain
from agentrt.cli.following import idle, warn_if_waiting
from agentrt.cli.lines import Lines, unless_told
from agentrt.cli.options import text_option
from agentrt.cli.output import one_line, printable
from agentrt.cli.sessions import database
from agentrt.core.errors import ClientError, InvalidArgument
from agentrt.core.session import Status
from agentrt.interrupts import run

if TYPE_CHECKING:
    from agentrt.client import Client
    from agentrt.core.journal import Entry
    from agentrt.core.session import Session, SessionId

T = TypeVar("T")


def chat(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    *,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this session.")] = None,
    queue: Annotated[str | None, text_option("--queue", "Queue of a new session.")] = None,
) -> None:
    """Talk to an agent. Ctrl-C cancels what it is doing; Ctrl-D ends the chat at any time, not the session."""
    with asyncio.Runner() as runner:
        client = run(_connect(), runner=runner)
        try:
            code = _Chat(runner, client, agent=agent, queue=queue).run(session)
        finally:
            run(client.close(), runner=runner)
    raise typer.Exit(code)


async def _connect() -> Client:
    return await database()


class _Chat:
    """One conversation: reads a line, waits for the run's end, and so on."""

    def __init__(self, runner: asyncio.Runner, client: Client, *, agent: str, queue: str | None) -> None:
        self._runner = runner
        self._client = client
        self._agent = agent
        self._queue = queue
        self._lines = Lines()
        self._seen = 0
        self._session_id: SessionId | None = None
        self._left = False

    def run(self, session: str | None) -> int:
        """Until the input ends. Exit code 1 if the last run failed."""
        head = None
        try:
            if session is not None:
                head = self._come_back(session)
            while not self._left and (message := self._message()) is not None:
                if message.strip():
                    head = self._turn(head, message)
        finally:
            self._tell_the_way_back(head)
        return FAILED if head is not None and head.status == Status.FAILED else DONE

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(coroutine, runner=self._runner)

    def _tell_the_way_back(self, head: Session | None) -> None:
        if self._lines.kept:
            complain(f"not sent: {one_line(self._lines.kept)}")
        if self._session_id is not None:
            goes_on = (self._left and head is None) or (head is not None and not idle(head))
            state = " goes on" if goes_on else ""
            way = f"agentrt chat {self._agent} --session {self._session_id}"
            typer.echo(f"session {self._session_id}{state}: come back with {way}", err=True)

    def _message(self) -> str | None:
        try:
            return self._ask("you> ")
        except KeyboardInterrupt:  # nothing is on that could be cancelled
            typer.echo()
            return None

    def _ask(self, prompt: str) -> str | None:
        if self._lines.interactive:
            sys.stdout.write(typer.style(prompt, fg="green", bold=True))
            sys.stdout.flush()
        line = self._lines.next()
        if line is None:
            typer.echo()
        return line

    def _come_back(self, session: str) -> Session | None:
        """To a terminal with what was said since the last message; what goes on is waited for."""
        head = self._do(self._client.get(session))
        if head.agent != self._agent:
            raise InvalidArgument(
                f"session {head.id} is one of agent {head.agent}, not of {self._agent}: "
                f"agentrt chat {head.agent} --session {head.id} goes on with it"
            )
        self._session_id, self._seen = head.id, head.last_seq
        if not self._lines.interactive:
            return head
        self._seen = self._do(self._last_message(head.id))
        return self._turn(head, None)

    async def _last_message(self, session_id: SessionId) -> int:
        from agentrt.core.journal import UserMessage

        said = 0
        async for entry in self._client.read(session_id):
            if isinstance(entry.data, UserMessage):
                said = entry.seq
        return said

    def _turn(self, head: Session | None, message: str | None) -> Session | None:
        """Send the message, if there is one, and wait for what comes of it; None if the chat was left meanwhile."""
        try:
            if message is not None:
                self._do(self._send(message))
            return self._wait()
        except KeyboardInterrupt:
            if self._session_id is None:
                raise
            return self._cancel(self._session_id)
        except ClientError as error:
            complain(str(error))
            return head if self._session_id is None else self._do(self._client.get(self._session_id))

    async def _send(self, message: str) -> None:
        if self._session_id is not None:
            await self._client.send(self._session_id, message)
            return
        self._session_id = await self._client.create(self._agent, message, queue=self._queue)
        typer.echo(typer.style(f"session {self._session_id}", dim=True), err=True)

    def _wait(self) -> Session | None:
        while self._session_id is not None:
            head = self._do(self._follow_unless_left(self._session_id))
            if head is None:
                self._left = True
                typer.echo()
                return None
            if head.status != Status.SUSPENDED or not (self._decide(head) or self._do(self._went_on(head.id))):
                return head
        return None

    async def _went_on(self, session_id: SessionId) -> bool:
        """Another person decided what we would have asked about."""
        return not self._left and (await self._client.get(session_id)).last_seq > self._seen

    async def _follow_unless_left(self, session_id: SessionId) -> Session | None:
        return await unless_told(self._follow(session_id), self._lines.watched)

    async def _follow(self, session_id: SessionId) -> Session:
        stream = self._client.follow(session_id, after_seq=self._seen)
        try:
            head = await self._client.get(session_id)
            if idle(head) and head.last_seq <= self._seen:
                return head
            if await warn_if_waiting(self._client, head):
                how = "Ctrl-C gives up waiting and cancels the session; Ctrl-D leaves, and the session waits."
                typer.echo(how, err=True)
            async for entry in stream:
                self._seen = entry.seq
                _show(entry)
                if entry.seq >= head.last_seq:
                    head = await self._client.get(session_id)
                    if idle(head) and head.last_seq == entry.seq:
                        break
            return head
        finally:
            await stream.aclose()

    def _cancel(self, session_id: SessionId) -> Session:
        async def cancel() -> tuple[Session, bool]:
            try:
                await self._client.cancel(session_id, reason="interrupted in the chat")
            except ClientError:  # it has ended meanwhile
                return await self._client.get(session_id), False
            return await self._client.get(session_id), True

        head, cancelled = self._do(cancel())
        if cancelled:
            self._seen = head.last_seq
        typer.echo(typer.style("\ncancelled" if cancelled else "\nit has ended already", fg="yellow"))
        return head

    def _decide(self, head: Session) -> bool:
        """Ask about each open approval; True if there were some. One that cannot be decided is asked about again."""
        rows = self._do(self._client.pending_approvals(head.id))
        for row in rows:
            call = f"{one_line(row['tool'])}({one_line(row['arguments'])})"
            said = self._ask_yes_or_no(f"approve {call}? [y/N] ")
            comment = self._ask("why (Enter for no comment)? ") if said == "no" and self._lines.interactive else ""
            if said is None or comment is None:
                self._left = True
                return False
            try:
                self._do(self._decided(row, "approved" if said == "yes" else "rejected", comment=comment))
            except ClientError as error:
                complain(str(error))
        return bool(rows)

    def _ask_yes_or_no(self, prompt: str) -> Literal["yes", "no"] | None:
        """Until it is answered; None if it is left. What was typed ahead for the agent is no answer."""
        while (said := self._ask(prompt)) is not None:
            match said.strip().lower():
                case "y" | "yes":
                    return "yes"
                case "" | "n" | "no":
                    return "no"
                case _:
                    typer.echo(f"{one_line(said)!r:.60} is no answer: y approves, n or Enter rejects.", err=True)
        return None

    async def _decided(
        self, row: Mapping[str, Any], decision: Literal["approved", "rejected"], *, comment: str
    ) -> None:
        await self._client.decide(
            row["id"],
            decision,
            reviewer=getpass.getuser(),
            arguments_hash=row["arguments_hash"],
            comment=comment.strip() or None,
        )


def _show(entry: Entry) -> None:
    from agentrt.core.content import Text, ToolCall
    from agentrt.core.journal import (
        AssistantMessage,
        ModelRetried,
        SessionFailed,
        SessionOrphaned,
        SessionReleased,
        SessionSuspended,
        ToolResult,
    )

    match entry.data:
        case AssistantMessage(content=content):
            for block in content:
                match block:
                    case Text(text=text) if text.strip():
                        typer.echo(f"{typer.style('agent>', fg='blue', bold=True)} {printable(text)}")
                    case ToolCall(tool=tool, arguments=arguments):
                        _dim(f"{tool}({arguments})")
                    case _:
                        pass
        case ToolResult(tool=tool, outcome=outcome, content=text):
            _dim(f"{tool} {outcome}: {text}")
        case ModelRetried(message=text, delay_seconds=delay):
            _dim(f"the model did not answer ({text}); again in {delay:.0f} s")
        case SessionReleased(reason="crash", message=text):
            _dim(f"the run crashed: {text}")
        case SessionOrphaned(worker=worker):
            _dim(f"worker {worker or 'of the session'} is gone; the session is free for another one")
        case SessionSuspended(suspension=suspension) if suspension.get("reason") != "input":
            _dim(f"waits: {suspension.get('reason')} {suspension.get('message') or ''}")
        case SessionFailed(outcome=outcome):
            complain(f"the run failed: {outcome.get('code')}: {outcome.get('message')}")
        case _:
            pass


def _dim(text: str) -> None:
    line = one_line(text)
    typer.echo(typer.style(f"  {line[:200]}{'…' if len(line) > 200 else ''}", dim=True))
