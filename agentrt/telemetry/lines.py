"""Which event becomes which log line: its name, its level and its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from uuid import UUID

from agentrt.core import events
from agentrt.core.events import Event

DEBUG, INFO, WARNING, ERROR = "debug", "info", "warning", "error"

NAMES: Mapping[type[Event], tuple[str, str]] = {
    events.WorkerStarted: ("worker.started", INFO),
    events.WorkerDraining: ("worker.draining", INFO),
    events.WorkerStopped: ("worker.stopped", INFO),
    events.WorkerStalled: ("worker.stalled", ERROR),
    events.WorkerAborted: ("worker.aborted", ERROR),
    events.WorkerReaped: ("worker.reaped", WARNING),
    events.ReapFailed: ("reap.failed", WARNING),
    events.SelfFenced: ("worker.self_fenced", ERROR),
    events.HeartbeatSucceeded: ("heartbeat.succeeded", DEBUG),
    events.HeartbeatFailed: ("heartbeat.failed", WARNING),
    events.SlotsChanged: ("slots.changed", DEBUG),
    events.ClaimFinished: ("claim.finished", DEBUG),
    events.ClaimFailed: ("claim.failed", WARNING),
    events.ListenerReconnected: ("listener.reconnected", WARNING),
    events.LoopLagged: ("loop.lagged", DEBUG),
    events.CommitFinished: ("commit.finished", DEBUG),
    events.CommitFailed: ("commit.failed", WARNING),
    events.AgentUnavailable: ("agent.unavailable", WARNING),
    events.WarningRaised: ("warning.raised", WARNING),
    events.SessionClaimed: ("session.claimed", INFO),
    events.SessionResumed: ("session.resumed", INFO),
    events.SessionReleased: ("session.released", INFO),
    events.SessionSuspended: ("session.suspended", INFO),
    events.SessionEnded: ("session.ended", INFO),
    events.SessionLost: ("lease.lost", WARNING),
    events.SessionCrashed: ("session.crashed", ERROR),
    events.TurnFinished: ("turn.finished", INFO),
    events.ModelRetried: ("model.retried", WARNING),
    events.UserCodeFailed: ("user_code.failed", WARNING),
    events.ToolFinished: ("tool.finished", INFO),
}
"""Name and level of the line that each event becomes."""

TEXT_LIMIT = 2_000  # error texts may quote a provider at length
TRACE_LIMIT = 20_000
_TRACES = ("traceback", "stack")
_KEYS = {"traceback": "exception"}  # structlog's word: its console writes such a text below the line


def heading(event: Event) -> tuple[str, str]:
    """Name and level of the line for ``event``."""
    name, level = NAMES[type(event)]
    match event:
        case events.SessionEnded(status="failed") | events.ToolFinished(outcome="timeout" | "unknown"):
            level = WARNING
        case _:
            pass
    return name, level


def keys(event: Event) -> dict[str, Any]:
    """Keys of the line for ``event``; those without a value are left out."""
    plain = {_KEYS.get(name, name): _plain(name, getattr(event, name)) for name in _FIELDS[type(event)]}
    return {key: value for key, value in plain.items() if value not in (None, "")}


_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in NAMES}


def _plain(name: str, value: object) -> Any:
    match value:
        case UUID():
            return str(value)
        case tuple():
            return [_plain(name, part) for part in value]
        case float():
            return round(value, 6)
        case str():
            limit = TRACE_LIMIT if name in _TRACES else TEXT_LIMIT
            return value if len(value) <= limit else value[:limit] + "…"
        case _:
            return value
