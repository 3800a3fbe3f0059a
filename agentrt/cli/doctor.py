"""``agentrt doctor``: settings, agents and database, as a worker here would meet them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from agentrt.cli.border import DONE, FAILED
from agentrt.cli.output import print_json, printable
from agentrt.core.finding import Finding, Level
from agentrt.interrupts import run

if TYPE_CHECKING:
    from agentrt.settings import Settings

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Look for what is wrong: ok, warning or problem, and what to do. Exit code 1 if there is a problem."""
    from agentrt.settings import Settings

    settings = Settings()

    async def act() -> list[Finding]:
        findings = []
        async for finding in _findings(settings):
            findings.append(finding)
            if not as_json:
                level = typer.style(f"{finding.level:<8}", fg=COLOURS[finding.level], bold=True)
                typer.echo(f"{level} {finding.check:<15} {printable(finding.text)}")
        return findings

    findings = run(act())
    if as_json:
        print_json(findings)
    raise typer.Exit(FAILED if any(finding.level == "problem" for finding in findings) else DONE)


async def _findings(settings: Settings) -> AsyncIterator[Finding]:
    from agentrt.app import examine

    for finding in (*_of_settings(), *_of_agents(settings)):
        yield finding
    if settings.database_url is None:
        yield Finding("database", Level.PROBLEM, "AGENTRT_DATABASE_URL is not set: set it to your database's URL")
        return
    async for finding in examine(settings):
        yield finding


def _of_settings() -> Iterator[Finding]:
    from agentrt.settings import unknown_variables

    warnings = unknown_variables()
    yield from (Finding("settings", Level.WARNING, warning) for warning in warnings)
    if not warnings:
        yield Finding("settings", Level.OK, "all are known and go together")


def _of_agents(settings: Settings) -> Iterator[Finding]:
    from agentrt.app import load_agents

    loaded = load_agents(settings)
    if not settings.agents:
        text = "none are named, so no worker can start here: name modules or files in AGENTRT_AGENTS"
        yield Finding("agents", Level.WARNING, text)
    yield from (Finding("agents", Level.PROBLEM, problem) for problem in loaded.registry.problems)
    yield from (Finding("agents", Level.WARNING, warning) for warning in loaded.registry.warnings())
    for name, agent in loaded.registry.agents.items():
        if why := loaded.unavailable.get(name):
            yield Finding("agents", Level.PROBLEM, f"{name} cannot be offered: {why}")
        else:
            yield Finding("agents", Level.OK, f"{name} ({agent.model_name})")
