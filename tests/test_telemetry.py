"""Events become log lines and metrics."""

import io
import json
import logging
import threading
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
import structlog

from agentrt.core import events
from agentrt.core.events import Event
from agentrt.core.session import SessionId, WorkerId
from agentrt.ports import QueueDepth
from agentrt.telemetry.lines import NAMES
from agentrt.telemetry.logs import MAX_WAITING_LINES, LineWriter, Logs
from agentrt.telemetry.metrics import MAX_LABEL_LENGTH, MAX_LABEL_VALUES, Metrics
from agentrt.telemetry.sink import Telemetry
from tests.commandline import SECONDS

WORKER = WorkerId(UUID(int=1))
SESSION: dict[str, Any] = {
    "session_id": SessionId(UUID(int=2)), "agent": "auditor", "queue": "default", "run": 1, "attempt": 2,
    "fencing_token": 3,
}  # fmt: skip
TURN = events.TurnFinished(
    **SESSION, model="p:m", seconds=0.5, stop_reason="stop", input_tokens=100, output_tokens=20, cache_read_tokens=60,
    cost=0.25,
)  # fmt: skip


def all_kinds() -> list[type[Event]]:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    return [kind for kind in kinds if kind not in (Event, events.SessionEvent)]


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def logs(stream):
    logs = Logs("debug", "json", stream=stream)
    yield logs
    logs.close()


@pytest.fixture
def metrics():
    return Metrics("1.2.3")


def lines(logs, stream):
    assert logs.writer.flush(SECONDS)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


# --- lines ----------------------------------------------------------------------------------------------------------


def test_every_event_has_a_line_of_its_own():
    assert set(NAMES) == set(all_kinds())
    assert len({name for name, _ in NAMES.values()}) == len(NAMES)


def test_the_promised_names_are_there():
    promised = (
        "worker.started worker.draining worker.stopped worker.stalled session.claimed session.resumed session.released "
        "session.suspended session.ended turn.finished model.retried tool.finished commit.failed lease.lost "
        "worker.reaped listener.reconnected"
    )
    assert set(promised.split()) <= {name for name, _ in NAMES.values()}


def test_every_event_can_be_logged_and_counted(logs, stream, metrics):
    samples = {"str": "x", "int": 1, "float": 1.5, "float | None": 1.5, "tuple[str, ...]": ("a",), "WorkerId": WORKER}
    samples["ReleaseReason"] = "drain"
    sink = Telemetry(logs, metrics)
    for kind in all_kinds():
        sink(kind(**{field.name: samples.get(str(field.type), SESSION["session_id"]) for field in fields(kind)}))
    assert [line["event"] for line in lines(logs, stream)] == [NAMES[kind][0] for kind in all_kinds()]


def test_a_line_holds_the_promised_keys(logs, stream, metrics):
    sink = Telemetry(logs, metrics)
    sink(events.WorkerStarted(worker_id=WORKER, name="w", slots=2, agents=("auditor",), queues=("default",)))
    sink(TURN)
    started, turn = lines(logs, stream)
    assert started["agents"] == ["auditor"]
    assert list(turn)[:3] == ["timestamp", "level", "event"]
    assert turn.items() >= {
        "level": "info", "event": "turn.finished", "session_id": str(SESSION["session_id"]), "agent": "auditor",
        "queue": "default", "attempt": 2, "fencing_token": 3, "worker_id": str(WORKER), "run": 1, "seconds": 0.5,
    }.items()  # fmt: skip


def test_a_failed_run_is_a_warning_and_a_completed_one_is_not(logs, stream, metrics):
    sink = Telemetry(logs, metrics)
    sink(events.SessionEnded(**SESSION, status="completed"))
    sink(events.SessionEnded(**SESSION, status="failed", code="empty_answer"))
    assert [line["level"] for line in lines(logs, stream)] == ["info", "warning"]


def test_a_failed_run_is_told_where_only_warnings_are(stream, metrics):
    logs = Logs("warning", "json", stream=stream)
    sink = Telemetry(logs, metrics)
    sink(events.SessionEnded(**SESSION, status="completed"))
    sink(events.SessionEnded(**SESSION, status="failed", code="empty_answer"))
    assert [line["code"] for line in lines(logs, stream)] == ["empty_answer"]
    logs.close()


def test_tracebacks_and_long_texts_are_kept_within_bounds(logs, stream, metrics):
    sink = Telemetry(logs, metrics)
    sink(events.SessionCrashed(**SESSION, error="e" * 100_000, traceback="t" * 100_000))
    (line,) = lines(logs, stream)
    assert len(line["error"]) < 2_100
    assert len(line["exception"]) < 20_100


def test_lines_below_the_level_are_not_written(stream, metrics):
    logs = Logs("warning", "json", stream=stream)
    sink = Telemetry(logs, metrics)
    sink(events.SessionClaimed(**SESSION))
    sink(events.SessionLost(**SESSION))
    assert [line["event"] for line in lines(logs, stream)] == ["lease.lost"]
    logs.close()


def test_the_console_form_is_for_people(stream, metrics):
    logs = Logs("info", "console", stream=stream)
    Telemetry(logs, metrics)(events.SessionCrashed(**SESSION, error="boom", traceback="Traceback: here\n  it is"))
    logs.close()
    text = stream.getvalue()
    assert "session.crashed" in text
    assert "Traceback: here\n  it is" in text
    assert "\x1b" not in text


def test_auto_is_json_unless_on_a_terminal(stream):
    logs = Logs("info", "auto", stream=stream)
    logs.line("worker.started", "info", {})
    assert lines(logs, stream)[0]["event"] == "worker.started"
    logs.close()


def test_what_others_log_comes_in_the_same_form_and_chatty_libraries_are_quiet(stream):
    logs = Logs("info", "json", stream=stream)
    logs.adopt()
    try:
        logging.getLogger("my.tool").info("found %d", 3)
        wrong = logging.LogRecord("my.tool", logging.INFO, __file__, 1, "wrong %d", ("x",), None)
        logging.getLogger().handlers[-1].handle(wrong)
        logging.getLogger("httpx").info("GET https://host/?key=secret")
        structlog.get_logger().info("from.structlog", a=1)
        logging.getLogger("my.tool").error("failed", exc_info=ValueError("boom"))
    finally:
        logs.close()
    first, second, third, fourth = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.items() >= {"event": "log.recorded", "logger": "my.tool", "message": "found 3"}.items()
    assert second["message"] == "wrong %d"
    assert third.items() >= {"event": "from.structlog", "a": 1}.items()
    assert fourth["level"] == "error"
    assert "ValueError: boom" in fourth["exception"]


class Stuck(io.StringIO):
    """A pipe that nobody reads, until ``free`` is set."""

    def __init__(self):
        super().__init__()
        self.free = threading.Event()
        self.reached = threading.Event()

    def write(self, text):
        self.reached.set()
        self.free.wait(SECONDS)
        return super().write(text)


def test_a_stuck_output_holds_nobody_up_and_the_dropped_lines_are_counted():
    stream = Stuck()
    writer = LineWriter(stream)
    writer.write("first")
    assert stream.reached.wait(SECONDS)
    for number in range(MAX_WAITING_LINES + 7):
        writer.write(str(number))
    assert not writer.flush(0.01)
    stream.free.set()
    assert writer.flush(SECONDS)
    writer.close()
    written = stream.getvalue().splitlines()
    assert len(written) == 1 + MAX_WAITING_LINES + 1
    assert "7 log lines were dropped" in written[-1]


def test_an_output_that_is_gone_is_no_error(metrics):
    stream = io.StringIO()
    logs = Logs("info", "json", stream=stream)
    stream.close()
    Telemetry(logs, metrics)(events.SessionClaimed(**SESSION))
    assert logs.writer.flush(SECONDS)
    logs.close()


# --- metrics --------------------------------------------------------------------------------------------------------


def test_a_turn_counts_tokens_cost_and_time(metrics):
    metrics.observe(TURN)
    assert value(metrics, "agentrt_turns_total", agent="auditor", model="p:m") == 1
    assert value(metrics, "agentrt_tokens_total", model="p:m", kind="input") == 100
    assert value(metrics, "agentrt_tokens_total", model="p:m", kind="output") == 20
    assert value(metrics, "agentrt_tokens_total", model="p:m", kind="cache_read") == 60
    assert value(metrics, "agentrt_cost_total", model="p:m") == 0.25
    assert value(metrics, "agentrt_model_seconds_sum", model="p:m") == 0.5


def test_the_promised_metrics_are_there_under_their_names(metrics):
    metrics.watch_queues(list)
    for kind in all_kinds():
        samples = {"str": "x", "int": 1, "float": 1.5, "float | None": 1.5, "tuple[str, ...]": ("a",)}
        samples["ReleaseReason"] = "drain"
        metrics.observe(kind(**{field.name: samples.get(str(field.type), WORKER) for field in fields(kind)}))
    found = {sample.name.removesuffix("_count") for family in metrics.registry.collect() for sample in family.samples}
    promised = (
        "slots claims_total claim_seconds sessions_ended_total sessions_released_total turns_total model_seconds "
        "model_errors_total tokens_total cost_total tool_seconds commit_seconds commit_entries heartbeat_age_seconds "
        "lease_lost_total reaps_total self_fences_total listener_reconnects_total loop_lag_seconds info"
    )
    assert {f"agentrt_{name}" for name in promised.split()} <= found


def test_the_heartbeats_age_counts_from_the_last_renewal(metrics):
    metrics.observe(events.HeartbeatSucceeded(worker_id=WORKER, seconds=4.0, sessions=0))
    assert 4.0 <= value(metrics, "agentrt_heartbeat_age_seconds") < 60


def test_queue_depths_come_from_the_reader_at_each_scrape(metrics):
    rows: list[QueueDepth] = []
    metrics.watch_queues(lambda: rows)
    assert value(metrics, "agentrt_queue_depth", queue="q", agent="a") is None
    rows.append(QueueDepth(queue="q", agent="a", waiting=7, oldest_seconds=12.5))
    assert value(metrics, "agentrt_queue_depth", queue="q", agent="a") == 7
    assert value(metrics, "agentrt_queue_oldest_seconds", queue="q", agent="a") == 12.5


def tool_finished(tool):
    return events.ToolFinished(**SESSION, tool=tool, tool_call_id="c", outcome="ok", seconds=1.0)


def test_odd_characters_in_a_label_are_made_harmless(metrics):
    """Case: metrics label with odd characters."""
    metrics.observe(tool_finished('a"b\\c\nd\x00\x1b\ud800' + "x" * 500))
    (label,) = {
        sample.labels["tool"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if family.name == "agentrt_tool_seconds"
    }
    assert label.startswith('a"b\\c_d___x')
    assert len(label) == MAX_LABEL_LENGTH
    assert "agentrt_tool_seconds" in scrape(metrics)


def scrape(metrics):
    body = metrics.application()({"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"}, lambda *_: None)
    return b"".join(body).decode()


def test_invented_names_do_not_grow_the_registry_without_end(metrics):
    for number in range(MAX_LABEL_VALUES + 50):
        metrics.observe(tool_finished(f"tool-{number}"))
    assert value(metrics, "agentrt_tool_seconds_count", tool="other", outcome="ok") == 50
    assert value(metrics, "agentrt_tool_seconds_count", tool="tool-0", outcome="ok") == 1


def test_two_workers_in_one_process_count_apart(metrics):
    metrics.observe(TURN)
    assert value(Metrics("1.2.3"), "agentrt_turns_total", agent="auditor", model="p:m") is None


def test_a_worker_that_never_held_a_session_shows_its_free_slots(metrics):
    metrics.observe(events.WorkerStarted(worker_id=WORKER, name="w", slots=7, agents=("auditor",), queues=("default",)))
    states = {state: metrics.registry.get_sample_value("agentrt_slots", {"state": state}) for state in ("free", "busy")}
    assert states == {"free": 7, "busy": 0}
