"""The one observer of a worker: every event becomes a log line, and counts."""

from __future__ import annotations

from typing import Any

from agentrt.core import events
from agentrt.core.events import Event
from agentrt.telemetry.lines import heading, keys
from agentrt.telemetry.logs import Logs
from agentrt.telemetry.metrics import Metrics


class Telemetry:
    """An ``EventSink``: safe in any thread, never waits, never raises."""

    def __init__(self, logs: Logs, metrics: Metrics) -> None:
        self._logs = logs
        self._metrics = metrics
        self._worker_id: str | None = None

    def __call__(self, event: Event) -> None:
        """Log and count ``event``."""
        self._metrics.observe(event)
        if isinstance(event, events.WorkerStarted):
            self._worker_id = str(event.worker_id)
        name, level = heading(event)
        if self._logs.writes(level):
            self._logs.line(name, level, self._with_worker(keys(event)))

    def _with_worker(self, given: dict[str, Any]) -> dict[str, Any]:
        return given if "worker_id" in given or self._worker_id is None else {**given, "worker_id": self._worker_id}
