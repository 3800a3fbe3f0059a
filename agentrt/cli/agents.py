"""``agentrt agents …``: what the modules and files of AGENTRT_AGENTS hold."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrt.cli.border import FAILED, complain, warn
from agentrt.cli.options import agents_option
from agentrt.cli.output import print_json, print_table

_NONE = "There are no agents: name modules or files that hold some in AGENTRT_AGENTS."

app = typer.Typer(help="Look at the agents that a worker here would serve.", no_args_is_help=True)


@app.callback()
def agents() -> None:
    """Look at the agents that a worker here would serve."""


@app.command("list")
def list_agents(
    *,
    agents: Annotated[
        list[str] | None,
        agents_option("May be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the agents, and why one would not be offered; exit code 1 if a module or file cannot be loaded."""
    from agentrt.app import load_agents
    from agentrt.settings import Settings

    loaded = load_agents(Settings(agents=",".join(agents)) if agents else Settings())
    if as_json:
        rows = [
            {
                "name": agent.name,
                "model": agent.model_name,
                "tools": sorted(agent.tools),
                "version": agent.version,
                "problem": loaded.unavailable.get(agent.name),
            }
            for agent in loaded.registry.agents.values()
        ]
        print_json({"agents": rows, "problems": loaded.registry.problems, "warnings": loaded.registry.warnings()})
    else:
        print_table(
            ("agent", "model", "tools", "version", "problem"),
            (
                (
                    agent.name,
                    agent.model_name,
                    ", ".join(sorted(agent.tools)),
                    agent.version,
                    loaded.unavailable.get(agent.name, ""),
                )
                for agent in loaded.registry.agents.values()
            ),
            empty=_NONE if not loaded.registry.problems else None,
            optional=("version",),
        )
        for warning in loaded.registry.warnings():
            warn(warning)
        for problem in loaded.registry.problems:
            complain(problem)
    if loaded.registry.problems:
        raise typer.Exit(FAILED)
