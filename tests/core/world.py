"""The simulated world that lawful journals come from: a session, its journal, and the tape that decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from agentrt.core.calls import ToolTraits
from agentrt.core.codec import with_call_ids
from agentrt.core.journal import (
    AssistantMessage,
    Effect,
    Entry,
    EntryData,
)
from agentrt.core.messages import Message, ModelIdentity
from agentrt.core.plan import Step, Wait
from agentrt.core.session import CallId, FencingToken, Seq, Status
from agentrt.core.transcript import Transcript, fold

MODELS = (
    ModelIdentity("anthropic", "anthropic", "claude"),
    ModelIdentity("openai-responses", "openai", "gpt"),
    ModelIdentity("openai-chat", "mistral", "large"),
)
TOOLS = {
    "read": ToolTraits(effect=Effect.READ),
    "write": ToolTraits(effect=Effect.ONCE),
    "plain": ToolTraits(),
    "keyed": ToolTraits(effect=Effect.IDEMPOTENT),
    "local": ToolTraits(effect=Effect.TRANSACTIONAL),
    "pay": ToolTraits(effect=Effect.ONCE, reconciles=True),
    "guarded": ToolTraits(effect=Effect.ONCE),  # always asks for approval
    "later": ToolTraits(effect=Effect.READ),  # always defers
    "ask_user": ToolTraits(effect=Effect.READ, pauses=True),
}
NAMES = tuple(TOOLS)
MAX_STEPS = 60


@dataclass
class Tape:
    """Bytes that decide. 0 is always the plainest choice."""

    content: bytes
    at: int = 0

    def pick(self, choices: int) -> int:
        self.at += 1
        return self.content[self.at - 1] % choices if self.at <= len(self.content) else 0

    def once_in(self, chances: int) -> bool:
        return self.pick(chances) == chances - 1


class Crash(Exception):
    """The owner is gone; what it had not committed is lost."""


@dataclass
class Request:
    """One model call: what was sent, to whom, and the planner's reading of the journal."""

    messages: tuple[Message, ...]
    identity: ModelIdentity
    transcript: Transcript


@dataclass(repr=False)
class World:
    """One session. ``faults`` False: no crash, cancel, interrupt, release or failing tool happens."""

    tape: Tape
    faults: bool = True
    entries: list[Entry] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    executions: Counter[CallId] = field(default_factory=Counter)
    asked_twice: set[CallId] = field(default_factory=set)
    status: Status = Status.QUEUED
    run: int = 1
    attempt: int = 0
    token: int = 0
    identity: ModelIdentity = MODELS[0]
    waits: Wait | None = None
    steps: list[Step] = field(default_factory=list)
    folded: Transcript | None = None

    def __repr__(self) -> str:
        return f"tell({self.tape.content!r}, faults={self.faults})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def write(self, *entries: EntryData) -> Seq:
        for data in entries:
            seq = Seq(len(self.entries) + 1)
            if isinstance(data, AssistantMessage):  # the database puts the ids into it
                stored: EntryData = replace(data, content=with_call_ids(data.content, seq=seq))
            else:
                stored = data
            token = FencingToken(self.token)
            self.entries.append(Entry(seq=seq, run=self.run, attempt=self.attempt, fencing_token=token, data=stored))
        return Seq(len(self.entries))

    def transcript(self) -> Transcript:
        """The journal folded, anew only when it has grown."""
        if self.folded is None or self.folded.last_seq != len(self.entries):
            self.folded = fold(self.entries)
        return self.folded
