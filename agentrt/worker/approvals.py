"""Which tool calls need a person's yes before they run."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from agentrt.agents import InvalidArguments, Tool
from agentrt.core.content import Content, ToolCall
from agentrt.core.journal import ApprovalRequested
from agentrt.worker.activation import Activation
from agentrt.worker.invoke import tell_failed

REQUIRED: Final = "required"
"""The tool says so."""

MAY_REPEAT: Final = "may_repeat"
"""An earlier call like this one may have had its effect already."""


def arguments_hash(arguments: str) -> str:
    """What a decision names: sha256 of the arguments as received, in hexadecimal."""
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()


async def approvals_to_request(activation: Activation, content: Content) -> list[ApprovalRequested]:
    """The approvals that the calls of a new answer need; each names its call by position."""
    requested = []
    for position, block in enumerate(content):
        if isinstance(block, ToolCall) and (reason := await reason_to_ask(activation, block)) is not None:
            requested.append(approval_of(block, reason=reason, position=position))
    return requested


def approval_of(call: ToolCall, *, reason: str, position: int | None = None) -> ApprovalRequested:
    """A request to approve ``call``, which is named by its id, or by its position in an answer still to be written."""
    return ApprovalRequested(
        approval_id=uuid4(),
        call_id=call.call_id if position is None else None,
        position=position,
        tool=call.tool,
        arguments=call.arguments,
        arguments_hash=arguments_hash(call.arguments),
        reason=reason,
    )


async def reason_to_ask(activation: Activation, call: ToolCall) -> str | None:
    """Why ``call`` needs an approval; None when it does not, or when it cannot run anyhow."""
    tool = activation.agent.tools.get(call.tool)
    if tool is None:
        return None
    try:
        arguments = tool.parse(call.arguments)
    except InvalidArguments:
        return None
    return REQUIRED if await _requires_approval(activation, tool, arguments) else None


async def _requires_approval(activation: Activation, tool: Tool, arguments: Mapping[str, Any]) -> bool:
    if not callable(tool.requires_approval):
        return bool(tool.requires_approval)
    try:
        answer = tool.requires_approval(**arguments)
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001 - the user's predicate: one that raises means yes
        tell_failed(activation, tool, "requires_approval", error=error)
        return True
