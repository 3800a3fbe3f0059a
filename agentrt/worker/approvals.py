"""Which tool calls need a person's yes before they run."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from agentrt.agents import InvalidArguments, Tool
from agentrt.core.content import Content, ToolCall
from agentrt.core.journal import ApprovalRequested
from agentrt.core.storable import storable_text
from agentrt.worker.invoke import called, tell_failed
from agentrt.worker.ownership import Ownership

PREDICATE_SECONDS: Final = 10.0
"""So long a predicate may think; then its answer is yes."""

REQUIRED: Final = "required"
"""The tool says so."""

MAY_REPEAT: Final = "may_repeat"
"""An earlier call like this one may have had its effect already."""


def arguments_hash(arguments: str) -> str:
    """What a decision names: sha256 of the arguments as received and stored, in hexadecimal."""
    return hashlib.sha256(storable_text(arguments).encode()).hexdigest()


async def approvals_to_request(ownership: Ownership, content: Content) -> list[ApprovalRequested]:
    """The approvals that the calls of a new answer need; each names its call by position."""
    calls = [(position, block) for position, block in enumerate(content) if isinstance(block, ToolCall)]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(reason_to_ask(ownership, call)) for _, call in calls]
    return [
        approval_of(call, reason=reason, position=position)
        for (position, call), task in zip(calls, asked, strict=True)
        if (reason := task.result()) is not None
    ]


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


async def reason_to_ask(ownership: Ownership, call: ToolCall) -> str | None:
    """Why ``call`` needs an approval; None when it does not, or when it cannot run anyhow."""
    tool = ownership.agent.tools.get(call.tool)
    if tool is None:
        return None
    try:
        arguments = tool.parse(call.arguments)
    except InvalidArguments:
        return None
    return REQUIRED if await _requires_approval(ownership, tool, arguments) else None


async def _requires_approval(ownership: Ownership, tool: Tool, arguments: Mapping[str, Any]) -> bool:
    if not callable(tool.requires_approval):
        return bool(tool.requires_approval)
    limit = min(tool.timeout_seconds or PREDICATE_SECONDS, PREDICATE_SECONDS)
    asked = partial(tool.requires_approval, **arguments)
    try:
        return bool(await called(ownership, asked, limit=limit, stopping=threading.Event()))
    except Exception as error:  # noqa: BLE001 - the user's predicate: one that raises means yes
        tell_failed(ownership, tool, "requires_approval", error=error)
        return True
