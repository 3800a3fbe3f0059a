"""The command line. Commands are thin and import what they need when they run, so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from agentrt.cli import (
    agents,
    approvals,
    chat,
    database,
    demo,
    dev,
    doctor,
    journal,
    operate,
    sessions,
    worker,
    workers,
)
from agentrt.cli.border import border

__all__ = ["app", "approvals", "main", "operate"]  # the two modules add commands to `sessions`

app = typer.Typer(
    name="agentrt",
    help="Durable LLM agent sessions in Postgres. Settings are AGENTRT_… variables; AGENTRT_DATABASE_URL comes first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("worker")(worker.worker)
app.command("dev")(dev.dev)
app.command("chat")(chat.chat)
app.command("migrate")(database.migrate)
app.command("doctor")(doctor.doctor)
app.command("plan")(journal.plan)
app.command("lint")(journal.lint)
app.command("prune")(database.prune)
app.command("demo")(demo.demo)
sessions.app.command("export")(journal.export)
sessions.app.command("import")(journal.import_)
app.add_typer(sessions.app, name="sessions")
app.add_typer(agents.app, name="agents")
app.add_typer(workers.app, name="workers")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("agentrt"))


def _version_alone(asked: object) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def before_any_command(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_version_alone, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take what stands before a command's name."""


def main() -> NoReturn:
    """The entry point ``agentrt``. Exit codes: 0 done, 1 the thing failed, 2 wrong use, 130 Ctrl-C."""
    border(app)
