"""``agentrt sessions approvals|approve|reject|answer``: what a session waits for, from a shell."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentrt.cli.options import limit_option, read_message, text_option
from agentrt.cli.output import print_json, print_table, relative
from agentrt.cli.sessions import Json, SessionArgument, app, database, print_status
from agentrt.core.errors import InvalidArgument, NotFound
from agentrt.core.session import Status
from agentrt.interrupts import run

if TYPE_CHECKING:
    from agentrt.client import Client

ApprovalArgument = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]
Reviewer = Annotated[str | None, text_option("--reviewer", "Who decides; your user name when left out.")]
Hash = Annotated[
    str | None, text_option("--arguments-hash", "Hash of the arguments that you saw; refused if they are others.")
]


@app.command()
def approvals(
    session: Annotated[str | None, typer.Argument(metavar="SESSION", help="Only of this session.")] = None,
    *,
    limit: Annotated[int, limit_option("At most so many, oldest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List what waits for a decision, oldest first."""

    async def act() -> None:
        async with database() as client:
            if session is not None:
                await client.get(session)  # "nothing waits" is no answer about a session that is not there
            rows = await client.pending_approvals(session, limit=limit)
        if as_json:
            print_json([dict(row) for row in rows])
            return
        columns = ("approval", "session", "agent", "tool", "reason", "requested", "expires", "arguments")
        print_table(
            columns,
            (_row(row) for row in rows),
            empty="Nothing waits for a decision.",
            optional=("session", "agent", "expires", "requested"),
            below=[f"agentrt sessions approve {row['id']} --arguments-hash {row['arguments_hash']}" for row in rows],
        )

    run(act())


def _row(row: Any) -> tuple[object, ...]:
    return (
        row["id"], row["session_id"], row["agent"], row["tool"], row["reason"] or "",
        relative(row["requested_at"]), "" if row["expires_at"] is None else relative(row["expires_at"]),
        row["arguments"],
    )  # fmt: skip


@app.command()
def approve(
    approval: ApprovalArgument,
    *,
    reviewer: Reviewer = None,
    arguments_hash: Hash = None,
    comment: Annotated[str | None, text_option("--comment", "Kept in the journal.")] = None,
    as_json: Json = False,
) -> None:
    """Approve a tool call: it runs once, with exactly the reviewed arguments."""
    _decide(approval, "approved", reviewer=reviewer, arguments_hash=arguments_hash, comment=comment, as_json=as_json)


@app.command()
def reject(
    approval: ApprovalArgument,
    *,
    reviewer: Reviewer = None,
    arguments_hash: Hash = None,
    comment: Annotated[str | None, text_option("--comment", "Why; the model reads it.")] = None,
    as_json: Json = False,
) -> None:
    """Reject a tool call."""
    _decide(approval, "rejected", reviewer=reviewer, arguments_hash=arguments_hash, comment=comment, as_json=as_json)


def _decide(
    approval: str,
    verdict: Literal["approved", "rejected"],
    *,
    reviewer: str | None,
    arguments_hash: str | None,
    comment: str | None,
    as_json: bool,
) -> None:
    async def act() -> Status:
        who = reviewer or getpass.getuser()
        async with database() as client:
            try:
                return await client.decide(
                    approval, verdict, reviewer=who, arguments_hash=arguments_hash, comment=comment
                )
            except NotFound as unknown:
                if not await _is_session(client, approval):
                    raise
                way = f"agentrt sessions approvals {approval} lists what it waits for"
                raise InvalidArgument(f"{approval} is a session, not an approval: {way}") from unknown

    status = run(act())
    if as_json:
        print_json({"approval_id": approval, "status": status}, indent=None)
    else:
        typer.echo(str(status))


async def _is_session(client: Client, given: str) -> bool:
    try:
        await client.get(given)
    except NotFound:
        return False
    return True


@app.command()
def answer(
    session: SessionArgument,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call's id.")],
    result: Annotated[str, typer.Argument(help="The result; - reads it from standard input.")],
    *,
    error: Annotated[bool, typer.Option("--error", help="The call failed, and this says why.")] = False,
    as_json: Json = False,
) -> None:
    """Give the result of a deferred tool call."""

    async def act() -> Status:
        async with database() as client:
            return await client.complete_tool_call(
                session, call, result=read_message(result), outcome="error" if error else None
            )

    print_status(run(act()), session, as_json=as_json)
