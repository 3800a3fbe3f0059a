"""The demo's agent: it audits the Python files of a folder and writes one report row for each.

The folder is the session's label ``folder``. ``DEMO_MODEL`` (``provider:name``) puts a real model in
the script's place.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentrt.agents import Agent, ToolContext, ToolError, tool
from agentrt.demo.script import audit
from agentrt.models.scripted import ScriptedModel

ROW_SECONDS = 0.6  # what writing a row takes in a slower world; long enough to be killed in


@tool(effect="read")
def list_files(ctx: ToolContext, limit: int = 6) -> list[str]:
    """List the largest Python files of the folder, by path relative to it."""
    folder = _folder(ctx)
    found = sorted((path for path in folder.rglob("*.py") if path.is_file()), key=lambda path: -path.stat().st_size)
    return [path.relative_to(folder).as_posix() for path in found[: max(1, min(limit, 50))]]


@tool(effect="read")
def measure_file(ctx: ToolContext, path: str) -> dict[str, int]:
    """Count the lines, the blank lines and the longest line of one file."""
    folder = _folder(ctx)
    file = (folder / path).resolve()
    if not file.is_relative_to(folder):
        raise ToolError(f"{path} is outside the folder")
    if not file.is_file():
        raise ToolError(f"there is no file {path}; list_files gives the paths")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    blank = sum(not line.strip() for line in lines)
    return {"lines": len(lines), "blank": blank, "longest": max(map(len, lines), default=0)}


@tool(effect="transactional", sequential=True)
async def write_report_row(ctx: ToolContext, path: str, lines: int, verdict: str) -> str:
    """Write one row of the report: a file's path, its number of lines, and a verdict of a few words."""
    await ctx.connection.execute(
        "insert into demo_report (call_id, path, lines, verdict) values ($1, $2, $3, $4)",
        ctx.call_id,
        path,
        lines,
        verdict,
    )
    _tell_that_we_are_inside(ctx)
    await asyncio.sleep(ROW_SECONDS)
    return f"row written for {path}"


def _folder(ctx: ToolContext) -> Path:
    return Path(ctx.labels["folder"]).resolve()


def _tell_that_we_are_inside(ctx: ToolContext) -> None:
    """Leave a file that names this process, so that the demo can kill it between the row and the commit."""
    folder = ctx.labels.get("markers")
    if folder and Path(folder).is_dir():
        (Path(folder) / str(os.getpid())).touch()


auditor = Agent(
    "auditor",
    model=os.environ.get("DEMO_MODEL") or ScriptedModel(audit),
    instructions=(
        "You audit Python files. List the files, measure each of them, write exactly one report row for each file "
        "(verdict: fine, long lines, or too long), and then answer with a summary of two or three sentences."
    ),
    tools=[list_files, measure_file, write_report_row],
)
