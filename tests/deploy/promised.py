"""What workers export, from the metrics themselves, and what a query of Prometheus asks for."""

import re
from dataclasses import fields
from functools import cache
from typing import Any
from uuid import UUID

import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentrt.core import events
from agentrt.core.events import Event
from agentrt.ports import QueueDepth
from agentrt.telemetry.metrics import Metrics
from tests.databases import CHECKOUT

RULES = CHECKOUT / "deploy" / "prometheus" / "rules" / "agentrt.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDS = {rule["record"]: rule for group in GROUPS for rule in group["rules"] if "record" in rule}

FROM_PROMETHEUS = {"up": {"job", "instance"}}
SCRAPED = {"job", "instance"}  # labels that every series gets
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}


def sample_event(kind: type[Event]) -> Event:
    """An event with some value in every field."""
    values: dict[str, Any] = {"str": "x", "int": 1, "float": 0.5, "float | None": 0.5, "tuple[str, ...]": ("x",)}
    values["ReleaseReason"] = "drain"
    return kind(**{field.name: values.get(str(field.type), UUID(int=1)) for field in fields(kind)})


def exposition() -> str:
    """What ``/metrics`` answers after one of every event."""
    metrics = Metrics("1.2.3")
    metrics.watch_queues(lambda: [QueueDepth(queue="default", agent="hello", waiting=1, oldest_seconds=2.0)])
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    for kind in kinds:
        if kind not in (Event, events.SessionEvent):
            metrics.observe(sample_event(kind))
    return generate_latest(metrics.registry).decode()


def exported() -> dict[str, set[str]]:
    """Every series' name with its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {name: labels | SCRAPED for name, labels in found.items()}


@cache
def known() -> dict[str, set[str]]:
    """Every series that a query may ask for: exported, recorded by a rule, or Prometheus' own."""
    return exported() | FROM_PROMETHEUS | {name: set[str]() for name in RECORDS}


def asked(query: str) -> dict[str, set[str]]:
    """The series of a PromQL query with the labels that their selectors name."""
    found: dict[str, set[str]] = {}
    text = re.sub(r"\[[^]]*\]", "", query)
    for match in re.finditer(r'\{((?:[^}"]|"[^"]*")*)\}', text):
        name = re.search(r"([a-zA-Z_:][\w:]*)$", text[: match.start()])
        assert name, f"a selector without a name in {query}"
        found.setdefault(name[1], set()).update(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', match[1]))
    text = re.sub(r'\{(?:[^}"]|"[^"]*")*\}', "", text)
    text = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", text)
    for name_only in re.findall(r"[a-zA-Z_:][\w:]*\b(?!\s*\()", text):
        if name_only not in WORDS:
            found.setdefault(name_only, set())
    return found


def grouped(query: str) -> set[str]:
    """The labels that a query groups by."""
    groups = re.findall(r"\bby\s*\(([^)]*)\)", query)
    return {label.strip() for group in groups for label in group.split(",")}


def assert_answerable(query: str) -> None:
    """Every series exists, and has every label that the query names."""
    series = asked(query)
    assert series, query
    labels: set[str] = set()
    for name, named in series.items():
        assert name in known(), f"{query}: there is no {name}"
        assert named <= known()[name], f"{query}: {name} has no label {sorted(named - known()[name])}"
        labels |= known()[name]
    assert grouped(query) <= labels, f"{query}: nothing has the label {sorted(grouped(query) - labels)}"
