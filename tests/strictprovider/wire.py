"""What the three formats have in common: a parsed request, and a writer of answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from .conversation import Message, WireFormat
from .ledger import Unit
from .rules import Rule, Violation, bad_character
from .script import Call, Refuse, Say, ServerTool, Stop, Think

Said: TypeAlias = Say | Think | Call | Refuse | ServerTool


@dataclass(slots=True)
class Parsed:
    """A request in neutral form, with what was wrong in its format."""

    wire_format: WireFormat
    model: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    stream: bool = False
    thinking: bool = False
    thinking_required: bool = False
    units: tuple[Unit, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def wrong(self, detail: str, at: int = -1) -> None:
        self.violations.append(Violation(Rule.BAD_REQUEST, at, detail))


class Writer(Protocol):
    """Writes one answer in its format: events of a stream, or a whole body."""

    def begin(self) -> Iterator[bytes]: ...

    def say(self, step: Said) -> Iterator[bytes]: ...

    def finish(self, stop: Stop) -> Iterator[bytes]: ...

    def ping(self) -> bytes: ...

    def error(self, kind: str, message: str) -> Iterator[bytes]: ...

    def malformed(self) -> Iterator[bytes]: ...

    def whole(self, steps: tuple[Said, ...], stop: Stop) -> dict[str, Any]: ...


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else dump(data)}\n\n".encode()


def tokens(text: str) -> int:
    return max(1, len(text.encode()) // 4) if text else 0


def unit(value: object, *, marked: bool = False) -> Unit:
    return Unit(json.dumps(value, separators=(",", ":")).encode() + b"\n", marked)


def characters_of(raw: Any, path: str = "") -> Iterator[Violation]:
    """Strings anywhere in the request that no provider's JSON parser takes."""
    if isinstance(raw, str):
        if bad := bad_character(raw):
            yield Violation(Rule.BAD_CHARACTER, -1, f"{path}: {bad}")
    elif isinstance(raw, dict):
        for key, value in raw.items():
            yield from characters_of(key, f"{path} key")
            yield from characters_of(value, f"{path}.{key}" if path else str(key))
    elif isinstance(raw, list):
        for index, value in enumerate(raw):
            yield from characters_of(value, f"{path}[{index}]")
