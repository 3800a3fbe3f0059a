"""``agentrt worker``: the daemon."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentrt.cli.options import agents_option, text, text_option, whole


def worker(
    *,
    agents: Annotated[
        list[str] | None,
        agents_option("May be repeated."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            parser=text("--queue"),
            metavar="NAME",
            help="A queue to serve; AGENTRT_QUEUES. May be repeated.",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            parser=whole("--slots", 1, 10_000), metavar="NUMBER", help="Sessions at once, 1 to 10,000; AGENTRT_SLOTS."
        ),
    ] = None,
    name: Annotated[str | None, text_option("--name", "The worker's name, for people; AGENTRT_WORKER_NAME.")] = None,
) -> None:
    """Run sessions until SIGTERM or Ctrl-C, which drains; a second one cuts the drain short."""
    from agentrt.app import run_worker
    from agentrt.settings import Settings

    given: dict[str, Any] = {"agents": _joined(agents), "queues": _joined(queue), "slots": slots, "worker_name": name}
    settings = Settings(**{setting: value for setting, value in given.items() if value is not None})
    raise typer.Exit(run_worker(settings))


def _joined(given: list[str] | None) -> str | None:
    return ",".join(given) if given else None
