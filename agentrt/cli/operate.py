"""``agentrt sessions resume|retry|archive|release``: what an operator does."""

from __future__ import annotations

import re
from typing import Annotated, Any
from uuid import UUID

import typer

from agentrt.cli.border import DONE, FAILED, complain
from agentrt.cli.options import one_of, run_option, text_option
from agentrt.cli.output import print_json
from agentrt.cli.sessions import Json, SessionArgument, app, database, print_status
from agentrt.core.errors import ClientError, InvalidArgument
from agentrt.core.session import Status, SuspendReason
from agentrt.interrupts import run

BATCH = 500
"""Sessions that a bulk command looks at at once."""


@app.command()
def resume(
    session: Annotated[str | None, typer.Argument(metavar="SESSION", help="The session's id.")] = None,
    *,
    reason: Annotated[
        SuspendReason | None,
        typer.Option(
            parser=one_of("--reason", SuspendReason),
            metavar="REASON",
            help=f"Instead of one session: all that wait for this reason ({', '.join(SuspendReason)}).",
        ),
    ] = None,
    agent: Annotated[str | None, text_option("--agent", "With --reason: only of this agent.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Although approvals are open; they become obsolete.")] = False,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="New limit: turns, tokens, cost, running_seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wake a suspended session, or all that wait for one reason."""
    if (session is None) == (reason is None):
        raise InvalidArgument("name either one session, or all that wait for a reason: --reason blocked --agent NAME")
    limits = _limits(limit)

    async def one(session: str) -> None:
        async with database() as client:
            status = await client.resume(session, force=force or None, limits=limits)
        print_status(status, session, as_json=as_json)

    async def many(reason: SuspendReason) -> int:
        resumed, failed = [], []
        async with database() as client:
            seen: UUID | None = None
            while rows := await client.list(
                status=Status.SUSPENDED, agent=agent, reason=reason, before=seen, limit=BATCH
            ):
                for row in rows:
                    try:
                        await client.resume(row["id"], force=force or None, limits=limits)
                        resumed.append(row["id"])
                    except ClientError as error:  # somebody else woke it, or approvals are open
                        failed.append((row["id"], str(error)))
                seen = rows[-1]["id"]
        if as_json:
            print_json({"resumed": resumed, "failed": dict(failed)})
        else:
            for session_id in resumed:
                typer.echo(str(session_id))
            for _, problem in failed:
                complain(problem)
            typer.echo(f"{len(resumed)} resumed, {len(failed)} not", err=True)
        return FAILED if failed else DONE

    if session is not None:
        run(one(session))
    elif reason is not None:
        raise typer.Exit(run(many(reason)))


def _limits(given: list[str] | None) -> dict[str, Any] | None:
    if not given:
        return None
    limits: dict[str, Any] = {}
    for pair in given:
        name, _, number = pair.partition("=")
        if re.fullmatch(r"[0-9]{1,18}", number):
            limits[name] = int(number)
        elif re.fullmatch(r"[0-9]{0,18}\.[0-9]{1,18}", number):
            limits[name] = float(number)
        else:
            raise InvalidArgument(f"--limit {pair} has no NAME=NUMBER form; write it as --limit turns=200")
    return limits


@app.command()
def retry(
    session: SessionArgument,
    *,
    run_number: Annotated[int | None, run_option("Only if this was the run.")] = None,
    as_json: Json = False,
) -> None:
    """Start a new run of a failed or cancelled session, without a new message."""

    async def act() -> Status:
        async with database() as client:
            return await client.retry(session, run=run_number)

    print_status(run(act()), session, as_json=as_json)


@app.command()
def archive(session: SessionArgument, *, as_json: Json = False) -> None:
    """Put an ended session away: from then on it can only be read."""

    async def act() -> Status:
        async with database() as client:
            return await client.archive(session)

    print_status(run(act()), session, as_json=as_json)


@app.command()
def release(
    session: SessionArgument,
    *,
    reason: Annotated[str | None, text_option("--reason", "Kept in the journal.")] = None,
    as_json: Json = False,
) -> None:
    """Take a running session from its worker and queue it again; costs no attempt."""

    async def act() -> Status:
        async with database() as client:
            return await client.release(session, reason=reason)

    print_status(run(act()), session, as_json=as_json)
