"""The transcript: the journal folded into turns, and what is open in it.

``fold`` takes any list of entries, lawful or not, and never raises. It only collects what the journal says; what a
model is sent is ``Transcript.view`` (``core/view.py``), what comes next is ``next_step`` (``core/plan.py``).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter
from typing import Final
from uuid import UUID

from agentrt.core.budget import Spent
from agentrt.core.content import Text, ToolCall
from agentrt.core.journal import (
    ApprovalDecided,
    ApprovalRequested,
    AssistantMessage,
    Compaction,
    Effect,
    Entry,
    MessageQueued,
    ModelRetried,
    SessionCancelled,
    SessionCompleted,
    SessionFailed,
    SessionOrphaned,
    SessionRetried,
    SessionWoken,
    StopReason,
    ToolResult,
    ToolStarted,
    Usage,
    UserMessage,
    call_id,
)
from agentrt.core.messages import Message, ModelIdentity, ModelOutput, Result, ToolResults, UserInput, owner_of
from agentrt.core.session import CallId, Seq
from agentrt.core.turns import BROKEN, CALLS_NOTHING, Approval, ApprovalState, OpenCall, Turn, blank
from agentrt.core.view import summary_of, view

__all__ = [
    "Approval",
    "ApprovalState",
    "Message",
    "ModelIdentity",
    "ModelOutput",
    "OpenCall",
    "Result",
    "ToolResults",
    "Transcript",
    "Turn",
    "UserInput",
    "fold",
]

MAX_GO_ONS: Final = 2
"""How often in a row an answer cut by length is asked to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What the journal says.

    ``opening`` holds what stands before the first answer: a summary, user messages. ``highest_user_seq`` is the
    ``seen_seq`` of an answer to this view; ``undelivered`` are the user messages that no answer has seen, ``queued``
    those that wait for the next run. ``run_began`` is the index of the first turn of the present run. ``retries`` are
    the model calls that gave no answer, since the last answer, wake or start of the run. ``resumed_seq`` is where an
    operator last resumed the session. ``spent`` is of the present run, as far as these entries show it; running time
    is not in the journal.
    """

    last_seq: Seq = Seq(0)
    run: int = 0
    opening: tuple[UserInput, ...] = ()
    turns: tuple[Turn, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    undelivered: tuple[Seq, ...] = ()
    highest_user_seq: Seq = Seq(0)
    queued: tuple[Seq, ...] = ()
    run_began: int = 0
    retries: tuple[ModelRetried, ...] = ()
    resumed_seq: Seq = Seq(0)
    spent: Spent = field(default_factory=Spent)

    def view(self, identity: ModelIdentity | None) -> tuple[Message, ...]:
        """What the model ``identity`` is sent: valid for every provider, append-only from request to request.

        None is no model in particular: thinking and item ids are left out, as they are after a rejection.
        """
        return view(self.opening, self.turns, None if any(r.rejected for r in self.retries) else identity)


def fold(entries: Iterable[Entry] | None) -> Transcript:
    """The transcript of a journal: of all its entries, or of those from the last compaction's cover on."""
    ordered = sorted(entries or (), key=attrgetter("seq"))
    found = _Found()
    for entry in ordered:
        _take(found, entry)
    last = ordered[-1] if ordered else None
    return _arrange(found, Seq(last.seq if last else 0), run=last.run if last else 0)


# --- one pass over the journal: what was found ----------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """What the journal says of one call."""

    call: ToolCall
    result: ToolResult | None = None
    started: bool = False
    deferred: bool = False
    orphaned: int = 0
    approval: Approval | None = None

    @property
    def waits(self) -> bool:
        pending = self.approval is not None and self.approval.state is ApprovalState.PENDING
        return pending or self.deferred


@dataclass(slots=True)
class _Answer:
    seq: Seq
    answer: AssistantMessage
    calls: Sequence[_Call] = ()
    plain: bool = False


@dataclass(slots=True)
class _Found:
    answers: list[_Answer] = field(default_factory=list)
    answer_seqs: set[int] = field(default_factory=set)
    users: list[UserInput] = field(default_factory=list)
    interrupt_seq: int = 0
    queued: dict[int, None] = field(default_factory=dict)
    by_our_id: dict[str, _Call] = field(default_factory=dict)
    by_stored_id: dict[str, list[_Call]] = field(default_factory=dict)
    by_approval: dict[UUID, _Call] = field(default_factory=dict)
    latest: Sequence[_Call] = ()
    compaction: tuple[int, Compaction] | None = None
    terminal_seq: int = 0
    resumed_seq: int = 0
    retries: list[ModelRetried] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0
    cost: float = 0.0


def _take(found: _Found, entry: Entry) -> None:
    match entry.data:
        case AssistantMessage() as answer:
            _spend(found, answer.usage, answer.cost)
            _take_answer(found, entry.seq, answer)
        case ToolResult() | ToolStarted():
            _take_of_call(found, entry)
        case UserMessage() as message:
            _take_user(found, entry.seq, message)
        case MessageQueued():
            found.queued[entry.seq] = None
        case ModelRetried(usage=usage, cost=cost) as retried:
            _spend(found, usage, cost)
            found.retries.append(retried)
        case Compaction(usage=usage, cost=cost) as compaction:
            _spend(found, usage, cost)
            found.compaction = (min(compaction.covers_to, entry.seq - 1), compaction)
        case SessionWoken(by=by):
            found.retries.clear()
            found.resumed_seq = entry.seq if by == "resume" else found.resumed_seq
        case SessionCompleted() | SessionFailed() | SessionCancelled() | SessionRetried():
            _take_end_of_run(found, entry)
        case _:
            _take_of_call(found, entry)


def _take_user(found: _Found, seq: Seq, data: UserMessage) -> None:
    found.users.append(UserInput(data.content, seq))
    if data.when_running == "interrupt":
        found.interrupt_seq = seq
    if data.message_seq is not None:
        found.queued.pop(data.message_seq, None)


def _take_end_of_run(found: _Found, entry: Entry) -> None:
    found.retries.clear()
    found.turns, found.tokens, found.cost = 0, 0, 0.0
    found.terminal_seq = entry.seq
    if isinstance(entry.data, SessionCancelled):
        found.queued.clear()


def _spend(found: _Found, usage: Usage | None, cost: float | None) -> None:
    if usage is not None:
        found.tokens += usage.input_tokens + usage.output_tokens
    found.cost += cost or 0.0


def _take_answer(found: _Found, seq: Seq, data: AssistantMessage) -> None:
    found.turns += 1
    if any(retry.rejected for retry in found.retries):
        _send_plainly(found.answers, data)
    found.retries.clear()
    if seq in found.answer_seqs and data.provider is not None:
        data = replace(data, provider=None)  # a damaged journal: no item id is sent twice
    found.answer_seqs.add(seq)
    answer = _Answer(seq, data)
    found.answers.append(answer)
    for block in data.content:
        if block.__class__ is ToolCall:
            answer.answer, answer.calls = _with_our_ids(found, seq, data)
            break
    if answer.calls and data.stop_reason not in CALLS_NOTHING:
        found.latest = answer.calls


def _send_plainly(answers: Sequence[_Answer], accepted: AssistantMessage) -> None:
    """Of the model that gave ``accepted``: it has refused these answers as they were, and taken them without thinking
    and item ids. It is sent them in that way ever after."""
    owner = owner_of(accepted.provider)
    for found in answers:
        found.plain = found.plain or owner in (None, owner_of(found.answer.provider))


def _with_our_ids(found: _Found, seq: Seq, data: AssistantMessage) -> tuple[AssistantMessage, Sequence[_Call]]:
    """The answer with call ids derived from its seq; its calls are found by these and by the ids that were stored."""
    content = list(data.content)
    calls: list[_Call] = []
    for position, block in enumerate(data.content):
        if not isinstance(block, ToolCall):
            continue
        our_id = _unused(found.by_our_id, seq, position)
        call = found.by_our_id[our_id] = _Call(block)
        if block.call_id != our_id:
            found.by_stored_id.setdefault(block.call_id, []).append(call)
            call.call = content[position] = replace(block, call_id=our_id)
        calls.append(call)
    same = all(new is old for new, old in zip(content, data.content, strict=True))
    return data if same else replace(data, content=tuple(content)), calls


def _unused(used: Container[str], seq: Seq, position: int) -> CallId:
    """The id of a call; another one of the same form where a damaged journal has a seq twice."""
    unused, salt = call_id(seq, position), 0
    while unused in used:
        unused = CallId(hashlib.sha256(f"{seq}:{position}:{salt}".encode()).hexdigest()[:9])
        salt += 1
    return unused


def _take_of_call(found: _Found, entry: Entry) -> None:
    """What is said of one call, or of those that are open."""
    match entry.data:
        case ToolResult(call_id=known) as result:
            call = _find(found, known)
            if call is not None:
                call.result = result
        case ToolStarted(call_id=known) as started:
            call = _find(found, known)
            if call is not None:
                call.started = call.started or started.effect in (Effect.ONCE, Effect.TRANSACTIONAL)
                call.deferred = call.deferred or bool(started.deferred)
        case ApprovalRequested() as requested:
            _take_requested(found, requested)
        case ApprovalDecided() as decided:
            _take_decided(found, decided)
        case SessionOrphaned():
            for call in found.latest:
                call.orphaned += call.result is None and not call.waits
        case _:
            pass


def _find(found: _Found, known: str) -> _Call | None:
    """The call that we gave this id, else the first that was stored with it; one that has no result."""
    ours = found.by_our_id.get(known)
    if ours is not None and ours.result is None:
        return ours
    return next((call for call in found.by_stored_id.get(known, ()) if call.result is None), None)


def _take_requested(found: _Found, data: ApprovalRequested) -> None:
    known = data.call_id
    if known is None and data.position is not None and found.answers:
        known = call_id(found.answers[-1].seq, data.position)
    call = None if known is None else _find(found, known)
    if call is not None and call.approval is None:
        call.approval = Approval(id=data.approval_id, arguments_hash=data.arguments_hash, reason=data.reason)
        if data.approval_id is not None:
            found.by_approval[data.approval_id] = call


def _take_decided(found: _Found, data: ApprovalDecided) -> None:
    call = None if data.approval_id is None else found.by_approval.get(data.approval_id)
    call = call or _find(found, data.call_id)
    if call is None or call.approval is None or call.approval.state is not ApprovalState.PENDING:
        return
    state = ApprovalState(data.verdict) if data.verdict in _VERDICTS else ApprovalState.PENDING
    call.approval = replace(call.approval, state=state, reviewer=data.reviewer, comment=data.comment)


_VERDICTS = frozenset(state.value for state in ApprovalState)


# --- what was found, in the order in which a model sees it ----------------------------------------------------------


def _arrange(found: _Found, last_seq: Seq, *, run: int) -> Transcript:
    covers_to, summary = found.compaction or (0, None)
    users = [user for user in found.users if summary is None or user.seq > covers_to]
    answers = [
        kept
        for answer in found.answers
        if (summary is None or answer.seq > covers_to) and (kept := _kept(answer)) is not None
    ]
    seen = [min(answer.answer.seen_seq, answer.seq - 1) for answer in answers]
    slots = _slots(users, seen)
    turns = _turns(answers, slots[1:])
    last_seen = seen[-1] if seen else covers_to
    highest = max((user.seq for user in users), default=Seq(last_seen))
    opening = (UserInput((Text(summary_of(summary)),)), *slots[0]) if summary else tuple(slots[0])
    return Transcript(
        last_seq=last_seq,
        run=run,
        opening=opening,
        turns=turns,
        open_calls=_open_calls(found, answers[-1], last_seen) if answers else (),
        undelivered=tuple(user.seq for user in slots[-1]),
        highest_user_seq=max(highest, Seq(last_seen)),
        queued=tuple(Seq(seq) for seq in found.queued),
        run_began=sum(1 for turn in turns if turn.seq <= found.terminal_seq),
        retries=tuple(found.retries),
        resumed_seq=Seq(found.resumed_seq),
        spent=Spent(found.turns, found.tokens, found.cost),
    )


def _kept(found: _Answer) -> _Answer | None:
    """The answer as it counts, None when it does not: without the unanswered calls of a broken one, and only if there
    is something in it. A normal stop always counts, also with nothing in it."""
    answer = found.answer
    reason = answer.stop_reason
    broken = reason in BROKEN or (answer.message is not None and reason in _NORMAL)
    if broken or reason in CALLS_NOTHING:
        answered = [call for call in found.calls if call.result is not None]
        if broken and not answered:
            return None
        if len(answered) < len(found.calls):
            ids = {call.call.call_id for call in answered}
            content = tuple(b for b in answer.content if not isinstance(b, ToolCall) or b.call_id in ids)
            found = replace(found, answer=replace(answer, content=content), calls=answered)
    if reason in (StopReason.STOP, StopReason.REFUSED) or not blank(found.answer.content):
        return found
    return found if reason is StopReason.PAUSED and answer.provider else None


_NORMAL = frozenset({StopReason.STOP, StopReason.TOOL_CALLS, StopReason.LENGTH})


def _slots(users: Sequence[UserInput], seen: Sequence[int]) -> list[list[UserInput]]:
    """The user messages before the first answer, and behind each answer: a message stands behind the last answer that
    had not seen it."""
    later = list(accumulate(reversed(seen), min))[::-1]  # the least that this answer and those behind it have seen
    slots: list[list[UserInput]] = [[] for _ in range(len(seen) + 1)]
    for user in users:
        slots[bisect_left(later, user.seq)].append(user)
    return slots


def _turns(answers: Sequence[_Answer], slots: Sequence[list[UserInput]]) -> tuple[Turn, ...]:
    """The turns, with "go on" behind the first two answers in a row that were cut by length. It is left out where a
    user message was waiting already: whether it stands there never changes afterwards."""
    turns: list[Turn] = []
    go_ons = 0
    for found, users in zip(answers, slots, strict=True):
        calls = tuple(call.call for call in found.calls)
        results = tuple(call.result for call in found.calls)
        turn = Turn(found.seq, found.answer, calls, results, tuple(users), plain=found.plain)
        if turn.cut and go_ons < MAX_GO_ONS and not (users and users[0].seq < turn.seq):
            turn = replace(turn, go_on=True)
        turns.append(turn)
        go_ons = go_ons + 1 if turn.go_on and not users else 0
    return tuple(turns)


def _open_calls(found: _Found, answer: _Answer, seen: int) -> tuple[OpenCall, ...]:
    closed_off = found.terminal_seq > answer.seq or found.interrupt_seq > seen
    return tuple(
        OpenCall(call.call, answer.seq, call.started, call.deferred, call.orphaned, closed_off, call.approval)
        for call in answer.calls
        if call.result is None
    )
