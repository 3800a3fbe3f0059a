"""What ``Client`` takes: each function gives an argument of one type back as the SQL functions take it, or refuses it.

They look at the type, and at what is lost on the way to the database: there a value of another type becomes a text.
Ranges of numbers, known keys and the like are the database's rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from agentrt.core.errors import InvalidArgument
from agentrt.core.storable import storable_json

_MOST_SHOWN: Final = 100


def wrong(name: str, wanted: str, value: object) -> InvalidArgument:
    """What is raised: the argument's name, what it takes, and the value."""
    return InvalidArgument(f"{name} must be {wanted}, not {_shown(value)}")


def text(name: str, value: object) -> str:
    """Text of any length."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    return value


def one_of(name: str, value: object, kinds: type[StrEnum]) -> str:
    """One of the words of ``kinds``."""
    word = text(name, value)
    if word not in list(kinds):
        raise wrong(name, f"one of {', '.join(kinds)}", value)
    return word


def flag(name: str, value: object) -> bool:
    """``True`` or ``False``."""
    if not isinstance(value, bool):
        raise wrong(name, "True or False", value)
    return value


def whole(name: str, value: object, *, within: tuple[int, int] | None = None) -> int:
    """A whole number, ``within`` these two."""
    wanted = f"a whole number from {within[0]} to {within[1]}" if within else "a whole number"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, wanted, value)
    if within and not within[0] <= value <= within[1]:
        raise wrong(name, wanted, value)
    return value


def number(name: str, value: object, *, within: tuple[int, int]) -> float:
    """A number ``within`` these two, as a float."""
    low, high = within
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(name, f"a number from {low} to {high}", value)
    return float(value)


def moment(name: str, value: object) -> str:
    """A time with its zone, in ISO 8601."""
    if not isinstance(value, datetime):
        raise wrong(name, "a datetime", value)
    if value.utcoffset() is None:
        raise InvalidArgument(f"{name} is {value} without a time zone: give one, such as datetime.now(UTC)")
    return value.isoformat()


def uuid(name: str, value: object) -> UUID:
    """A UUID, or the text of one."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(text(name, value))
    except (ValueError, InvalidArgument):
        raise wrong(name, "a UUID of 32 hexadecimal digits", value) from None


def uuid_text(name: str, value: object) -> str:
    """Like ``uuid``, as JSON has it."""
    return str(uuid(name, value))


def mapping(name: str, value: object) -> dict[str, Any]:
    """A mapping with texts as keys."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping", value)
    return {text(f"a key of {name}", key): one for key, one in value.items()}


def texts(name: str, value: object) -> dict[str, str]:
    """A mapping of texts to texts."""
    return {key: text(f"{name}.{key:.100}", one) for key, one in mapping(name, value).items()}


def limits(name: str, value: object) -> dict[str, Any]:
    """``Limits``, or a mapping like them."""
    from agentrt.core.budget import Limits

    if isinstance(value, Limits):
        return asdict(value)
    if not isinstance(value, Mapping):
        raise wrong(name, "Limits or a mapping", value)
    return mapping(name, value)


def config(name: str, value: object) -> dict[str, Any]:
    """A session's config."""
    kinds = {"model": text, "instructions": text, "limits": limits}
    return {key: kinds[key](f"{name}.{key}", one) if key in kinds else one for key, one in mapping(name, value).items()}


def content(name: str, value: object) -> list[Any]:
    """Blocks, in their JSON form."""
    from agentrt.core.content import Block, encode_content

    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong(name, "a sequence of blocks", value)
    for position, block in enumerate(value):
        if not isinstance(block, Block):
            raise wrong(f"{name}[{position}]", "a block, such as Text", block)
        for field in fields(block):
            part = getattr(block, field.name)
            if part is not None and field.name != "raw":
                text(f"{name}[{position}].{field.name}", part)
    return encode_content(tuple(value))


def _shown(value: object) -> str:
    """``value`` as a message quotes it; no code of its class is run."""
    match value:
        case str():
            return str.__repr__(value[:_MOST_SHOWN])
        case bytes():
            return bytes.__repr__(value[:_MOST_SHOWN])
        case None | bool():
            return str(value)
        case int() | float():
            return storable_json(value)[:_MOST_SHOWN]
        case _:
            return f"a value of type {type(value).__name__}"
