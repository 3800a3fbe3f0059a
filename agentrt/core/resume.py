"""What a takeover found: asked once after a claim, answered by the same judgement that plans every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agentrt.core.budget import Limits
from agentrt.core.calls import Close, Reconcile, Run, ToolTraits, judge, unresolved_unknowns
from agentrt.core.journal import ToolResult
from agentrt.core.plan import AskModel, next_step
from agentrt.core.transcript import OpenCall, Transcript


class ResumeKind(StrEnum):
    START = "start"
    CONTINUE = "continue"
    ALREADY_COMPLETE = "already_complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """``close``: results to journal in the first commit, with ``session_resumed``. ``reconcile``: calls whose tools
    are asked what became of them. ``rerun``: calls that will be run, for the first time or again."""

    kind: ResumeKind
    close: tuple[ToolResult, ...] = ()
    reconcile: tuple[OpenCall, ...] = ()
    rerun: tuple[OpenCall, ...] = ()


def plan_resume(transcript: Transcript, tools: Mapping[str, ToolTraits]) -> ResumePlan:
    """What the claim found: nothing answered yet, work left, or only the end to be written."""
    unresolved = unresolved_unknowns(transcript)
    judged = [(call, judge(call, tools, unresolved)) for call in transcript.open_calls]
    return ResumePlan(
        kind=_kind(transcript, tools),
        close=tuple(verdict.result for _, verdict in judged if isinstance(verdict, Close) and verdict.left_open),
        reconcile=tuple(call for call, verdict in judged if isinstance(verdict, Reconcile)),
        rerun=tuple(call for call, verdict in judged if isinstance(verdict, Run)),
    )


def _kind(transcript: Transcript, tools: Mapping[str, ToolTraits]) -> ResumeKind:
    if not transcript.turns:
        return ResumeKind.START
    if transcript.open_calls or isinstance(next_step(transcript, _UNLIMITED, tools), AskModel):
        return ResumeKind.CONTINUE
    return ResumeKind.ALREADY_COMPLETE


_UNLIMITED = Limits(turns=None)
