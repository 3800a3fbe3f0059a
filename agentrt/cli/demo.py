"""``agentrt demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrt.cli.border import DONE, FAILED
from agentrt.interrupts import end_in_order


def demo(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of Python files to audit; the installed package when left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="A real model instead of the scripted one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill a worker in the middle of a session, and see another one finish it: no key, no Postgres needed."""
    from agentrt.demo import run as course

    if model is not None:
        from agentrt.models.provider import ProviderModel

        ProviderModel(model).check()  # before a database is started for it
    end_in_order()
    passed = course.run(folder=folder or _package(), model=model, as_json=as_json)
    raise typer.Exit(DONE if passed else FAILED)


def _package() -> Path:
    import agentrt

    return Path(agentrt.__file__).parent
