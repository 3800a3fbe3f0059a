"""An exported journal made ours: calls named by where they stand, and the dedup keys that a worker or client left.

An export holds no dedup keys, and may come from elsewhere: without the keys what was done once would be done again, and
with foreign call ids what is said of one call could be taken for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentrt.core.content import Content, ToolCall
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Entry,
    MessageQueued,
    ToolResult,
    ToolStarted,
    UserMessage,
    call_id,
)
from agentrt.core.session import CallId, Seq
from agentrt.core.storable import storable_text

_LONGEST_PLAIN_KEY = 500  # bytes; as agentrt.send_message has it


@dataclass(slots=True)
class _Call:
    id: CallId
    answered: bool = False


@dataclass(slots=True)
class _Seen:
    ours: dict[str, _Call] = field(default_factory=dict)
    theirs: dict[str, list[_Call]] = field(default_factory=dict)
    queued: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


def adopted(entries: Sequence[Entry]) -> list[Entry]:
    """``entries``, in order, with derived call ids everywhere, and with dedup keys: each once, on the entry that has
    it first."""
    seen = _Seen()
    return [_adopted(seen, entry) for entry in entries]


def _adopted(seen: _Seen, entry: Entry) -> Entry:
    key: str | None = None
    data = entry.data
    match data:
        case AssistantMessage(content=content):
            data = replace(data, content=_named(seen, entry.seq, content))
        case MessageQueued(request_id=request_id):
            seen.queued.add(entry.seq)
            key = _request_key(request_id)
        case UserMessage(request_id=request_id, message_seq=message_seq):
            promoted = message_seq in seen.queued
            key = f"w:message:{message_seq}" if promoted else _request_key(request_id)
        case ToolResult() | ToolStarted() | ApprovalDecided():
            call = _find(seen, data.call_id)
            if call is not None:
                data = replace(data, call_id=call.id)
                if isinstance(data, ToolResult):
                    call.answered = True
                    key = f"w:result:{call.id}"
        case ApprovalRequested(call_id=str() as known):
            call = _find(seen, known)
            data = data if call is None else replace(data, call_id=call.id)
        case _:
            pass
    if key in seen.keys:
        key = None
    elif key is not None:
        seen.keys.add(key)
    return replace(entry, data=data, dedup_key=key)


def _named(seen: _Seen, seq: Seq, content: Content) -> Content:
    named = list(content)
    for position, block in enumerate(content):
        if isinstance(block, ToolCall):
            call = seen.ours[call_id(seq, position)] = _Call(call_id(seq, position))
            seen.theirs.setdefault(block.call_id, []).append(call)
            named[position] = replace(block, call_id=call.id)
    return tuple(named)


def _find(seen: _Seen, known: str) -> _Call | None:
    """The call that a transcript takes it for."""
    ours = seen.ours.get(known)
    candidates = [*([ours] if ours else []), *seen.theirs.get(known, ())]
    return next((call for call in candidates if not call.answered), None)


def _request_key(request_id: str | None) -> str | None:
    if request_id is None:
        return None
    raw = storable_text(request_id).encode()
    return f"c:{request_id}" if len(raw) <= _LONGEST_PLAIN_KEY else f"c:sha256:{hashlib.sha256(raw).hexdigest()}"
