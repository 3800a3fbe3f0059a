"""What a model reads of a tool's end, and a log of an error: texts cut to size, and without secrets."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

_NOTE_BYTES: Final = 80
HIDDEN: Final = "[hidden]"
_SECRETS: Final = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?#'\"<>]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)\b(password|passwd|secret|api[_-]?key)=[^\s&,;'\"]+"), rf"\1={HIDDEN}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), HIDDEN),
)


def result_text(value: Any) -> str:
    """A tool's return value as the model reads it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return to_json(value, bytes_mode="base64", inf_nan_mode="strings", serialize_unknown=True).decode()
    except (PydanticSerializationError, UnicodeError, ValueError, RecursionError):
        return _ascii_json(value)


def _ascii_json(value: Any) -> str:
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


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


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` with URL credentials, bearer strings, keys and the given secrets removed."""
    for secret in sorted((secret for secret in secrets if len(secret) >= 4), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def trace_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An exception with its traceback, for the log, without secrets."""
    return without_secrets("".join(traceback.format_exception(error)), secrets)


def error_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An exception's class and message, without secrets, at most 2,000 bytes."""
    message = without_secrets(str(error), secrets)
    return cut(f"{type(error).__name__}: {message}" if message else type(error).__name__, 2_000)
