"""The messages of a view: what a model is sent, in the order in which a provider wants them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from agentrt.core.content import Content
from agentrt.core.journal import StopReason, ToolOutcome
from agentrt.core.session import CallId, Seq

MODEL_NAME: Final = re.compile(r"(?P<provider>[a-z0-9][a-z0-9_/-]*):(?P<model>\S+)")
"""``"provider:name"``; a provider behind a gateway is ``gateway/provider``."""


class ModelIdentity(NamedTuple):
    """To what thinking and item ids belong. ``format`` is the API's (``openai-chat``, ``openai-responses``,
    ``anthropic``, …), ``provider`` the vendor or gateway, ``model`` the model's name."""

    format: str
    provider: str
    model: str

    def signed(self, provider: Mapping[str, Any] | None) -> bool:
        """Whether an answer's opaque ``provider`` object is this model's own."""
        return self == owner_of(provider)


def owner_of(provider: Mapping[str, Any] | None) -> tuple[Any, Any, Any] | None:
    """To whom an answer's opaque ``provider`` object belongs, in the order of ``ModelIdentity``."""
    return None if provider is None else (provider.get("format"), provider.get("provider"), provider.get("model"))


@dataclass(frozen=True, slots=True)
class UserInput:
    """One user message, at its journal seq (0 when fold inserted it, as the fixed "go on")."""

    content: Content
    seq: Seq = Seq(0)


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One answer as it is sent back. ``provider`` is None when thinking and item ids must not be sent.

    ``positions`` tells for each block of ``content`` where it stands in the journaled answer's content: blank text and
    unknown blocks are left out, and calls come last.
    """

    content: Content
    seq: Seq = Seq(0)
    stop_reason: StopReason = StopReason.STOP
    provider: Mapping[str, Any] | None = None
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    call_id: CallId
    tool: str
    content: str
    outcome: ToolOutcome = ToolOutcome.OK


@dataclass(frozen=True, slots=True)
class ToolResults:
    """All results of the answer before it, in call order; exactly one message per batch."""

    results: tuple[Result, ...]


Message = UserInput | ModelOutput | ToolResults
"""One message of the view."""
