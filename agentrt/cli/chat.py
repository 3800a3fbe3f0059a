"""``agentrt chat``: a conversation through the database, as any client would have it."""

from __future__ import annotations

import asyncio
import getpass
import io
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentrt.cli.border import DONE, FAILED, complain
from agentrt.cli.output import one_line, printable
from agentrt.cli.sessions import create_warning, database, idle
from agentrt.core.errors import ClientError
from agentrt.core.session import Status

if TYPE_CHECKING:
    from agentrt.client import Client
    from agentrt.core.journal import Entry
    from agentrt.core.session import Session, SessionId


def chat(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    *,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this session.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of a new session.")] = None,
) -> None:
    """Talk to an agent. Ctrl-C cancels what it is doing; Ctrl-D ends the chat, not the session."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a wrong byte is visible in the line, and no end of the chat
    with asyncio.Runner() as runner:
        client = runner.run(_connect())
        try:
            code = _Chat(runner, client, agent=agent, queue=queue).run(session)
        finally:
            runner.run(client.close())
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
        self._seen = 0
        self._session_id: SessionId | None = None

    def run(self, session: str | None) -> int:
        """Until the input ends. Exit code 1 if the last run failed."""
        head = self._runner.run(self._client.get(session)) if session else None
        if head is not None:
            self._seen, self._session_id = head.last_seq, head.id
        while (message := self._ask("you> ")) is not None:
            if not message.strip():
                continue
            head = self._turn(head, message)
        if head is None:
            return DONE
        typer.echo(f"session {head.id}: go on with agentrt chat {self._agent} --session {head.id}", err=True)
        return FAILED if head.status == Status.FAILED else DONE

    def _ask(self, prompt: str) -> str | None:
        if sys.stdin.isatty():
            sys.stdout.write(typer.style(prompt, fg="green", bold=True))
            sys.stdout.flush()
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            typer.echo()
            return None
        return line.rstrip("\n")

    def _turn(self, head: Session | None, message: str) -> Session | None:
        try:
            return self._wait(self._runner.run(self._send(message)))
        except KeyboardInterrupt:
            if self._session_id is None:
                raise
            return self._cancel(self._session_id)
        except ClientError as error:
            complain(str(error))
            return head if self._session_id is None else self._runner.run(self._client.get(self._session_id))

    async def _send(self, message: str) -> SessionId:
        if self._session_id is not None:
            await self._client.send(self._session_id, message)
            return self._session_id
        session_id = self._session_id = await self._client.create(self._agent, message, queue=self._queue)
        typer.echo(typer.style(f"session {session_id}", dim=True), err=True)
        if await create_warning(self._client, self._agent, self._queue or "default"):
            typer.echo("Ctrl-C gives up waiting and cancels the session; then Ctrl-D ends the chat.", err=True)
        return session_id

    def _wait(self, session_id: SessionId) -> Session:
        while True:
            head = self._runner.run(self._follow(session_id))
            if head.status != Status.SUSPENDED or not self._decide(head):
                return head

    async def _follow(self, session_id: SessionId) -> Session:
        stream = self._client.follow(session_id, after_seq=self._seen)
        try:
            head = await self._client.get(session_id)
            if idle(head) and head.last_seq <= self._seen:
                return head
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
        async def cancel() -> Session:
            head = await self._client.get(session_id)
            if not head.status.terminal:
                await self._client.cancel(session_id, reason="interrupted in the chat")
            return await self._client.get(session_id)

        head = self._runner.run(cancel())
        self._seen = head.last_seq
        typer.echo(typer.style("\ncancelled", fg="yellow"))
        return head

    def _decide(self, head: Session) -> bool:
        """Ask about each open approval; True if there were some. One that cannot be decided is asked about again."""
        rows = self._runner.run(self._client.pending_approvals(head.id))
        for row in rows:
            call = f"{one_line(row['tool'])}({one_line(row['arguments'])})"
            said = self._ask(f"approve {call}? [y/N] ")
            if said is None:
                return False
            decision: Literal["approved", "rejected"] = (
                "approved" if said.strip().lower() in ("y", "yes") else "rejected"
            )
            try:
                self._runner.run(self._decided(row, decision))
            except ClientError as error:
                complain(str(error))
        return bool(rows)

    async def _decided(self, row: Mapping[str, Any], decision: Literal["approved", "rejected"]) -> None:
        reviewer = getpass.getuser()
        await self._client.decide(row["id"], decision, reviewer=reviewer, arguments_hash=row["arguments_hash"])


def _show(entry: Entry) -> None:
    from agentrt.core.content import Text, ToolCall
    from agentrt.core.journal import AssistantMessage, ModelRetried, SessionFailed, SessionSuspended, ToolResult

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
        case SessionSuspended(suspension=suspension) if suspension.get("reason") != "input":
            _dim(f"waits: {suspension.get('reason')} {suspension.get('message') or ''}")
        case SessionFailed(outcome=outcome):
            complain(f"the run failed: {outcome.get('code')}: {outcome.get('message')}")
        case _:
            pass


def _dim(text: str) -> None:
    line = one_line(text)
    typer.echo(typer.style(f"  {line[:200]}{'…' if len(line) > 200 else ''}", dim=True))
