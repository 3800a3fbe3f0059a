"""What the demo's scripted model answers: a function of the conversation, so that it is the same after a takeover."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrt.core.journal import ToolOutcome
from agentrt.models.scripted import Call, Conversation, Reply, Scripted

LONG_LINE = 110
MANY_LINES = 350


def audit(conversation: Conversation) -> Scripted:
    """List, measure, report, summarise."""
    done = {result.tool for result in conversation.results}
    if "list_files" not in done:
        return Reply(text="I will look for the largest files first.", calls=[Call("list_files", {"limit": 6})])
    paths = _value(conversation, "list_files")
    if "measure_file" not in done:
        return Reply(text=f"Measuring {len(paths)} files.", calls=[Call("measure_file", {"path": p}) for p in paths])
    measures = [json.loads(r.content) for r in conversation.results if r.tool == "measure_file" and r.outcome == "ok"]
    if "write_report_row" not in done:
        rows = [_row(path, measure) for path, measure in zip(paths, measures, strict=False)]
        return Reply(text="Now one row for each file.", calls=[Call("write_report_row", row) for row in rows])
    written = [r for r in conversation.results if r.tool == "write_report_row" and r.outcome is ToolOutcome.OK]
    total = sum(measure["lines"] for measure in measures)
    return f"Audited {len(measures)} files with {total} lines; {len(written)} rows are in the report."


def _value(conversation: Conversation, name: str) -> Any:
    return next(json.loads(result.content) for result in conversation.results if result.tool == name)


def _row(path: str, measure: Mapping[str, int]) -> dict[str, object]:
    verdict = (
        "too long" if measure["lines"] > MANY_LINES else "long lines" if measure["longest"] > LONG_LINE else "fine"
    )
    return {"path": path, "lines": measure["lines"], "verdict": verdict}
