"""``agentrt workers list``."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrt.cli.output import print_json, print_table, relative
from agentrt.cli.sessions import Json, database
from agentrt.interrupts import run

app = typer.Typer(help="Look at the workers.", no_args_is_help=True)


@app.callback()
def workers() -> None:
    """Look at the workers."""


@app.command("list")
def list_workers(
    *,
    every: Annotated[bool, typer.Option("--all", help="Those that were stopped or declared dead, too.")] = False,
    as_json: Json = False,
) -> None:
    """List the workers that the database knows, newest first."""

    async def act() -> None:
        async with database() as client:
            rows = [row for row in await client.workers() if every or row.state in ("alive", "draining")]
        if as_json:
            print_json(rows)
            return
        rows.sort(key=lambda row: row.started_at, reverse=True)
        print_table(
            ("id", "name", "state", "busy", "renewed", "started", "version", "queues", "agents"),
            (
                (
                    row.id,
                    f"{row.name}:{row.pid}",
                    f"{row.state}, but gone" if row.expired else row.state,
                    f"{row.busy}/{row.slots}",
                    relative(row.renewed_at),
                    relative(row.started_at),
                    row.version,
                    ", ".join(row.queues),
                    ", ".join(row.agents),
                )
                for row in rows
            ),
            empty="No worker is running.",
            optional=("version", "started", "queues", "renewed"),
        )

    run(act())
