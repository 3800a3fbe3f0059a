"""Short words for writing journals in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrt.core.budget import Limits
from agentrt.core.calls import ToolTraits
from agentrt.core.codec import with_call_ids
from agentrt.core.content import Block, Text, ToolCall
from agentrt.core.journal import (
    AssistantMessage,
    Effect,
    Entry,
    EntryData,
    StopReason,
    ToolOutcome,
    ToolResult,
    ToolStarted,
    UserMessage,
    call_id,
)
from agentrt.core.messages import Message, ModelIdentity, ModelOutput, ToolResults
from agentrt.core.plan import Step, next_step
from agentrt.core.resume import ResumePlan, plan_resume
from agentrt.core.session import CallId, Seq
from agentrt.core.transcript import fold

CLAUDE = ModelIdentity("anthropic", "anthropic", "claude")
GPT = ModelIdentity("openai-responses", "openai", "gpt")

TOOLS = {
    "read": ToolTraits(effect=Effect.READ),
    "keyed": ToolTraits(effect=Effect.IDEMPOTENT),
    "local": ToolTraits(effect=Effect.TRANSACTIONAL),
    "write": ToolTraits(effect=Effect.ONCE),
    "plain": ToolTraits(),
    "pay": ToolTraits(effect=Effect.ONCE, reconciles=True),
    "risky": ToolTraits(effect=Effect.ONCE, on_unknown="retry_allowed"),
    "grave": ToolTraits(effect=Effect.ONCE, on_unknown="suspend"),
    "ask_user": ToolTraits(effect=Effect.READ, pauses=True),
}

_SAW_ALL = Seq(-1)


def journal(*parts: EntryData) -> list[Entry]:
    """Entries with seqs from 1. Answers get their call ids, and the ``seen_seq`` of one who saw all before it."""
    entries: list[Entry] = []
    user_seq = 0
    for n, part in enumerate(parts, 1):
        data = part
        if isinstance(data, UserMessage):
            user_seq = n
        if isinstance(data, AssistantMessage):
            seen = Seq(user_seq) if data.seen_seq == _SAW_ALL else data.seen_seq
            data = replace(data, content=with_call_ids(data.content, seq=n), seen_seq=seen)
        entries.append(Entry(seq=Seq(n), data=data))
    return entries


def user(text: str = "hello", **more: Any) -> UserMessage:
    return UserMessage((Text(text),), **more)


def answer(*blocks: Block | str, stop: str | None = None, seen: int = -1, **more: Any) -> AssistantMessage:
    content = tuple(Text(block) if isinstance(block, str) else block for block in blocks)
    calls = any(isinstance(block, ToolCall) for block in content)
    reason = StopReason(stop) if stop else StopReason.TOOL_CALLS if calls else StopReason.STOP
    return AssistantMessage(content, "claude", reason, Seq(seen), **more)


def call(tool: str = "read", arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(tool, arguments, **more)


def result(seq: int, position: int = 0, *, content: str = "done", outcome: str = "ok") -> ToolResult:
    """The result of the call at ``position`` of the answer at ``seq``."""
    return ToolResult(call_id(seq, position), "read", content, ToolOutcome(outcome))


def started(seq: int, position: int = 0, **more: Any) -> ToolStarted:
    return ToolStarted(call_id(seq, position), **more)


def step(*parts: EntryData, limits: Limits | None = None) -> Step:
    return next_step(fold(journal(*parts)), limits or Limits(), TOOLS)


def plan(*parts: EntryData) -> ResumePlan:
    return plan_resume(fold(journal(*parts)), TOOLS)


def view(*parts: EntryData, identity: ModelIdentity | None = None) -> tuple[Message, ...]:
    return fold(journal(*parts)).view(identity)


def shape(messages: tuple[Message, ...]) -> list[str]:
    """The view in one word per message: u2 (user, seq 2), a3 (answer), r[ok,unknown] (results), + (inserted)."""
    words = []
    for message in messages:
        if isinstance(message, ModelOutput):
            words.append(f"a{message.seq}")
        elif isinstance(message, ToolResults):
            words.append(f"r[{','.join(r.outcome for r in message.results)}]")
        else:
            words.append(f"u{message.seq}" if message.seq else "+")
    return words


def wire_id(seq: int, position: int = 0) -> CallId:
    return call_id(seq, position)
