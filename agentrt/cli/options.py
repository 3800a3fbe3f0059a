"""What people type: each refusal names the option, what was typed and what is accepted."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

import typer

from agentrt.core.errors import InvalidArgument

Choice = TypeVar("Choice", bound=StrEnum)

_MOST_DIGITS = 25  # more, and Python itself refuses to read the number


def whole(option: str, low: int, high: int) -> Callable[[object], int]:
    """A parser of whole numbers from ``low`` to ``high``."""

    def parse(given: object) -> int:
        said = str(given).strip()
        if re.fullmatch(r"[+-]?[0-9]+", said) and len(said) <= _MOST_DIGITS and low <= int(said) <= high:
            return int(said)
        raise wrong(option, given, f"a whole number from {low:,} to {high:,}")

    return parse


def text(option: str) -> Callable[[object], str]:
    """A parser of names and keys. Bytes that are no text are refused: replaced, two keys could become one."""

    def parse(given: object) -> str:
        value = str(given)
        if not value.strip():
            raise InvalidArgument(f"{option} is empty: give it a value, or leave it out")
        return in_utf8(option, value)

    return parse


def in_utf8(option: str, value: str) -> str:
    """``value``, if it is text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(option, value, "text in UTF-8") from None
    return value


def one_of(option: str, choices: type[Choice]) -> Callable[[object], Choice]:
    """A parser of the values of an enumeration."""

    def parse(given: object) -> Choice:
        try:
            return choices(str(given).strip().lower())
        except ValueError:
            raise wrong(option, given, f"one of {', '.join(choices)}") from None

    return parse


def moment(option: str) -> Callable[[object], datetime]:
    """A parser of times with their zone."""

    def parse(given: object) -> datetime:
        if isinstance(given, datetime):
            return given
        try:
            time = datetime.fromisoformat(str(given).strip())
        except ValueError:
            raise wrong(option, given, "a time in ISO 8601, such as 2030-01-31T09:00Z") from None
        if time.tzinfo is None:
            raise wrong(option, given, f"a time with its zone, such as {time.isoformat()}Z or {time.isoformat()}+01:00")
        return time

    return parse


def uuid(option: str) -> Callable[[object], UUID]:
    """A parser of ids."""

    def parse(given: object) -> UUID:
        try:
            return UUID(str(given).strip())
        except ValueError:
            raise wrong(option, given, "a UUID, such as 0198c0de-0000-7000-8000-000000000001") from None

    return parse


# --- options that several commands have -------------------------------------------------------------------------------


def text_option(option: str, words: str) -> Any:
    """An option that takes a name or a key."""
    return typer.Option(option, parser=text(option), metavar="TEXT", help=words)


def agents_option(words: str) -> Any:
    """``--agents``; ``words`` say what is peculiar to the command."""
    said = f"Where agents are: ./shop.py or shop.agents; AGENTRT_AGENTS. {words}"
    return typer.Option("--agents", "-a", metavar="MODULE|FILE", help=said)


def limit_option(words: str) -> Any:
    """``--limit`` of a list."""
    return typer.Option(parser=whole("--limit", 1, 10_000), metavar="NUMBER", help=words)


def run_option(words: str) -> Any:
    """``--run``: the number of the run that is meant."""
    return typer.Option("--run", parser=whole("--run", 1, 2**31 - 1), metavar="NUMBER", help=words)


# --- values with a form of their own ----------------------------------------------------------------------------------


def read_message(given: str) -> str:
    """What was typed, or standard input for ``-``.

    Raises:
        InvalidArgument: it has more bytes than AGENTRT_MESSAGE_MAX_BYTES, or is no text.
    """
    message = _standard_input() if given == "-" else given
    size, most = len(message.encode("utf-8", "surrogatepass")), setting("message_max_bytes")
    if most is not None and size > most:
        raise InvalidArgument(
            f"the message has {size} bytes, AGENTRT_MESSAGE_MAX_BYTES is {most}: store it elsewhere and send a link"
        )
    return message


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"standard input is no text in {error.encoding}: {error.reason} at {error.start}"
        ) from None


def setting(name: str) -> int | None:
    """A setting that somebody has set; the database has the same defaults."""
    from agentrt.settings import Settings

    settings = Settings()
    return getattr(settings, name) if name in settings.model_fields_set else None


def labels(given: list[str] | None) -> dict[str, str] | None:
    """The labels of ``--label KEY=VALUE``."""
    if not given:
        return None
    found = {}
    for pair in given:
        key, equals, value = in_utf8("--label", pair).partition("=")
        if not key or not equals:
            raise InvalidArgument(f"--label {pair} has no KEY=VALUE form; write it as --label team=search")
        found[key] = value
    return found


def config_of(given: str | None) -> dict[str, Any] | None:
    """The object of ``--config JSON``."""
    if given is None:
        return None
    try:
        value = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"--config {given!r:.60} is no JSON: {error}; write it as --config '{{\"limits\": {{…}}}}'"
        ) from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"--config {given:.100} is no JSON object")
    return value


def wrong(option: str, given: object, accepted: str) -> InvalidArgument:
    """The error for a value that is not what it should be."""
    said = str(given)
    shown = said if said.strip() and len(said) <= 100 else repr(said[:100]) + ("…" if len(said) > 100 else "")
    return InvalidArgument(f"{option} {shown} is not {accepted}")
