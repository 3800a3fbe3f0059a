"""Tools as a user writes them: the ``tool`` decorator, what a tool is given, and how it can end.

A tool is an async or plain function with a docstring; its signature gives the JSON schema that the model sees. A first
parameter annotated ``ToolContext`` is filled in by the worker and hidden from the model.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from agentrt.core.errors import AgentDefinitionError
from agentrt.core.journal import Effect
from agentrt.core.session import CallId, SessionId
from agentrt.signature import ArgumentProblems, Signature, read_signature

OnUnknown = Literal["report", "retry_allowed", "suspend"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the strictest form among the providers


class ToolError(Exception):
    """The call failed, and that is known: the model reads the message word for word."""


class NotExecuted(Exception):
    """The call had no effect at all, and that is known; the model reads the message."""


@dataclass(frozen=True, slots=True)
class Done:
    """What ``reconcile`` returns when the call had its effect; ``result`` is what the tool would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """What ``reconcile`` returns when the call had no effect: it is then run."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What ``reconcile`` returns when it cannot tell either."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """What ``ctx.defer`` returns: the call will be answered by ``complete_tool_call``."""

    expires_seconds: float | None = None


class InvalidArguments(ValueError):
    """Arguments that do not fit the tool; the message is written for the model."""


class ToolConnection:
    """A transactional tool's connection. The transaction opens with the first statement, is committed together with
    the tool's result, and is rolled back when the tool raises. Arguments and rows are the driver's (asyncpg)."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """``connect()`` is awaited for the driver's connection, with the transaction begun."""
        self._connect = connect

    async def __call__(self) -> Any:
        """The driver's own connection, for what the methods below do not cover (cursors, COPY, savepoints)."""
        return await self._connect()

    async def execute(self, sql: str, *arguments: Any) -> str:
        """Run a statement; returns its status, as ``INSERT 0 1``."""
        return str(await (await self._connect()).execute(sql, *arguments))

    async def executemany(self, sql: str, rows: Any) -> None:
        """Run a statement once for each row of arguments."""
        await (await self._connect()).executemany(sql, rows)

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """All rows of a query."""
        return list(await (await self._connect()).fetch(sql, *arguments))

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        """The first row of a query, or None."""
        return await (await self._connect()).fetchrow(sql, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        """The first value of the first row, or None."""
        return await (await self._connect()).fetchval(sql, *arguments)


def _discard(text: str) -> None:
    """Nobody follows."""


@dataclass(slots=True, kw_only=True, eq=False)
class ToolContext:
    """What a running tool call may know and use; made anew for each execution of a call."""

    session_id: SessionId
    call_id: CallId
    agent: str = ""
    attempt: int = 1
    tenant: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event, repr=False)
    on_progress: Callable[[str], None] = field(default=_discard, repr=False)
    transaction: ToolConnection | None = field(default=None, repr=False)
    deferred: Deferred | None = field(default=None, init=False)

    @property
    def idempotency_key(self) -> str:
        """The same for every execution of this call: ``session_id:call_id``."""
        return f"{self.session_id}:{self.call_id}"

    @property
    def cancelled(self) -> bool:
        """The call shall stop. For a plain function, which runs in a thread, this is the only signal."""
        return self.stopping.is_set()

    @property
    def connection(self) -> ToolConnection:
        """A transactional tool's connection.

        Raises:
            ToolError: the tool's effect is not ``transactional``.
        """
        if self.transaction is None:
            raise ToolError("ctx.connection is there only for tools with effect='transactional'")
        return self.transaction

    def progress(self, text: str) -> None:
        """Meant for whoever follows the session; not kept, and nothing shows it yet."""
        self.on_progress(text)

    def defer(self, *, expires_seconds: float | None = None) -> Deferred:
        """Answer later: the session is suspended until ``complete_tool_call`` brings the result of this call, or until
        ``expires_seconds`` after the tool has returned. What the tool returns is not used."""
        if expires_seconds is not None and not 0 < expires_seconds < 10 * 365 * 86400:
            raise ToolError(f"expires_seconds={expires_seconds!r}: give a number of seconds above 0, below ten years")
        self.deferred = Deferred(expires_seconds)
        return self.deferred


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function that a model may call; made by ``tool``. Calling it calls the function."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    effect: Effect = Effect.ONCE
    declared: bool = True
    """The effect was said, not assumed."""
    timeout_seconds: float | None = None
    """None: the worker's ``tool_seconds``."""
    sequential: bool = False
    requires_approval: bool | Callable[..., Any] = False
    pauses: bool = False
    reconcile: Callable[..., Any] | None = None
    on_unknown: OnUnknown = "report"
    signature: Signature

    @property
    def is_async(self) -> bool:
        """The function is awaited in the worker's loop; a plain one runs in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def with_timeout(self, timeout_seconds: float) -> Tool:
        """The same tool with another time limit."""
        return replace(self, timeout_seconds=timeout_seconds)

    def parse(self, arguments: str) -> dict[str, Any]:
        """The validated arguments, by name. A blank string counts as no arguments.

        Raises:
            InvalidArguments: with what is wrong, and the schema.
        """
        try:
            return self.signature.parse(arguments)
        except ArgumentProblems as error:
            raise InvalidArguments(self._complaint(error.problems)) from None

    def _complaint(self, problems: list[str]) -> str:
        lines = "\n".join(f"- {problem}" for problem in problems)
        schema = json.dumps(self.parameters, ensure_ascii=False)
        return f"The arguments of {self.name} do not fit; it was not run.\n{lines}\nThey must be JSON of: {schema}"


@overload
def tool(name: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    name: str | None = None,
    *,
    effect: Effect | Literal["read", "idempotent", "once", "transactional"] = "once",
    timeout_seconds: float | None = None,
    sequential: bool = False,
    requires_approval: bool | Callable[..., Any] = False,
    pauses: bool = False,
    reconcile: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "report",
    description: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    name: str | Callable[..., Any] | None = None,
    *,
    effect: str | None = None,
    timeout_seconds: float | None = None,
    sequential: bool = False,
    requires_approval: bool | Callable[..., Any] = False,
    pauses: bool = False,
    reconcile: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "report",
    description: str | None = None,
) -> Any:
    """Make a tool of a function.

    Args:
        name: what the model calls it; default the function's name.
        effect: what running it twice would mean. ``read``: nothing. ``idempotent``: nothing, given
            ``ctx.idempotency_key``. ``once`` (default): never run again after a crash, unless ``reconcile`` says so.
            ``transactional``: writes only through ``ctx.connection``, committed together with the result.
        timeout_seconds: time limit; default the worker's ``AGENTRT_TOOL_SECONDS`` (600).
        sequential: no other call of the same answer runs beside it.
        requires_approval: True, or a predicate that is called with the arguments by name; one that raises means yes.
        pauses: after a success the session waits for the user's next message.
        reconcile: async or plain ``(ctx, **arguments)`` that returns ``Done(result)``, ``NotDone()`` or ``Unknown()``.
        on_unknown: what an unknown end of a ``once`` call means: ``report`` (a repetition needs an approval),
            ``retry_allowed``, ``suspend``.
        description: what the model is told; default the docstring.

    Raises:
        AgentDefinitionError: the function or an option cannot be used.
    """
    if callable(name):
        return _make(name, {})
    options = {
        "name": name,
        "effect": effect,
        "timeout_seconds": timeout_seconds,
        "sequential": sequential,
        "requires_approval": requires_approval,
        "pauses": pauses,
        "reconcile": reconcile,
        "on_unknown": on_unknown,
        "description": description,
    }
    return lambda function: _make(function, options)


def _make(function: Callable[..., Any], options: Mapping[str, Any]) -> Tool:
    name = str(options.get("name") or getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name):
        raise AgentDefinitionError(f"tool {name!r}: a name has 1 to 64 of the characters A-Z a-z 0-9 _ -")
    signature = read_signature(function, context=ToolContext, name=name)
    effect = options.get("effect")
    made = Tool(
        name=name,
        description=options.get("description") or inspect.getdoc(function) or "",
        function=function,
        parameters=signature.schema(),
        effect=_effect(name, effect),
        declared=effect is not None,
        timeout_seconds=options.get("timeout_seconds"),
        sequential=options.get("sequential", False),
        requires_approval=options.get("requires_approval", False),
        pauses=options.get("pauses", False),
        reconcile=options.get("reconcile"),
        on_unknown=options.get("on_unknown", "report"),
        signature=signature,
    )
    _check(made)
    return made


def as_tool(function: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, or one made of a plain function, whose effect is then undeclared (``once``)."""
    return function if isinstance(function, Tool) else _make(function, {})


def _effect(name: str, effect: str | None) -> Effect:
    try:
        return Effect.ONCE if effect is None else Effect(effect)
    except ValueError:
        known = ", ".join(Effect)
        raise AgentDefinitionError(f"tool {name}: effect={effect!r} does not exist; one of {known}") from None


def _check(made: Tool) -> None:
    def refuse(why: str) -> AgentDefinitionError:
        return AgentDefinitionError(f"tool {made.name}: {why}")

    if inspect.isgeneratorfunction(made.function) or inspect.isasyncgenfunction(made.function):
        raise refuse("it yields, and only what a tool returns is its result; return one value")
    if not isinstance(made.description, str):
        raise refuse(f"description={made.description!r} is no text")
    if made.timeout_seconds is not None and not _is_positive(made.timeout_seconds):
        raise refuse(f"timeout_seconds={made.timeout_seconds!r}: give a number of seconds above 0")
    if made.on_unknown not in ("report", "retry_allowed", "suspend"):
        raise refuse(f"on_unknown={made.on_unknown!r} does not exist; one of report, retry_allowed, suspend")
    if made.effect is Effect.TRANSACTIONAL and not made.is_async:
        raise refuse("a transactional tool is an async function, since ctx.connection belongs to the event loop")
    if made.effect is Effect.TRANSACTIONAL and not made.signature.takes_context:
        raise refuse("a transactional tool needs a first parameter annotated ToolContext, for ctx.connection")
    if made.reconcile is not None and made.effect is not Effect.ONCE:
        raise refuse(f"reconcile is for effect='once'; with {made.effect} a call is simply run again")
    if made.reconcile is not None and not _takes(made.reconcile, made.signature.names, context=True):
        raise refuse("reconcile is called as reconcile(ctx, **arguments) and must take the tool's own parameters")
    predicate = made.requires_approval
    if callable(predicate) and not _takes(predicate, made.signature.names, context=False):
        raise refuse("requires_approval is called with the arguments by name and must take the tool's own parameters")


def _takes(function: Callable[..., Any], names: tuple[str, ...], *, context: bool) -> bool:
    try:
        inspect.signature(function).bind(*([None] if context else []), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _is_positive(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
