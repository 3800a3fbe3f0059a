"""What a model reads of a tool's end, and a log of an error: texts cut to size, and without secrets."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydantic_core import to_json

from agentrt.core.errors import message_of

_NOTE_BYTES: Final = 80
_SEARCHED_BYTES: Final = 65_536
"""Longer texts lose their middle before they are searched for secrets: a search holds the whole worker up."""

_MOST_LEAVES: Final = 20
"""Exceptions of a group that are told of."""

HIDDEN: Final = "[hidden]"

# Every search takes time in proportion to the text: what a pattern may look at twice is bounded.
_URL = re.compile(  # the second form: a password with / ? or #, which nobody encoded; a port is no password
    r"://(?:[^\s/?#'\"<>]*@|[^\s/?#'\"<>:@]{0,256}:(?!\d{1,5}(?:[/?#]|$))[^\s'\"<>]{1,256}@)"
)
_HEADER = re.compile(
    r"(?i)\b(bearer|basic)((?:\s|%20|\+){1,8})"
    r"(?:[a-z0-9._~+/=%-]{8,}|(?<=bearer[\s+])(?=[a-z._~+/=-]{0,7}\d)[a-z0-9._~+/=-]{3,})"
)
_SETTING = re.compile(
    r"(?i)((?:passw(?:or)?d|passphrase|(?:secret|access|private|api)[_-]?key|secret)(?:\\?[\"'])?\s{0,4}[:=]\s{0,4}"
    r"|token(?:=|\\?[\"']\s{0,4}[:=]\s{0,4})|[_-]token\s{0,4}[:=]\s{0,4})"
    r"(?:(\")(?:[^\"\\\n]|\\.)*|(')(?:[^'\\\n]|\\.)*|(\\[\"'])[^\"'\\\n]*|[^\s&,;'\"\\]+)"
)
_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{16,}")


def result_text(value: Any) -> str:
    """A tool's return value as the model reads it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may bring methods of its own
    try:
        return to_json(value, bytes_mode="base64", inf_nan_mode="strings", serialize_unknown=True).decode()
    except Exception:  # noqa: BLE001 - the user's other code, whatever it raises: fields that are computed, repr
        return _ascii_json(value)


def _ascii_json(value: Any) -> str:
    ways: tuple[Callable[[], str], ...] = (lambda: json.dumps(value, default=repr), lambda: repr(value))
    for text_of in ways:
        try:
            return str.__str__(text_of())
        except BaseException:  # noqa: BLE001, S112 - the user's other code, as above
            continue
    return f"(a result of type {type(value).__name__}, which cannot be shown)"


def cut(text: str, max_bytes: int) -> str:
    """``text``, or its head and tail when it has more bytes than ``max_bytes``, cut between characters."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= max_bytes:
        return text
    room = max(max_bytes - _NOTE_BYTES, 0)
    head = encoded[: room * 2 // 3].decode("utf-8", "ignore")
    tail = encoded[len(encoded) - (room - room * 2 // 3) :].decode("utf-8", "ignore")
    left_out = len(encoded) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left_out} of {len(encoded)} bytes left out …]\n{tail}"


def without_secrets(text: str, secrets: Iterable[str] = (), *, max_bytes: int = _SEARCHED_BYTES) -> str:
    """``text``, cut to ``max_bytes``, with URL credentials, bearer strings, keys and the given secrets removed."""
    for secret in sorted((secret for secret in secrets if len(secret) >= 4), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _URL.sub(f"://{HIDDEN}@", cut(text, max_bytes))
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _SETTING.sub(_without_value, text)
    return _KEY.sub(HIDDEN, text)


def _without_value(setting: re.Match[str]) -> str:
    name, *quotes = setting.groups()
    return f"{name}{next(filter(None, quotes), '')}{HIDDEN}"


def trace_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An exception with its traceback, for the log, without secrets."""
    return without_secrets("".join(traceback.format_exception(error)), secrets)


def error_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An exception's class and message, or those of what a group holds, without secrets, at most 2,000 bytes."""
    texts = []
    for leaf in leaves_of(error)[:_MOST_LEAVES]:
        message = message_of(leaf)
        texts.append(f"{type(leaf).__name__}: {message}" if message else type(leaf).__name__)
    return cut(without_secrets("; ".join(dict.fromkeys(texts)), secrets, max_bytes=16_384), 2_000)


def leaves_of(error: BaseException) -> Sequence[BaseException]:
    """The exceptions of a group and of the groups in it, in order; another exception is its own leaf."""
    leaves, waiting = [], [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))
        else:
            leaves.append(one)
    return leaves
