"""Errors of the providers' layer, sorted once into ``ModelErrorClass``: by type and status, never by text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import httpx2
from pydantic_ai import exceptions

from agentrt.core.journal import Usage
from agentrt.core.retry import clamp, parse_retry_after
from agentrt.models.exchange import NotAnApi
from agentrt.ports import ModelError, ModelErrorClass

_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
_Sorting = tuple[tuple[tuple[type[BaseException], ...], ModelErrorClass], ...]

_BEFORE_STATUS: Final[_Sorting] = (
    ((exceptions.ModelQuotaExceededError,), ModelErrorClass.QUOTA),
    ((exceptions.ModelContextWindowExceededError,), ModelErrorClass.REJECTED),
    ((exceptions.ModelAuthenticationError, exceptions.ModelNotFoundError), ModelErrorClass.CONFIGURATION),
)
"""What may bear the same status as something generic."""
_WITHOUT_STATUS: Final[_Sorting] = (
    ((exceptions.ModelRequestRejectedError, exceptions.ContentFilterError), ModelErrorClass.REJECTED),
    (
        (exceptions.ModelAPIError, exceptions.UnexpectedModelBehavior, httpx2.TransportError, OSError),
        ModelErrorClass.TRANSIENT,
    ),
)
_LONGEST_WORDS: Final = 2_000


def model_error(error: Exception, *, answering: bool, usage: Usage | None, cost: float | None) -> ModelError:
    """The ``ModelError`` for what the layer raised. ``answering``: the provider had taken the request by then;
    ``usage`` and ``cost`` are what the call burnt all the same."""
    elsewhere = _not_an_api(error)
    if elsewhere is not None:
        return ModelError(ModelErrorClass.CONFIGURATION, elsewhere)
    http = error if isinstance(error, exceptions.ModelHTTPError) else None
    error_class = _class_of(error)
    if error_class is None and answering:
        words = f"the provider's answer cannot be read: {_words(error)}"
        return ModelError(ModelErrorClass.TRANSIENT, words, usage=usage, cost=cost, unreadable=True)
    return ModelError(
        error_class or ModelErrorClass.REJECTED,
        _words(error),
        status=http.status_code if http else None,
        retry_after_seconds=_retry_after(http) if http else None,
        usage=usage,
        cost=cost,
    )


def _class_of(error: Exception) -> ModelErrorClass | None:
    """None for an error that tells nothing by its type. Before the provider answers it means that the request cannot
    be made: content that this provider does not take, for example; afterwards that its answer is damaged."""
    for kinds, error_class in _BEFORE_STATUS:
        if isinstance(error, kinds):
            return error_class
    if isinstance(error, exceptions.ModelHTTPError):
        return _class_of_status(error.status_code)
    for kinds, error_class in _WITHOUT_STATUS:
        if isinstance(error, kinds):
            return error_class
    return None


def _class_of_status(status: int) -> ModelErrorClass:
    if status in (401, 403, 404):
        return ModelErrorClass.CONFIGURATION
    if status == 402:
        return ModelErrorClass.QUOTA
    if status in _TRANSIENT_STATUS or status >= 500:
        return ModelErrorClass.TRANSIENT
    return ModelErrorClass.REJECTED


def _retry_after(error: exceptions.ModelHTTPError) -> float | None:
    """What the provider asked for; an error inside a stream bears the stream's headers, which say nothing of it."""
    headers = error.headers or {}
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None:
        try:
            asked = float(milliseconds)
        except ValueError:
            asked = -1.0
        if asked >= 0:
            return clamp(asked / 1000)
    return parse_retry_after(headers.get("retry-after"), datetime.now(UTC))


def _not_an_api(error: BaseException) -> str | None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotAnApi):
            return str(cause)
        cause = cause.__cause__
    return None


def _words(error: BaseException) -> str:
    """The provider's own words where there are some, with the status before them."""
    if isinstance(error, exceptions.ModelHTTPError):
        said = _said(error.body)
        words = f"{error.status_code} {said}" if said else f"status {error.status_code}"
    else:
        words = str(error).split("\n", 1)[0].strip() or type(error).__name__
    return words if len(words) <= _LONGEST_WORDS else words[:_LONGEST_WORDS] + " …"


def _said(body: object) -> str:
    """The message of an error body: ``{"error": {"message"}}``, ``{"message"}``, or a text."""
    match body:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            return " ".join(message.split())
        case str() if body.lstrip()[:1] != "<":
            return " ".join(body.split())
        case _:
            return ""
