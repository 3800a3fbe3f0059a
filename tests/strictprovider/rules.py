"""What the real providers refuse, as one pure function over a neutral conversation.

`validate` is the union of the providers' rules, so that a conversation that passes here can be sent to any of
them. Where a rule is stricter than every provider that we know, its docstring says so. Sources, by what the
provider answers with status 400:

* Anthropic, Messages API: platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use (results at the
  start of the very next user message), .../build-with-claude/extended-thinking (signed thinking unchanged),
  anthropics/claude-code issues 5060, 13460 (orphans), 23369 (white space), 10627 (signatures), 60394 (surrogates),
  trycua/cua issue 524 (ids must be unique), maximhq/bifrost issue 5097 (form of ids), cloudflare/agents pull
  request 1618 (no assistant message at the end).
* OpenAI, Chat Completions: platform.openai.com/docs/guides/function-calling; BerriAI/litellm issue 10083 (calls
  without results), camel-ai/camel issue 3339 (results without calls).
* OpenAI, Responses: platform.openai.com/docs/guides/reasoning; mastra-ai/mastra issue 8738 (a call without its
  reasoning item), vercel/ai issue 7099 (a reasoning item without what follows it), openai/codex issue 8145
  (encrypted content of somebody else), bytedance/trae-agent issue 245, microsoft/vscode issue 320060 (orphans).
* Mistral: docs.mistral.ai/capabilities/function_calling; anomalyco/opencode issue 1680 (ids of nine letters and
  digits).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .conversation import (
    AssistantMessage,
    Message,
    ProviderItem,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    WireFormat,
    strings_of,
)

WIRE_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
"""Our own ids on the wire: the only form that Mistral takes, and legal everywhere else."""

ANY_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What Anthropic takes; OpenAI limits the length to 64."""


class Rule(StrEnum):
    """Why a conversation is refused."""

    FIRST_NOT_USER = "first message is not the user's"
    LAST_IS_ASSISTANT = "last message is the assistant's"
    EMPTY_CONVERSATION = "no messages"
    EMPTY_MESSAGE = "message without content"
    BLANK_TEXT = "text of white space only"
    CALL_WITHOUT_RESULT = "call without a result directly after it"
    RESULT_WITHOUT_CALL = "result without its call directly before it"
    RESULTS_SPLIT = "results of one answer in more than one message"
    RESULT_ORDER = "results in another order than their calls"
    REPEATED_RESULT = "second result for a call"
    REPEATED_CALL_ID = "call id used twice in the conversation"
    CALL_ID_FORM = "call id of a forbidden form"
    CALL_WITHOUT_NAME = "call without a tool's name"
    UNKNOWN_TOOL = "call of a tool that the request does not offer"
    ARGUMENTS_NOT_OBJECT = "arguments are not a JSON object"
    TEXT_AFTER_CALL = "text after a call in the same answer"
    THINKING_UNSIGNED = "thinking without a signature"
    THINKING_FOREIGN = "thinking that another model signed, or that was altered"
    THINKING_LAST = "thinking that nothing follows in its answer"
    THINKING_MISSING = "answer with calls that does not start with thinking, although thinking is on"
    THINKING_AS_TEXT = "thinking sent as ordinary text"
    WITHOUT_REASONING_ITEM = "item without the reasoning item it came with"
    REPEATED_ITEM_ID = "item id used twice in the conversation"
    BAD_CHARACTER = "NUL or lone surrogate"
    BAD_REQUEST = "not a request of this format"


@dataclass(frozen=True, slots=True)
class Violation:
    """`at` is the index of the message, -1 for the request as a whole."""

    rule: Rule
    at: int
    detail: str

    def __str__(self) -> str:
        return (
            f"messages[{self.at}]: {self.rule.value}: {self.detail}" if self.at >= 0 else f"{self.rule}: {self.detail}"
        )


@dataclass(frozen=True, slots=True)
class Strictness:
    """What `validate` may assume about the request around the conversation.

    `tools`: names offered, None for no check. `origin`: who signs thinking for this model, None for no check of
    whose it is. `allowed_arguments`: argument texts that pass although they are no JSON object.
    `thinking_required`: thinking is switched on with a budget, so that an unfinished tool loop must show it.
    """

    call_id: re.Pattern[str] = WIRE_CALL_ID
    tools: Collection[str] | None = None
    origin: str | None = None
    allowed_arguments: Collection[str] = ()
    thinking_required: bool = False


def validate(
    messages: Sequence[Message], *, wire_format: WireFormat, strictness: Strictness | None = None
) -> list[Violation]:
    """Everything that is wrong with a conversation; an empty list means that every provider takes it."""
    check = _Check(messages, wire_format, strictness or Strictness())
    check.run()
    return check.found


class _Check:
    """One pass over the messages with what must be remembered between them."""

    def __init__(self, messages: Sequence[Message], wire_format: WireFormat, strictness: Strictness) -> None:
        self.messages = messages
        self.wire_format = wire_format
        self.strictness = strictness
        self.found: list[Violation] = []
        self.call_ids: set[str] = set()
        self.item_ids: set[str] = set()
        self.answered: set[str] = set()

    def add(self, rule: Rule, at: int, detail: str) -> None:
        self.found.append(Violation(rule, at, detail))

    def run(self) -> None:
        if not self.messages:
            self.add(Rule.EMPTY_CONVERSATION, -1, "at least one user message is required")
            return
        if not isinstance(self.messages[0], UserMessage):
            self.add(Rule.FIRST_NOT_USER, 0, type(self.messages[0]).__name__)
        for at, message in enumerate(self.messages):
            self._characters(at, message)
            if isinstance(message, UserMessage):
                self._user(at, message)
            elif isinstance(message, AssistantMessage):
                self._assistant(at, message)
            else:
                self._results(at, message)
        last = self.messages[-1]
        if isinstance(last, AssistantMessage) and not last.paused:
            self.add(Rule.LAST_IS_ASSISTANT, len(self.messages) - 1, "the conversation must end with a user message")
        if self.strictness.thinking_required:
            self._thinking_of_open_loop()

    def _characters(self, at: int, message: Message) -> None:
        for text in strings_of(message):
            if bad := bad_character(text):
                self.add(Rule.BAD_CHARACTER, at, bad)

    def _user(self, at: int, message: UserMessage) -> None:
        if not message.blocks:
            self.add(Rule.EMPTY_MESSAGE, at, "user message")
        for block in message.blocks:
            if isinstance(block, Text):
                self._text(at, block)

    def _text(self, at: int, block: Text) -> None:
        if not block.text.strip():
            self.add(Rule.BLANK_TEXT, at, repr(block.text[:20]))
        elif block.text.lstrip().startswith(("<think>", "<thinking>", "<assistant_thinking>")):
            self.add(Rule.THINKING_AS_TEXT, at, repr(block.text[:40]))

    def _assistant(self, at: int, message: AssistantMessage) -> None:
        if not any(not isinstance(block, Thinking) for block in message.blocks):
            self.add(Rule.EMPTY_MESSAGE, at, "assistant message" + (" with thinking only" if message.blocks else ""))
        seen_call = False
        reasoning: set[str] = set()
        for position, block in enumerate(message.blocks):
            if isinstance(block, Text):
                self._text(at, block)
                self._item(at, block, reasoning)
                if seen_call and self.wire_format is WireFormat.ANTHROPIC:
                    self.add(Rule.TEXT_AFTER_CALL, at, repr(block.text[:40]))
            elif isinstance(block, ToolCall):
                seen_call = True
                self._call(at, block)
                self._item(at, block, reasoning)
            elif isinstance(block, Thinking):
                if block.item_id:
                    reasoning.add(block.item_id)
                self._thinking(at, block, is_last=position == len(message.blocks) - 1)
        self._calls_are_answered(at, message)

    def _item(self, at: int, block: Text | ToolCall, reasoning: set[str]) -> None:
        """OpenAI Responses remembers which reasoning item an item came with, and wants it back with it."""
        if block.requires is not None and block.requires not in reasoning:
            self.add(Rule.WITHOUT_REASONING_ITEM, at, f"{block.item_id} without {block.requires}")
        if block.item_id is not None:
            if block.item_id in self.item_ids:
                self.add(Rule.REPEATED_ITEM_ID, at, block.item_id)
            self.item_ids.add(block.item_id)

    def _call(self, at: int, call: ToolCall) -> None:
        if not self.strictness.call_id.fullmatch(call.call_id):
            self.add(Rule.CALL_ID_FORM, at, repr(call.call_id))
        if call.call_id in self.call_ids:
            self.add(Rule.REPEATED_CALL_ID, at, repr(call.call_id))
        self.call_ids.add(call.call_id)
        if not call.name.strip():
            self.add(Rule.CALL_WITHOUT_NAME, at, repr(call.call_id))
        elif self.strictness.tools is not None and call.name not in self.strictness.tools:
            self.add(Rule.UNKNOWN_TOOL, at, repr(call.name))
        if not is_json_object(call.arguments) and call.arguments not in self.strictness.allowed_arguments:
            self.add(Rule.ARGUMENTS_NOT_OBJECT, at, repr(call.arguments[:60]))

    def _thinking(self, at: int, block: Thinking, *, is_last: bool) -> None:
        """Signed by this model, unaltered, and followed by something (Anthropic, OpenAI Responses).

        Chat Completions knows no signatures; there only the origin counts, which is stricter than any provider.
        """
        if not block.signature and self.wire_format is not WireFormat.OPENAI_CHAT:
            self.add(Rule.THINKING_UNSIGNED, at, repr(block.text[:40]))
        elif self.strictness.origin is not None and block.origin != self.strictness.origin:
            self.add(Rule.THINKING_FOREIGN, at, f"of {block.origin!r}, expected {self.strictness.origin!r}")
        if is_last:
            self.add(Rule.THINKING_LAST, at, repr(block.text[:40]))

    def _calls_are_answered(self, at: int, message: AssistantMessage) -> None:
        """Every result of an answer stands in the one message after it, in the calls' order.

        Anthropic wants one user message that starts with them, OpenAI a run of tool messages; that the order is
        the calls' is stricter than both, and what keeps the view the same from request to request.
        """
        calls = [call.call_id for call in message.calls]
        if not calls:
            return
        following = self.messages[at + 1] if at + 1 < len(self.messages) else None
        results = [result.call_id for result in following.results] if isinstance(following, ToolMessage) else []
        present = set(results)
        missing = [call_id for call_id in calls if call_id not in present]
        if missing:
            self.add(Rule.CALL_WITHOUT_RESULT, at, ", ".join(map(repr, missing)))
        wanted = set(calls)
        if (
            not missing
            and [call_id for call_id in results if call_id in wanted] != calls
            and len(results) == len(calls)
        ):
            self.add(Rule.RESULT_ORDER, at + 1, f"{results} for {calls}")

    def _results(self, at: int, message: ToolMessage) -> None:
        before = self.messages[at - 1] if at else None
        calls = {call.call_id for call in before.calls} if isinstance(before, AssistantMessage) else set()
        if not message.results:
            self.add(Rule.EMPTY_MESSAGE, at, "message of results")
        if isinstance(before, ToolMessage):
            self.add(Rule.RESULTS_SPLIT, at, ", ".join(repr(result.call_id) for result in message.results))
        for result in message.results:
            if result.call_id in self.answered:
                self.add(Rule.REPEATED_RESULT, at, repr(result.call_id))
            elif result.call_id not in calls:
                self.add(Rule.RESULT_WITHOUT_CALL, at, repr(result.call_id))
            self.answered.add(result.call_id)
            for block in result.blocks:
                if isinstance(block, Text) and not block.text.strip():
                    self.add(Rule.BLANK_TEXT, at, f"in the result of {result.call_id!r}")

    def _thinking_of_open_loop(self) -> None:
        """With a thinking budget Anthropic wants the last answer of an unfinished tool loop to start with thinking."""
        if len(self.messages) < 2 or not isinstance(self.messages[-1], ToolMessage):
            return
        answer = self.messages[-2]
        if isinstance(answer, AssistantMessage) and answer.calls:
            first = answer.blocks[0]
            if not isinstance(first, Thinking | ProviderItem):
                self.add(Rule.THINKING_MISSING, len(self.messages) - 2, f"starts with {type(first).__name__}")


def is_json_object(text: str) -> bool:
    if text == "{}":
        return True
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def bad_character(text: str) -> str | None:
    """What no provider (and no database) takes: NUL, and half of a surrogate pair."""
    if "\x00" in text:
        return f"NUL at {text.index(chr(0))}"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate at {error.start}"
    return None
