"""One model call: from the transcript to a committed answer, or to what stands in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, assert_never

from agentrt.core.calls import with_short_names
from agentrt.core.content import Content, File, Image, Text, Thinking, ToolCall, UnknownBlock
from agentrt.core.errors import ConfigurationError, LeaseLost
from agentrt.core.events import ModelRetried as RetryTold
from agentrt.core.events import TurnFinished
from agentrt.core.journal import CALL_POSITIONS, ApprovalRequested, AssistantMessage, ModelRetried, StopReason
from agentrt.core.retry import wait_seconds
from agentrt.core.session import Outcome, Released, ReleaseReason, Suspended, SuspendReason
from agentrt.core.storable import storable_text
from agentrt.ports import (
    Model,
    ModelAnswer,
    ModelError,
    ModelErrorClass,
    ModelLimits,
    ModelRequest,
    ToolSpec,
    UnstorableBatch,
)
from agentrt.worker.approvals import approvals_to_request
from agentrt.worker.ownership import Interrupted, Ownership
from agentrt.worker.threads import Escaped
from agentrt.worker.wording import without_secrets

EMPTY: Final = "empty"
UNREADABLE_IN_A_ROW: Final = 5
"""After so many answers that cannot be read, all in the same words, nobody waits for another one."""

_BACKSTOP_SECONDS: Final = 5.0
"""A model's own time limits come first; this much later the call is given up from outside."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long, with the slot, and ask again."""

    seconds: float


class _ModelUnavailable(Exception):
    """The model cannot be used as this worker is configured."""


async def ask_model(ownership: Ownership) -> Outcome | Pause | None:
    """Ask the model once and commit what came of it.

    Returns:
        None: plan again. Otherwise how to wait, or how this ownership ends.

    Raises:
        LeaseLost: somebody else owns the session now.
    """
    try:
        model, instructions = _model_of(ownership), _instructions_of(ownership)
    except ConfigurationError as error:
        return await _unavailable(ownership, str(error))
    turn = _Turn(ownership, model, instructions)
    try:
        return await turn.run()
    except _ModelUnavailable as error:
        return await _unavailable(ownership, str(error))


def _model_of(ownership: Ownership) -> Model:
    agent, own = ownership.agent, _own_model(ownership)
    if own is not None:
        return ownership.deps.models(own)
    return ownership.deps.models(agent.model) if isinstance(agent.model, str) else agent.model


def _own_model(ownership: Ownership) -> str | None:
    """What the session names in place of its agent's model, if it may."""
    given = ownership.session.config.get("model")
    return given if isinstance(given, str) and "model" in ownership.agent.allow_overrides else None


def _instructions_of(ownership: Ownership) -> str:
    agent, given = ownership.agent, ownership.session.config.get("instructions")
    return given if isinstance(given, str) and "instructions" in agent.allow_overrides else agent.instructions


async def _unavailable(ownership: Ownership, why: str) -> Released | Suspended:
    """Given back uncharged as long as another worker may have the key that this one lacks. A model that only this
    session has named says nothing about its agent."""
    deps, agent, queue = ownership.deps, ownership.agent.name, ownership.session.queue
    why = without_secrets(why, deps.secrets)
    own = _own_model(ownership)
    if own is not None:
        return Suspended(SuspendReason.BLOCKED, f"the session's own model {own!r} cannot be used: {why}")
    deps.agent_unavailable(agent, why)
    if await ownership.patiently(lambda: deps.store.withdraw_agent(deps.worker_id, agent, queue=queue)):
        return Released(ReleaseReason.MODEL_UNAVAILABLE, message=why)
    return Suspended(SuspendReason.BLOCKED, f"no living worker can use the model of agent {agent!r}: {why}")


class _Turn:
    """One request and its answer."""

    def __init__(self, ownership: Ownership, model: Model, instructions: str) -> None:
        self.ownership = ownership
        self.model = model
        self.instructions = instructions
        self.transcript = ownership.transcript
        self.seconds = 0.0
        self.heard: list[str] = []

    async def run(self) -> Outcome | Pause | None:
        try:
            answer = await self.ownership.attended(self._request())
        except Interrupted:
            await self._keep_what_was_heard()
            return None
        except ModelError as error:
            return await self._failed(error)
        if _is_empty(answer):
            await self._empty(answer)
        else:
            await self._commit(answer)
        return None

    async def _request(self) -> ModelAnswer:
        settings = self.ownership.deps.settings
        limits = ModelLimits(
            idle_seconds=settings.model_idle_seconds,
            first_event_seconds=settings.model_first_event_seconds,
            call_seconds=settings.model_call_seconds,
        )
        request = ModelRequest(
            instructions=self.instructions,
            messages=self.transcript.view(self.model.identity),
            tools=tuple(
                ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
                for tool in self.ownership.agent.tools.values()
            ),
            limits=limits,
        )
        gates, at_once = self.ownership.deps.gates, settings.model_concurrency
        async with gates.passing(self.model.identity.provider, at_once=at_once):
            return await self._call(request)

    async def _call(self, request: ModelRequest) -> ModelAnswer:
        """One call, in a task of its own: its model may cancel that one, or leave it for good, and not this one."""
        deps = self.ownership.deps
        begun = deps.clock()
        call = deps.threads.task(lambda: self.model.request(request, self.heard.append), name="model")
        try:
            await asyncio.wait({call}, timeout=request.limits.call_seconds + _BACKSTOP_SECONDS)
            in_time = call.done()
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=deps.settings.stop_seconds)
        self.seconds = deps.clock() - begun  # without the wait before it and the commit behind it
        if not in_time:
            words = f"the call took longer than {request.limits.call_seconds:g} seconds"
            raise ModelError(ModelErrorClass.TRANSIENT, words)
        return _answer_of(call)

    # --- an answer --------------------------------------------------------------------------------------------------

    async def _commit(self, answer: ModelAnswer) -> None:
        """The answer and the requests for approval of its calls, in one write."""
        content = with_short_names(answer.content)
        entry = AssistantMessage(
            content=content,
            model=answer.model,
            stop_reason=answer.stop_reason,
            seen_seq=self.transcript.highest_user_seq,
            usage=answer.usage,
            cost=answer.cost,
            provider=answer.provider,
            message=answer.message,
        )
        approvals: list[ApprovalRequested] = []
        if _may_run(answer):
            with suppress(Interrupted):  # the answer is whole; a call that is run after all is asked about then
                approvals = await self.ownership.attended(approvals_to_request(self.ownership, content))
        await self.ownership.append(entry, *approvals)
        self.ownership.tell(
            TurnFinished,
            model=answer.model,
            seconds=self.seconds,
            stop_reason=str(answer.stop_reason),
            input_tokens=answer.usage.input_tokens,
            output_tokens=answer.usage.output_tokens,
            cache_read_tokens=answer.usage.cache_read_tokens,
            cost=answer.cost,
        )

    async def _keep_what_was_heard(self) -> None:
        """The text that the user had seen when they interrupted."""
        text = "".join(self.heard)
        if not text.strip():
            return
        await self.ownership.append(
            AssistantMessage(
                content=(Text(text),),
                model=_name_of(self.model),
                stop_reason=StopReason.INTERRUPTED,
                seen_seq=self.transcript.highest_user_seq,
            )
        )

    async def _empty(self, answer: ModelAnswer) -> None:
        words = f"the model answered with nothing to read ({answer.stop_reason})"
        retried = ModelRetried(EMPTY, words, 0.0, usage=answer.usage, cost=answer.cost)
        await self._retried(retried)

    # --- no answer --------------------------------------------------------------------------------------------------

    async def _failed(self, error: ModelError) -> Outcome | Pause | None:
        words = without_secrets(error.message, self.ownership.deps.secrets)
        match error.error_class:
            case ModelErrorClass.TRANSIENT:
                return await self._transient(error, words)
            case ModelErrorClass.REJECTED:
                return await self._rejected(error, words)
            case ModelErrorClass.QUOTA:
                return Suspended(SuspendReason.BLOCKED, f"the provider's account: {words}")
            case ModelErrorClass.CONFIGURATION:
                raise _ModelUnavailable(words)
            case _:
                assert_never(error.error_class)

    async def _transient(self, error: ModelError, words: str) -> Outcome | Pause:
        settings = self.ownership.deps.settings
        before = [retry for retry in self.transcript.retries if retry.error_class == ModelErrorClass.TRANSIENT]
        if error.unreadable and _ends_with(before, words, times=UNREADABLE_IN_A_ROW - 1):
            return Suspended(SuspendReason.BLOCKED, f"{UNREADABLE_IN_A_ROW} times in a row: {words}")
        waited = sum(retry.delay_seconds for retry in before)
        if waited >= settings.model_retry_seconds:
            return Suspended(
                SuspendReason.BLOCKED, f"the model gave no answer in {len(before) + 1} tries, {waited:.0f} s: {words}"
            )
        delay = wait_seconds(
            len(before), jitter=self.ownership.deps.random(), retry_after_seconds=error.retry_after_seconds
        )
        await self._retried(_retry_of(error, words, delay))
        if delay > settings.release_wait_seconds:
            return Released(ReleaseReason.BACK_OFF, delay)
        return Pause(delay)

    async def _rejected(self, error: ModelError, words: str) -> Outcome | None:
        """The same request is never sent twice: the view has no thinking and item ids after this, if it had any."""
        if self.transcript.view(None) == self.transcript.view(self.model.identity):
            return Suspended(SuspendReason.BLOCKED, f"the provider rejected the request: {words}")
        await self._retried(_retry_of(error, words, 0.0))
        return None

    async def _retried(self, retried: ModelRetried) -> None:
        await self.ownership.append(retried)
        self.ownership.tell(
            RetryTold,
            model=_name_of(self.model),
            error_class=retried.error_class,
            error=retried.message,
            delay_seconds=retried.delay_seconds,
        )


def _answer_of(call: asyncio.Future[ModelAnswer]) -> ModelAnswer:
    """The answer of a call that has ended."""
    if call.cancelled():
        raise ModelError(ModelErrorClass.TRANSIENT, "the call was cancelled by the model's own code")
    try:
        answer = call.result()
    except TimeoutError:
        raise ModelError(ModelErrorClass.TRANSIENT, "timed out") from None
    except Escaped as error:
        raise ModelError(ModelErrorClass.TRANSIENT, str(error)) from error
    except ConfigurationError as error:
        raise _ModelUnavailable(str(error)) from error
    except (LeaseLost, UnstorableBatch, Interrupted) as error:  # from us they would mean something
        raise RuntimeError(f"the model raised {type(error).__name__}: {error}") from error
    if any(isinstance(block, ToolCall) for block in answer.content[CALL_POSITIONS:]):
        # A model that repeats itself without end: it means none of these calls, and the last ones would have no ids.
        words = f"the answer calls tools behind its first {CALL_POSITIONS} blocks: nobody could tell them apart"
        raise ModelError(ModelErrorClass.TRANSIENT, words, usage=answer.usage, cost=answer.cost, unreadable=True)
    return answer


def _ends_with(retries: Sequence[ModelRetried], words: str, *, times: int) -> bool:
    """Whether the last ``times`` of ``retries`` say ``words``, as they are stored."""
    return [retry.message for retry in retries[-times:]] == [storable_text(words)] * times


def _retry_of(error: ModelError, words: str, delay: float) -> ModelRetried:
    return ModelRetried(str(error.error_class), words, round(delay, 3), usage=error.usage, cost=error.cost)


def _name_of(model: Model) -> str:
    return f"{model.identity.provider}:{model.identity.model}"


def _may_run(answer: ModelAnswer) -> bool:
    """Whether the answer's calls are to be run at all."""
    return answer.stop_reason is not StopReason.REFUSED


def _is_empty(answer: ModelAnswer) -> bool:
    """Nothing to read and nothing to run, or only blocks that nobody here can take; a pause and a refusal say something
    by themselves."""
    if answer.stop_reason in (StopReason.PAUSED, StopReason.REFUSED):
        return False
    return not _says_something(answer.content)


def _says_something(content: Content) -> bool:
    for block in content:
        match block:
            case Text(text=text):
                if text.strip():
                    return True
            case Thinking() | UnknownBlock():
                continue
            case ToolCall() | Image() | File():
                return True
            case _:
                assert_never(block)
    return False
