"""``agentrt sessions …``: what a client does, from a shell."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from agentrt.cli.border import DONE, warn
from agentrt.cli.following import WorkerNames, follow_entries, printer, warn_if_unserved
from agentrt.cli.options import (
    config_of,
    labels,
    limit_option,
    moment,
    one_of,
    read_message,
    run_option,
    setting,
    text_option,
    uuid,
    whole,
)  # fmt: skip
from agentrt.cli.output import print_facts, print_json, print_table, relative
from agentrt.core.session import Status
from agentrt.interrupts import run

if TYPE_CHECKING:
    from agentrt.app import Connecting
    from agentrt.client import Client
    from agentrt.core.session import Session

app = typer.Typer(help="Create sessions, talk to them, look at them.", no_args_is_help=True)

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
MessageArgument = Annotated[str, typer.Argument(help="The message; - reads it from standard input.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Then show entries until the run has ended.")]


class WhenRunning(StrEnum):
    """What a message does to a session that runs."""

    STEER = "steer"
    QUEUE = "queue"
    INTERRUPT = "interrupt"
    REJECT = "reject"


def database() -> Connecting:
    """A client for the database of the settings."""
    from agentrt.app import connect
    from agentrt.settings import Settings

    settings = Settings()
    direct_url = settings.direct_database_url or ""
    return connect(settings.require_database_url(), direct_url=direct_url, outage=_tell_outage)


def _tell_outage(problem: str | None) -> None:
    if problem is None:
        typer.echo("The database answers again.", err=True)
    else:
        warn(f"{problem}. Trying again; Ctrl-C leaves, the session goes on.")


@app.command()
def create(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    message: MessageArgument,
    *,
    queue: Annotated[str | None, text_option("--queue", "Queue; 'default' when left out.")] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            parser=whole("--priority", -32_768, 32_767),
            metavar="NUMBER",
            help="Higher is claimed first; 0 when left out.",
        ),
    ] = None,
    ready_at: Annotated[
        datetime | None,
        typer.Option(
            parser=moment("--ready-at"), metavar="TIME", help="Not claimed before this time: 2030-01-31T09:00+01:00."
        ),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label; may be repeated.")] = None,
    config: Annotated[str | None, typer.Option(metavar="JSON", help="Keys limits, model, instructions.")] = None,
    tenant: Annotated[str | None, text_option("--tenant", "Tenant.")] = None,
    dedup_key: Annotated[str | None, text_option("--dedup-key", "The same key again gives the same session.")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            parser=whole("--max-attempts", 1, 1_000), metavar="NUMBER", help="Crashes in a row after which a run fails."
        ),
    ] = None,
    session_id: Annotated[
        UUID | None, typer.Option("--id", parser=uuid("--id"), metavar="UUID", help="The session's id, not a new one.")
    ] = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Create a session with its first message, and print its id."""
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "ready_at": ready_at,
        "labels": labels(label),
        "config": config_of(config),
        "tenant": tenant,
        "dedup_key": dedup_key,
        "max_attempts": setting("max_attempts") if max_attempts is None else max_attempts,
        "id": session_id,
    }

    async def act() -> int:
        async with database() as client:
            created = await client.create(agent, read_message(message), **options)
            if as_json:
                print_json({"session_id": created}, indent=None)
            else:
                typer.echo(str(created))
            if not follow:
                await warn_if_unserved(client, agent, queue or "default")
            return await follow_entries(client, created, after_seq=0, as_json=as_json) if follow else DONE

    raise typer.Exit(run(act()))


@app.command("list")
def list_sessions(
    *,
    status: Annotated[
        Status | None,
        typer.Option(
            parser=one_of("--status", Status), metavar="STATUS", help=f"Only in this status: {', '.join(Status)}."
        ),
    ] = None,
    agent: Annotated[str | None, text_option("--agent", "Only of this agent.")] = None,
    queue: Annotated[str | None, text_option("--queue", "Only in this queue.")] = None,
    tenant: Annotated[str | None, text_option("--tenant", "Only of this tenant.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this label.")] = None,
    limit: Annotated[int, limit_option("At most so many, newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List sessions, newest first."""

    async def act() -> None:
        async with database() as client:
            rows = await client.list(
                status=status, agent=agent, queue=queue, tenant=tenant, labels=labels(label), limit=limit
            )
        if as_json:
            print_json([dict(row) for row in rows])
            return
        columns = ("id", "agent", "queue", "status", "run", "turns", "created", "labels", "waits for")
        print_table(
            columns,
            (_row(row) for row in rows),
            empty="There are no such sessions.",
            optional=("queue", "run", "turns", "labels", "created"),
        )

    run(act())


@app.command()
def show(session: SessionArgument, *, as_json: Json = False) -> None:
    """Show a session and its journal."""

    async def act() -> None:
        async with database() as client:
            head = await client.get(session)
            entries = [entry async for entry in client.read(session)]
            worker, names = await worker_name(client, head), WorkerNames(client)
            for entry in entries:
                await names.learn(entry)
        if as_json:
            from dataclasses import asdict

            from agentrt.cli.entries import as_json as entry_json

            print_json({**asdict(head), "journal": [entry_json(entry) for entry in entries]})
            return
        print_facts(_facts(head, worker))
        typer.echo()
        show_entry = printer(as_json=False, names=names)
        for entry in entries:
            show_entry(entry)

    run(act())


@app.command()
def follow(
    session: SessionArgument,
    *,
    after_seq: Annotated[
        int,
        typer.Option(parser=whole("--after-seq", 0, 2**63 - 1), metavar="SEQ", help="Only entries behind this seq."),
    ] = 0,
    stay: Annotated[bool, typer.Option("--stay", help="Go on after the run has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Show a session's entries as they are committed, until its run has ended or it waits.

    Exit code 1 if the run failed or was cancelled. With --json one entry per line.
    """

    async def act() -> int:
        async with database() as client:
            return await follow_entries(
                client, (await client.get(session)).id, after_seq=after_seq, as_json=as_json, stay=stay
            )

    raise typer.Exit(run(act()))


@app.command()
def send(
    session: SessionArgument,
    message: MessageArgument,
    *,
    when_running: Annotated[
        WhenRunning | None,
        typer.Option(
            parser=one_of("--when-running", WhenRunning),
            metavar="HOW",
            help=f"If a run is on: {', '.join(WhenRunning)}; steer when left out.",
        ),
    ] = None,
    request_id: Annotated[str | None, text_option("--request-id", "The same id again sends nothing.")] = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Send a message to a session, and print the seq of its entry."""

    async def act() -> int:
        async with database() as client:
            head = await client.get(session)
            how: Any = None if when_running is None else when_running.value
            seq = await client.send(session, read_message(message), when_running=how, request_id=request_id)
            if as_json:
                print_json({"session_id": head.id, "seq": seq}, indent=None)
            elif not follow:
                typer.echo(str(seq))
            return await follow_entries(client, head.id, after_seq=seq - 1, as_json=as_json) if follow else DONE

    raise typer.Exit(run(act()))


@app.command()
def cancel(
    session: SessionArgument,
    *,
    reason: Annotated[str | None, text_option("--reason", "Kept in the journal.")] = None,
    run_number: Annotated[int | None, run_option("Only if this run is on.")] = None,
    as_json: Json = False,
) -> None:
    """Cancel a session at once."""

    async def act() -> Status:
        async with database() as client:
            return await client.cancel(session, reason=reason, run=run_number)

    print_status(run(act()), session, as_json=as_json)


def print_status(status: Status, session: str, *, as_json: bool) -> None:
    """Print what a command left the session in."""
    if as_json:
        print_json({"session_id": session, "status": status}, indent=None)
    else:
        typer.echo(str(status))


# --- who is there ----------------------------------------------------------------------------------------------------


async def worker_name(client: Client, head: Session) -> str | None:
    """The name of the worker that the session runs on; None if it runs on none."""
    if head.lease_owner is None:
        return None
    names = {row.id: row.name for row in await client.workers()}
    return names.get(head.lease_owner, str(head.lease_owner))


# --- what they see --------------------------------------------------------------------------------------------------


def _row(row: Any) -> tuple[object, ...]:
    return (
        row["id"], row["agent"], row["queue"], row["status"], row["run"], row["turns"], relative(row["created_at"]),
        " ".join(f"{key}={value}" for key, value in row["labels"].items()), row.get("waiting_for") or "",
    )  # fmt: skip


def _facts(head: Session, worker: str | None) -> dict[str, object]:
    reason = None
    if head.suspension:
        reason = f"{head.suspension.get('reason')}: {head.suspension.get('message')}"
    elif head.outcome:
        reason = head.outcome.get("message") or head.outcome.get("text") or head.outcome.get("reason")
    return {
        "session": head.id,
        "agent": f"{head.agent} (queue {head.queue}, priority {head.priority})",
        "status": f"{head.status}, archived" if head.archived_at else head.status,
        "": reason,
        "run": f"{head.run}, attempt {head.attempt} of {head.max_attempts}",
        "worker": worker,
        "ready": relative(head.ready_at) if head.status == Status.QUEUED else None,
        "turns": f"{head.turns} ({head.input_tokens:,} tokens in, {head.output_tokens:,} out, cost {head.cost:.4f})",
        "created": f"{relative(head.created_at)} ({head.created_at:%Y-%m-%d %H:%M:%S} UTC)",
        "finished": relative(head.finished_at) if head.finished_at else None,
        "labels": " ".join(f"{key}={value}" for key, value in head.labels.items()) or None,
        "tenant": head.tenant,
    }
