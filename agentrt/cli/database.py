"""Commands about the database: ``agentrt migrate``, ``agentrt prune``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from agentrt.cli.border import DONE, FAILED, warn
from agentrt.cli.output import print_json
from agentrt.cli.sessions import database
from agentrt.core.errors import InvalidArgument
from agentrt.interrupts import run


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if something is pending.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be applied.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring the database's schema up to this version; safe while workers run."""
    from agentrt import app
    from agentrt.settings import Settings

    url = Settings().require_direct_database_url()
    if check or dry_run:
        names = run(app.pending_migrations(url))
        if as_json:
            print_json({"pending": names}, indent=None)
        else:
            for name in names:
                typer.echo(f"pending  {name}")
            if not names:
                typer.echo("The schema is up to date.")
        raise typer.Exit(FAILED if check and names else DONE)
    names = run(app.migrate(url, notice=warn))
    if as_json:
        print_json({"applied": names}, indent=None)
        return
    for name in names:
        typer.echo(f"applied  {name}")
    typer.echo("The schema is up to date.")


def prune(
    *,
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Ended longer ago: 90d, 12h, 30min, 45s.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete sessions that ended long ago, with their journals, in small batches: it may be stopped and run again."""
    seconds = parse_duration(older_than)
    if not yes:
        run(_reach())
        typer.confirm(f"Delete all sessions that ended more than {older_than} ago, with their journals?", abort=True)

    async def act() -> int:
        from rich.console import Console

        deleted = 0
        async with database() as client:
            with Console(stderr=True).status("deleting …") as status:
                while some := await client.prune(seconds):
                    deleted += some
                    status.update(f"deleting … {deleted:,} sessions so far")
        return deleted

    deleted = run(act())
    if as_json:
        print_json({"deleted": deleted}, indent=None)
    else:
        typer.echo(f"{deleted} sessions deleted")


async def _reach() -> None:
    """Nobody is asked about a database that does not answer."""
    async with database():
        pass


_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MOST_SECONDS = 1_000 * 360 * 86_400  # with the database's years


def parse_duration(text: str) -> float:
    """Seconds of ``90d``, ``1.5h``, ``30 min``.

    Raises:
        InvalidArgument: it is written in another way.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidArgument(f"--older-than {text!r:.50} is no length of time: write it as 90d, 12h, 30min or 45s")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _MOST_SECONDS:
        raise InvalidArgument(
            f"--older-than {text!r:.50} is longer than 1,000 years: write it as 90d, 12h, 30min or 45s"
        )
    return seconds
