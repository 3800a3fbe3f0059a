"""From a finished stream to an answer, or to the error that it was cut."""

from __future__ import annotations

from typing import Final

from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.usage import RequestUsage

from agentrt.core.journal import StopReason, Usage
from agentrt.core.transcript import ModelIdentity
from agentrt.models.opaque import taken_apart
from agentrt.ports import ModelAnswer, ModelError, ModelErrorClass

CUT: Final = "the stream ended before the provider said that (and why) the answer was over"
FILTERED: Final = "the provider's content filter stopped the answer"


def answer_of(response: ModelResponse, identity: ModelIdentity) -> ModelAnswer:
    """The answer, if it is a whole one.

    Raises:
        ModelError: the stream was cut, or the provider ended it with an error.
    """
    usage, cost = usage_of(response.usage), cost_of(response)
    if not is_whole(response):
        raise ModelError(ModelErrorClass.TRANSIENT, CUT, usage=usage, cost=cost)
    if response.finish_reason == "error":
        words = (
            f"the provider ended the answer with an error ({(response.provider_details or {}).get('finish_reason')})"
        )
        raise ModelError(ModelErrorClass.TRANSIENT, words, usage=usage, cost=cost)
    stop_reason = _stop_reason(response)
    content, provider = taken_apart(response, identity)
    return ModelAnswer(
        content=content,
        stop_reason=stop_reason,
        model=f"{identity.provider}:{identity.model}",
        usage=usage,
        cost=cost,
        provider=provider,
        message=_refusal(response) if stop_reason is StopReason.REFUSED else None,
    )


def is_whole(response: ModelResponse) -> bool:
    """Whether the provider itself ended the answer: it paused it, gave a reason, or refused.

    The layer's own ``finish_reason`` proves nothing: a cut chat stream is called complete, with ``stop``.
    """
    if response.state == "suspended":
        return True
    details = response.provider_details or {}
    return response.state == "complete" and ("finish_reason" in details or "refusal" in details)


def usage_of(usage: RequestUsage) -> Usage:
    """Tokens in our terms; ``input_tokens`` includes those read from and written to the provider's cache."""
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


def cost_of(response: ModelResponse) -> float | None:
    """What the answer cost, in US dollars; None when the model has no known price, or the figures make none."""
    if not response.model_name:
        return None
    try:
        return float(response.cost().total_price)
    except Exception:  # noqa: BLE001 - the layer's own reckoning with whatever a provider named; an answer is an answer
        return None


def _stop_reason(response: ModelResponse) -> StopReason:
    if response.state == "suspended":
        return StopReason.PAUSED
    if response.finish_reason == "content_filter":
        return StopReason.REFUSED
    if response.finish_reason == "length":
        return StopReason.LENGTH
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return StopReason.TOOL_CALLS
    return StopReason.STOP


def _refusal(response: ModelResponse) -> str:
    words = (response.provider_details or {}).get("refusal")
    return words if isinstance(words, str) and words.strip() else FILTERED
