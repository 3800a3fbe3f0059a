"""The parts of a transcript: turns, and calls that are open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from agentrt.core.content import Content, Text, Thinking, ToolCall
from agentrt.core.journal import AssistantMessage, StopReason, ToolResult
from agentrt.core.messages import UserInput
from agentrt.core.session import Seq

BROKEN: Final = frozenset({StopReason.ERROR, StopReason.ABORTED})
"""Answers that did not come to their end: only what was answered of them counts."""

CALLS_NOTHING: Final = BROKEN | {StopReason.INTERRUPTED, StopReason.REFUSED}
"""Answers whose calls are neither run nor answered."""


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    OBSOLETE = "obsolete"


@dataclass(frozen=True, slots=True)
class Approval:
    """Where a call's approval stands."""

    state: ApprovalState = ApprovalState.PENDING
    id: UUID | None = None
    arguments_hash: str = ""
    reason: str | None = None
    reviewer: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the last answer that has no result.

    ``started``: a ``tool_started`` stands in the journal, of effect ``once``, or ``transactional``, which has one only
    when it was deferred. ``deferred``: it will be answered from outside. ``orphaned``: how many owners died while it
    was to run. ``closed_off``: a terminal entry or an interrupt stands behind it, so it is not run any more.
    """

    call: ToolCall
    seq: Seq
    started: bool = False
    deferred: bool = False
    orphaned: int = 0
    closed_off: bool = False
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, its calls (with our ids) and their results (None: none yet), and what stands after it.

    ``go_on``: the fixed text that asks to continue an answer cut by length stands after it, before ``users``.
    ``plain``: its model has taken it back only without thinking and item ids.
    """

    seq: Seq
    answer: AssistantMessage
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult | None, ...] = ()
    users: tuple[UserInput, ...] = ()
    go_on: bool = False
    plain: bool = False

    @property
    def cut(self) -> bool:
        """Cut by length, with something usable and without calls."""
        return self.answer.stop_reason is StopReason.LENGTH and not self.calls

    @property
    def text(self) -> str:
        """The visible text of the answer."""
        return "".join(block.text for block in self.answer.content if isinstance(block, Text))


def blank(content: Content) -> bool:
    """Whether there is nothing to show: no block, or only white space and thinking."""
    return all(isinstance(b, Thinking) or (isinstance(b, Text) and not b.text.strip()) for b in content)
