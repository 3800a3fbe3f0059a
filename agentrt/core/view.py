"""The view: turns as a provider takes them. The journal is never rewritten; what no provider takes is left out here.

Sources of the rules, by provider, are listed in the strict validator of the tests (``tests/strictprovider/rules.py``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agentrt.core.content import Block, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.journal import Compaction, StopReason
from agentrt.core.messages import Message, ModelIdentity, ModelOutput, Result, ToolResults, UserInput
from agentrt.core.repair import repair_orphaned_tool_calls
from agentrt.core.storable import storable_text
from agentrt.core.turns import Turn, blank

GO_ON: Final = UserInput((Text("Go on exactly where you stopped."),))
"""What asks for the rest of an answer that was cut by length."""

OPENING: Final = UserInput((Text("(The conversation begins with an answer.)"),))
EMPTY_MESSAGE: Final = Text("(A message without content.)")
UNKNOWN_MESSAGE: Final = Text("(A message that cannot be shown here.)")
EMPTY_RESULT: Final = "(no output)"


def view(opening: Sequence[UserInput], turns: Sequence[Turn], identity: ModelIdentity | None) -> tuple[Message, ...]:
    """The messages of a request to the model ``identity``: valid, and append-only from request to request."""
    messages: list[Message] = [_user(user) for user in opening]
    if turns and not messages:
        messages.append(OPENING)
    for turn in turns:
        output = _output(turn, identity)
        if output is not None:
            messages.append(output)
        if turn.calls:
            messages.append(_results(turn))
        elif turn.go_on or (turn.answer.stop_reason is StopReason.PAUSED and not (output and output.provider)):
            messages.append(GO_ON)  # what another model paused cannot be continued by itself
        messages.extend(_user(user) for user in turn.users)
    return tuple(repair_orphaned_tool_calls(messages)[0])


def summary_of(compaction: Compaction) -> str:
    """The text that stands for what a compaction covers."""
    return f"(Summary of the conversation so far.)\n{compaction.summary}"


def _user(user: UserInput) -> UserInput:
    """The message with what can be sent of it; never empty."""
    content = tuple(
        _clean(block)
        for block in user.content
        if not isinstance(block, Thinking | ToolCall | UnknownBlock) and not _blank_text(block)
    )
    return UserInput(content or ((EMPTY_MESSAGE if blank(user.content) else UNKNOWN_MESSAGE),), user.seq)


def _output(turn: Turn, identity: ModelIdentity | None) -> ModelOutput | None:
    """The answer as it goes back, calls last; None when nothing of it can be sent."""
    answer = turn.answer
    own = identity is not None and not turn.plain and identity.signed(answer.provider)
    kept = [
        (position, block)
        for position, block in enumerate(answer.content)
        if not (isinstance(block, UnknownBlock) or _blank_text(block) or (isinstance(block, Thinking) and not own))
    ]
    if turn.calls:
        kept.sort(key=lambda item: isinstance(item[1], ToolCall))
    while kept and isinstance(kept[-1][1], Thinking):
        kept.pop()  # nothing follows it: no provider takes that
    if not kept and not (own and answer.stop_reason is StopReason.PAUSED):
        return None
    return ModelOutput(
        content=tuple(_clean(block) for _, block in kept),
        seq=turn.seq,
        stop_reason=answer.stop_reason,
        provider=answer.provider if own else None,
        positions=tuple(position for position, _ in kept),
    )


def _results(turn: Turn) -> ToolResults:
    """The results that there are, in call order."""
    return ToolResults(
        tuple(
            Result(call.call_id, _tool_name(call.tool), _result_text(result.content), result.outcome)
            for call, result in zip(turn.calls, turn.results, strict=True)
            if result is not None
        )
    )


def _result_text(content: str) -> str:
    return storable_text(content) if content.strip() else EMPTY_RESULT


def _blank_text(block: Block) -> bool:
    return isinstance(block, Text) and not block.text.strip()


def _clean(block: Block) -> Block:
    """The block with what no provider takes replaced; the same object when it is fine as it is."""
    match block:
        case Text() | Thinking():
            text = storable_text(block.text)
            return block if text is block.text else replace(block, text=text)
        case ToolCall():
            tool, arguments = _tool_name(block.tool), _arguments(block.arguments)
            same = tool is block.tool and arguments is block.arguments
            return block if same else ToolCall(tool, arguments, block.call_id)
        case _:
            return block


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _tool_name(name: str) -> str:
    """A name of the form that every provider takes, for tools that a model invented."""
    if _NAME.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def _arguments(text: str) -> str:
    """Arguments as they were received if they are a JSON object that can be sent, else an object that shows them."""
    try:
        parsed = _STRICT.decode(text)
        if isinstance(parsed, dict) and not _UNSENDABLE.search(text):
            return text
    except (ValueError, RecursionError):
        pass
    return json.dumps({"not_a_json_object": storable_text(text)})


_UNSENDABLE = re.compile(r"[\x00\ud800-\udfff]|\\ud[89a-f]", re.IGNORECASE)
"""Characters that cannot be encoded, and escapes that may become such."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number of JSON")
    return number


_STRICT: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
