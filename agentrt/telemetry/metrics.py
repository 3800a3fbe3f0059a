"""The metrics of one worker, in a registry of their own, kept up to date by events.

Names are a promise to dashboards and alerts; the README's table documents them and a test compares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrt.core import events
from agentrt.core.events import Event
from agentrt.ports import QueueDepth

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

MAX_LABEL_VALUES = 500  # per label: beyond it "other", since models invent tool names and clients model names
MAX_LABEL_LENGTH = 100

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Labels:
    """Makes label values harmless: printable, short, and not too many different ones."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, label: str, value: str) -> str:
        value = value[:MAX_LABEL_LENGTH]
        if not value.isprintable():
            value = "".join(c if c.isprintable() else "_" for c in value)
        with self._lock:
            seen = self._seen.setdefault(label, set())
            if value in seen:
                return value
            if len(seen) >= MAX_LABEL_VALUES:
                return "other"
            seen.add(value)
            return value


class Metrics:
    """All metrics of a worker."""

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._label = Labels()
        self._heartbeat_at: float | None = None

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        info = Gauge("agentrt_info", "Always 1; the label tells the version.", ["version"], registry=registry)
        info.labels(version).set(1)
        self._slots = Gauge(
            "agentrt_slots", "Slots of this worker by state: free or busy.", ["state"], registry=registry
        )
        self._claims = counter("agentrt_claims_total", "Sessions claimed by this worker.", "queue")
        self._claim_seconds = histogram("agentrt_claim_seconds", "Duration of one claim statement.", buckets=_FAST)
        self._ended = counter(
            "agentrt_sessions_ended_total",
            "Runs that this worker ended; code is empty unless failed.",
            "agent",
            "status",
            "code",
        )
        self._released = counter(
            "agentrt_sessions_released_total", "Sessions that this worker gave back, by reason.", "reason"
        )
        self._turns = counter("agentrt_turns_total", "Answers of a model that were committed.", "agent", "model")
        self._model_seconds = histogram(
            "agentrt_model_seconds", "Duration of a model call that gave an answer.", ["model"], buckets=_SLOW
        )
        self._model_errors = counter(
            "agentrt_model_errors_total", "Model calls that gave no answer, by class of error.", "model", "class"
        )
        self._tokens = counter(
            "agentrt_tokens_total", "Tokens: input (cache reads included), output, cache_read.", "model", "kind"
        )
        self._cost = counter("agentrt_cost_total", "Cost of model calls with a known price, in US dollars.", "model")
        self._tool_seconds = histogram(
            "agentrt_tool_seconds", "Duration of a tool call, by outcome.", ["tool", "outcome"], buckets=_SLOW
        )
        self._commit_seconds = histogram("agentrt_commit_seconds", "Duration of one group commit.", buckets=_FAST)
        self._commit_entries = histogram(
            "agentrt_commit_entries", "Journal entries per group commit.", buckets=_ENTRIES
        )
        age = Gauge(
            "agentrt_heartbeat_age_seconds", "Time since this worker's lease was last renewed.", registry=registry
        )
        age.set_function(self._heartbeat_age)
        self._lost = counter(
            "agentrt_lease_lost_total", "Sessions that this worker lost to a client or another worker."
        )
        self._reaps = counter("agentrt_reaps_total", "Workers that this worker declared dead.")
        self._fences = counter("agentrt_self_fences_total", "Times that this worker stopped since it could not renew.")
        self._reconnects = counter("agentrt_listener_reconnects_total", "Times that LISTEN had to be set up again.")
        self._lag = histogram(
            "agentrt_loop_lag_seconds", "How late the main loop ran, looked at all the time.", buckets=_FAST
        )

    def application(self) -> WSGIApplication:
        """The WSGI application that answers ``/metrics``."""
        application: WSGIApplication = make_wsgi_app(self.registry)
        return application

    def watch_queues(self, read: Callable[[], Iterable[QueueDepth]]) -> None:
        """Show what ``read`` returns at each scrape; it must answer at once, from a cache."""
        self.registry.register(_Queues(read, self._label))

    def observe(self, event: Event) -> None:
        """Count one event."""
        match event:
            case events.SessionEvent():
                self._observe_session(event)
            case events.SlotsChanged():
                self._slots.labels("free").set(event.free)
                self._slots.labels("busy").set(event.busy)
            case events.WorkerStarted():
                self._heartbeat_at = time.monotonic()
                self._slots.labels("free").set(event.slots)
                self._slots.labels("busy").set(0)
            case events.HeartbeatSucceeded():
                self._heartbeat_at = time.monotonic() - event.seconds
            case events.ClaimFinished():
                self._claim_seconds.observe(event.seconds)
            case events.CommitFinished():
                self._commit_seconds.observe(event.seconds)
                self._commit_entries.observe(event.entries)
            case events.WorkerReaped():
                self._reaps.inc()
            case events.SelfFenced():
                self._fences.inc()
            case events.ListenerReconnected():
                self._reconnects.inc()
            case events.LoopLagged():
                self._lag.observe(event.seconds)
            case _:
                pass  # a line in the log is enough

    def _observe_session(self, event: events.SessionEvent) -> None:
        label = self._label
        match event:
            case events.SessionClaimed():
                self._claims.labels(label("queue", event.queue)).inc()
            case events.SessionEnded():
                self._ended.labels(label("agent", event.agent), event.status, label("code", event.code)).inc()
            case events.SessionReleased():
                self._released.labels(label("reason", event.reason)).inc()
            case events.SessionLost():
                self._lost.inc()
            case events.TurnFinished():
                self._observe_turn(event)
            case events.ModelRetried():
                self._model_errors.labels(label("model", event.model), label("class", event.error_class)).inc()
            case events.ToolFinished():
                self._tool_seconds.labels(label("tool", event.tool), event.outcome).observe(event.seconds)
            case _:
                pass

    def _observe_turn(self, event: events.TurnFinished) -> None:
        model = self._label("model", event.model)
        self._turns.labels(self._label("agent", event.agent), model).inc()
        self._model_seconds.labels(model).observe(event.seconds)
        self._tokens.labels(model, "input").inc(event.input_tokens)
        self._tokens.labels(model, "output").inc(event.output_tokens)
        self._tokens.labels(model, "cache_read").inc(event.cache_read_tokens)
        if event.cost:
            self._cost.labels(model).inc(event.cost)

    def _heartbeat_age(self) -> float:
        return float("nan") if self._heartbeat_at is None else time.monotonic() - self._heartbeat_at


class _Queues(Collector):
    """Queue depths as the database has them; the same on every replica, so take the maximum, not the sum."""

    def __init__(self, read: Callable[[], Iterable[QueueDepth]], label: Labels) -> None:
        self._read = read
        self._label = label

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterator[Metric]:
        depth, oldest = self._families()
        for row in self._read():
            labels = (self._label("queue", row.queue), self._label("agent", row.agent))
            depth.add_metric(labels, row.waiting)
            oldest.add_metric(labels, row.oldest_seconds)
        yield from (depth, oldest)

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        labels = ("queue", "agent")
        return (
            GaugeMetricFamily(
                "agentrt_queue_depth", "Sessions that wait for a worker, in the database.", labels=labels
            ),
            GaugeMetricFamily(
                "agentrt_queue_oldest_seconds", "How long the session that is due longest has waited.", labels=labels
            ),
        )
