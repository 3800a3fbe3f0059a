"""What Postgres can take as jsonb: every value of ours is made storable before it is written, visibly.

NUL is no character of a Postgres text, and jsonb takes neither lone surrogates nor NaN and infinities
(https://www.postgresql.org/docs/current/datatype-json.html).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

MAX_DEPTH: Final = 100
MAX_KEY: Final = 1_000
"""Characters of an object's key."""
MAX_SIZE: Final = 33_554_432
"""Characters of a whole value; every element counts ``_ELEMENT`` on top."""

TOO_DEEP: Final = "[left out: nested too deep]"
CIRCULAR: Final = "[left out: contains itself]"
TOO_LARGE: Final = "[left out: too large]"
_CUT: Final = "[cut: too large]"
_ELEMENT: Final = 16
_LARGEST_NUMBER: Final = 10**300

_MAPPINGS: Final = (dict, Mapping)  # the concrete type first: it is told at once, an abstract one takes a look-up
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, Mapping)


def storable_text(text: str) -> str:
    """``text`` with NUL as U+2400, the halves of a surrogate pair as their character, and lone surrogates as U+FFFD;
    the same object when it is fine as it is. Providers cut pairs in two, one half for each piece of a stream."""
    if not (text.isascii() or _is_unicode(text)):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\x00", "\u2400")


def _is_unicode(text: str) -> bool:
    """Whether ``text`` holds no lone surrogate; many times faster than a search for one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(value: object) -> Any:
    """``value`` as JSON that Postgres can store. Never raises; applied twice it changes nothing more.

    Numbers that JSON cannot hold or others cannot read become strings, keys become strings, and what is nested deeper
    than 100, contains itself, or is larger than 32 Mi characters is replaced by a text that says so.
    """
    return _Storing().take(value, 1)


def storable_json(value: object) -> str:
    """``storable(value)`` as text."""
    return as_json(storable(value))


as_json: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
"""What is storable already, as text."""


def text_bytes(text: str) -> int:
    """The length of ``text`` as UTF-8, lone surrogates included."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def about_bytes(value: object) -> int:
    """About how many bytes ``value``, of plain values and dataclasses, takes as JSON: texts count exactly, all else by
    number. Never raises."""
    size, waiting = 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        size += _ELEMENT
        if isinstance(one, str):
            size += text_bytes(one)
        elif depth > MAX_DEPTH or size > MAX_SIZE:  # what is stored is not larger
            continue
        elif isinstance(one, Mapping):
            waiting.extend((part, depth + 1) for item in one.items() for part in item)
        elif isinstance(one, list | tuple | set | frozenset):
            waiting.extend((part, depth + 1) for part in one)
        elif is_dataclass(one) and not isinstance(one, type):
            waiting.extend((getattr(one, field.name), depth + 1) for field in fields(one))
    return size


class _Storing:
    """One pass over a value: the room that is left, and the containers that the pass is inside of."""

    def __init__(self) -> None:
        self.room = MAX_SIZE
        self.inside: set[int] = set()

    def take(self, value: object, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(str.__str__(value))
        self.room -= _ELEMENT
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self._number(value)
        if isinstance(value, _CONTAINERS):
            return self._container(value, depth)
        self.room += _ELEMENT
        return self._text(_words(value))

    def _text(self, text: str) -> str:
        room, self.room = self.room, self.room - _ELEMENT - len(text)
        if len(text) <= room or len(text) <= len(TOO_LARGE):
            return storable_text(text)
        cut = storable_text(text[: room - len(_CUT)]) + _CUT if room > len(_CUT) else TOO_LARGE
        self.room = room - _ELEMENT - len(cut)
        return cut

    def _number(self, value: float) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, int):
            return int(value) if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else self._text(_digits(value))
        return float(value) if math.isfinite(value) else self._text(float.__repr__(value))

    def _container(self, value: Mapping[Any, Any] | Iterable[Any], depth: int) -> Any:
        if depth > MAX_DEPTH or id(value) in self.inside:
            self.room += _ELEMENT
            return self._text(TOO_DEEP if depth > MAX_DEPTH else CIRCULAR)
        self.inside.add(id(value))
        taken = self._mapping(value, depth) if isinstance(value, _MAPPINGS) else self._sequence(value, depth)
        self.inside.discard(id(value))
        return taken

    def _sequence(self, values: Iterable[Any], depth: int) -> list[Any]:
        if isinstance(values, set | frozenset):
            values = sorted(values, key=lambda value: repr(_Storing().take(value, 1)))
        taken: list[Any] = []
        for value in values:
            if self.room <= 0:
                taken.append(TOO_LARGE)
                break
            taken.append(self.take(value, depth + 1))
        return taken

    def _mapping(self, mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        for key, value in mapping.items():
            if self.room <= 0:
                taken.setdefault(_CUT, TOO_LARGE)
                break
            name = key if type(key) is str and key.isidentifier() and len(key) <= MAX_KEY else _key(key)
            if name in taken:
                name = _unique(name, taken)
            self.room -= len(name)
            taken[name] = self.take(value, depth + 1)
        return taken


def _key(key: object) -> str:
    """A key as JSON has it: a string of at most 1,000 characters."""
    match key:
        case str():
            name = str.__str__(key)
        case None:
            name = "null"
        case bool():
            name = str(key).lower()
        case int():
            name = _digits(key)
        case float():
            name = float.__repr__(key)
        case _:
            name = _words(key)
    return storable_text(name if len(name) <= MAX_KEY else name[: MAX_KEY - 1] + "…")


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    """``name``, or with a number behind it when another key became the same."""
    unique, n = name, 2
    while unique in taken:
        suffix = f"~{n}"
        unique, n = name[: MAX_KEY - len(suffix)] + suffix, n + 1
    return unique


def _digits(value: int) -> str:
    """An integer as text; hexadecimal where Python refuses to write it out (more than 4,300 digits)."""
    return int.__repr__(int(value)) if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else hex(value)


def _words(value: object) -> str:
    """A text for what JSON does not know."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, UUID | Decimal | datetime | date | time):
        return str(value)
    if isinstance(value, Enum):
        return str(value.value) if isinstance(value.value, str | int) else value.name
    return f"[{type(value).__name__}]"
