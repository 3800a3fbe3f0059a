"""What a user writes: agents, their tools, and where a worker finds them.

``Agent`` and ``tool`` are the two names that a module of agents needs; ``Registry`` loads such modules and files.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from pydantic import TypeAdapter, ValidationError

from agentrt.core.budget import Limits
from agentrt.core.errors import AgentDefinitionError, ConfigurationError, InvalidArgument, message_of
from agentrt.core.messages import MODEL_NAME, ModelIdentity
from agentrt.core.plan import ToolTraits
from agentrt.toolspec import (
    Deferred,
    Done,
    InvalidArguments,
    NotDone,
    NotExecuted,
    Tool,
    ToolContext,
    ToolError,
    Unknown,
    as_tool,
    tool,
)

__all__ = [
    "Agent",
    "AgentModel",
    "Deferred",
    "Done",
    "InvalidArguments",
    "Limits",
    "NotDone",
    "NotExecuted",
    "Registry",
    "Tool",
    "ToolContext",
    "ToolError",
    "Unknown",
    "tool",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LIMITS = TypeAdapter(Limits)
_OVERRIDABLE: Final = frozenset({"limits", "model", "instructions"})
_OPTIONS: Final = ("model", "instructions", "tools", "limits", "allow_overrides")
_LATER: Final = frozenset({"output", "lifespan", "secrets", "mcp"})


class AgentModel(Protocol):
    """A model object in place of a ``"provider:name"``: the port ``agentrt.ports.Model``."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def context_window(self) -> int | None: ...

    async def request(self, request: Any, on_text: Callable[[str], None]) -> Any: ...


class Agent:
    """An agent: a name that sessions refer to, a model, instructions and tools. Immutable.

    Args:
        name: 1 to 100 of the characters ``A-Z a-z 0-9 _ . -``, a letter or digit first.
        model: ``"provider:name"``, or a model object: ``agentrt.ProviderModel`` with a key or base URL of its own,
            ``agentrt.testing.ScriptedModel``.
        instructions: the system prompt.
        tools: functions decorated with ``tool``, or plain ones, whose effect is then taken to be ``once``.
        limits: what one run may use before it is suspended (budget).
        allow_overrides: which keys of a session's ``config`` count: ``limits``, ``model``, ``instructions``.

    Raises:
        AgentDefinitionError: an argument cannot be used, or belongs to a later version.
    """

    __slots__ = ("allow_overrides", "instructions", "limits", "model", "name", "tools", "version")

    name: str
    model: str | AgentModel
    instructions: str
    tools: Mapping[str, Tool]
    limits: Limits
    allow_overrides: frozenset[str]
    version: str
    """Hash of instructions, tools and model; journaled at each claim."""

    def __init__(
        self,
        name: str,
        *,
        model: str | AgentModel,
        instructions: str = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        limits: Limits | None = None,
        allow_overrides: Iterable[str] = ("limits",),
        **later: Any,
    ) -> None:
        self._set("name", _checked_name(name))
        _refuse_later(name, later)
        self._set("model", _checked_model(name, model))
        self._set("instructions", _checked_instructions(name, instructions))
        self._set("tools", _by_name(name, tools))
        self._set("limits", _checked_limits(name, limits))
        self._set("allow_overrides", _checked_overrides(name, allow_overrides))
        self._set("version", _version(self))

    def _set(self, field_name: str, value: object) -> None:
        object.__setattr__(self, field_name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Agent does not change; make another one with {name}={value!r}")

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.model_name!r}, tools={sorted(self.tools)})"

    @property
    def model_name(self) -> str:
        """The model as words: ``provider:name``."""
        if isinstance(self.model, str):
            return self.model
        return f"{self.model.identity.provider}:{self.model.identity.model}"

    def limits_for(self, config: Mapping[str, Any]) -> Limits:
        """What a run of a session with this ``config`` may use, as far as the agent allows overrides.

        Raises:
            InvalidArgument: ``config`` holds limits that are none.
        """
        given = config.get("limits")
        if given is None or "limits" not in self.allow_overrides:
            return self.limits
        try:
            return _LIMITS.validate_python({**asdict(self.limits), **given} if isinstance(given, Mapping) else given)
        except ValidationError as error:
            raise InvalidArgument(f"the session's config.limits cannot be used: {error.errors()[0]['msg']}") from None

    def traits(self) -> Mapping[str, ToolTraits]:
        """What the planner needs to know of each tool."""
        return {name: _traits(tool) for name, tool in self.tools.items()}

    def warnings(self) -> tuple[str, ...]:
        """What an operator should know at start."""
        undeclared = ", ".join(tool.name for tool in self.tools.values() if not tool.declared)
        warning = (
            f"agent {self.name}: no effect is declared for {undeclared}; taken as 'once', so a call that a crash cut "
            f"is not run again. Say @tool(effect=...), one of read, idempotent, once, transactional"
        )
        return (warning,) if undeclared else ()


def _traits(tool: Tool) -> ToolTraits:
    return ToolTraits(
        effect=tool.effect,
        pauses=tool.pauses,
        reconciles=tool.reconcile is not None,
        on_unknown=tool.on_unknown,
    )


def _checked_name(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise AgentDefinitionError(
        f"agent {name!r}: a name has 1 to 100 of the characters A-Z a-z 0-9 _ . -, a letter or digit first"
    )


def _checked_instructions(name: str, instructions: object) -> str:
    if isinstance(instructions, str):
        return instructions
    raise AgentDefinitionError(f"agent {name}: instructions are text in this version, not {instructions!r}")


def _refuse_later(name: str, later: Mapping[str, Any]) -> None:
    for option in later:
        if option in _LATER:
            raise AgentDefinitionError(
                f"agent {name}: {option}= is not supported by this version of agentrt; leave it out"
            )
        close = difflib.get_close_matches(option, _OPTIONS, n=1, cutoff=0.6)
        known = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_OPTIONS)}"
        raise AgentDefinitionError(f"agent {name}: there is no option {option!r}; {known}")


def _checked_model(name: str, model: object) -> Any:
    if isinstance(model, str):
        if MODEL_NAME.fullmatch(model):
            return model
        example = "write for example 'openai:gpt-5' or 'anthropic:claude-opus-5-5'"
        raise AgentDefinitionError(f"agent {name}: model={model!r} is not of the form 'provider:name'; {example}")
    if callable(getattr(model, "request", None)) and isinstance(getattr(model, "identity", None), ModelIdentity):
        return model
    raise AgentDefinitionError(f"agent {name}: model={model!r} is neither 'provider:name' nor a model object")


def _by_name(name: str, tools: object) -> Mapping[str, Tool]:
    if not isinstance(tools, Iterable):
        raise AgentDefinitionError(f"agent {name}: tools={tools!r} is not a list of functions")
    found: dict[str, Tool] = {}
    for given in tools:
        if not callable(given):
            raise AgentDefinitionError(f"agent {name}: {given!r} is not a function, so it cannot be a tool")
        made = as_tool(given)
        if made.name in found:
            raise AgentDefinitionError(f"agent {name}: two tools are called {made.name}")
        found[made.name] = made
    return found


def _checked_limits(name: str, limits: object) -> Limits:
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise AgentDefinitionError(f"agent {name}: limits={limits!r} is not Limits(turns=…, tokens=…, cost=…)")
    for key, value in asdict(limits).items():
        kinds = int if key in ("turns", "tokens") else int | float
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0):
            whole = "whole number" if kinds is int else "number"
            raise AgentDefinitionError(f"agent {name}: limits: {key}={value!r} is no {whole} of 0 or more")
    return limits


def _checked_overrides(name: str, allowed: object) -> frozenset[str]:
    if not isinstance(allowed, Iterable):
        raise AgentDefinitionError(f"agent {name}: allow_overrides={allowed!r} is not a list of names")
    named = [allowed] if isinstance(allowed, str) else list(allowed)
    if unknown := [key for key in named if not isinstance(key, str) or key not in _OVERRIDABLE]:
        raise AgentDefinitionError(f"agent {name}: allow_overrides names {unknown}; known: {sorted(_OVERRIDABLE)}")
    return frozenset(map(str, named))


def _version(agent: Agent) -> str:
    parts = {
        "instructions": agent.instructions,
        "model": agent.model_name,
        "tools": [
            [tool.name, tool.description, tool.parameters, tool.effect]
            for tool in sorted(agent.tools.values(), key=lambda tool: tool.name)
        ],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# --- where a worker finds its agents --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registry:
    """The agents of a worker. ``problems`` names each module or file that could not be loaded, and why."""

    agents: Mapping[str, Agent]
    problems: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, *agents: Agent) -> Registry:
        """A registry of these agents.

        Raises:
            AgentDefinitionError: two of them have one name.
        """
        return cls(_distinct((agent, "given") for agent in agents))

    @classmethod
    def load(cls, sources: str | Sequence[str]) -> Registry:
        """Import modules and files (comma-separated, or a list) and collect every module-level ``Agent``.

        A source that cannot be imported becomes a problem, and the others go on.

        Raises:
            AgentDefinitionError: two agents have one name.
        """
        named = sources.split(",") if isinstance(sources, str) else sources
        found: list[tuple[Agent, str]] = []
        problems = []
        for source in (name.strip() for name in named):
            if not source:
                continue
            try:
                agents = _agents_of(_import(source))
            except ConfigurationError as error:
                problems.append(str(error))
                continue
            found += [(agent, source) for agent in agents]
            if not agents:
                problems.append(f"{source}: there is no Agent at the top level of this module")
        return cls(_distinct(found), tuple(problems))

    def warnings(self) -> tuple[str, ...]:
        """What an operator should know at start."""
        return tuple(warning for agent in self.agents.values() for warning in agent.warnings())


def _distinct(found: Iterable[tuple[Agent, str]]) -> Mapping[str, Agent]:
    agents: dict[str, Agent] = {}
    places: dict[str, str] = {}
    for agent, place in found:
        if agent.name in agents and agents[agent.name] is not agent:
            raise AgentDefinitionError(
                f"two agents are called {agent.name!r}: one from {places[agent.name]}, one from {place}; rename one"
            )
        agents[agent.name] = agent
        places.setdefault(agent.name, place)
    return agents


def _agents_of(module: ModuleType) -> list[Agent]:
    return [value for value in vars(module).values() if isinstance(value, Agent)]


def _import(source: str) -> ModuleType:
    is_file = source.endswith(".py") or "/" in source
    if not source.endswith(".py") and (":" in source or not (is_file or all(source.split(".")))):
        raise AgentDefinitionError(
            f"{source}: this is neither a module nor a .py file: name one, such as shop or shop.py"
        )
    try:
        return _import_file(Path(source)) if is_file else _import_module(source)
    except ConfigurationError as error:
        raise AgentDefinitionError(f"{source}: {error}") from error
    except SyntaxError as error:
        raise AgentDefinitionError(f"{_place(source, error.filename, error.lineno)}: {error.msg}") from error
    except ModuleNotFoundError as error:
        file = f"./{source.replace('.', '/')}.py"
        hint = f"; a file is named with its .py: {file}" if error.name == source.partition(".")[0] else ""
        raise AgentDefinitionError(f"{_where(source, error)}: {type(error).__name__}: {error}{hint}") from error
    except (Exception, SystemExit) as error:  # the user's module may do anything
        raise AgentDefinitionError(f"{_where(source, error)}: {type(error).__name__}: {message_of(error)}") from error


def _import_module(name: str) -> ModuleType:
    _make_importable(Path.cwd())
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AgentDefinitionError("there is no such file")
    resolved = path.resolve()
    _make_importable(resolved.parent)
    name = f"agentrt_agents_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise AgentDefinitionError("this is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are resolved through it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    """As Python does for a script: what lies beside it can be imported."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


_INSTALLED: Final = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARIES: Final = tuple(f"{folder}{os.sep}" for folder in [*_INSTALLED, Path(__file__).parent])
_IMPORTING: Final = ("<frozen importlib.", importlib.__file__, __file__)


def _where(source: str, error: BaseException) -> str:
    """The last line of the user's own code that led to the error: it may be raised deep in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    loaded = [frame.filename for frame in frames if not frame.filename.startswith(_IMPORTING)][:1]
    own = [frame for frame in frames if frame.filename in loaded or not frame.filename.startswith(("<", *_LIBRARIES))]
    return _place(source, own[-1].filename, own[-1].lineno) if own else source


def _place(source: str, file: str | None, line: int | None) -> str:
    itself = file is not None and Path(source).resolve() == Path(file)
    return f"{source}, line {line}" if itself else f"{source}: {file}, line {line}"
