"""A function's signature as a JSON schema, and the strict reading of arguments that a model wrote for it."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentrt.core.errors import AgentDefinitionError, message_of

_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


class ArgumentProblems(ValueError):
    """Arguments that do not fit; one sentence for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Signature:
    """``names`` are the parameters that the model fills in, in the order of ``arguments``' fields."""

    arguments: type[BaseModel]
    names: tuple[str, ...]
    takes_context: bool

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        return self.arguments.model_json_schema(schema_generator=_Untitled)

    def parse(self, arguments: str) -> dict[str, Any]:
        """The validated arguments, by name. A blank string counts as no arguments.

        Raises:
            ArgumentProblems: what is wrong.
        """
        text = arguments if arguments.strip() else "{}"
        try:
            json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant, parse_float=_finite)
            parsed = self.arguments.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ArgumentProblems(_problems(error)) from None
        except RecursionError:
            raise ArgumentProblems(["the JSON is nested too deeply"]) from None
        except ValueError as error:
            raise ArgumentProblems([f"not valid JSON: {error}"]) from None
        except (Exception, SystemExit) as error:  # a validator of the user's: one of the five borders
            words = _cut(f"{type(error).__name__}: {message_of(error)}", 500)
            raise ArgumentProblems([f"they cannot be checked: {words}"]) from error
        return {name: getattr(parsed, f"a{index}") for index, name in enumerate(self.names)}


def read_signature(function: Callable[..., Any], *, context: type, name: str) -> Signature:
    """What a model fills in to call ``function``; a first parameter annotated ``context`` is left out.

    Raises:
        AgentDefinitionError: naming the tool ``name`` and the parameter that cannot be described.
    """
    hints = _hints(name, function, context=context)
    parameters = _parameters(name, function)
    takes_context = bool(parameters) and hints.get(parameters[0].name) is context
    if takes_context and parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise AgentDefinitionError(f"tool {name}: the {context.__name__} is given by position; write it without *")
    fields: dict[str, Any] = {}
    names = []
    for index, parameter in enumerate(parameters[1:] if takes_context else parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise AgentDefinitionError(f"tool {name}: {parameter} cannot be described to a model; name each parameter")
        if parameter.name not in hints:
            raise AgentDefinitionError(f"tool {name}: annotate the parameter {parameter.name!r} with its type")
        if hints[parameter.name] is context or context in get_args(hints[parameter.name]):
            raise AgentDefinitionError(
                f"tool {name}: the {context.__name__} must be the first parameter, annotated with nothing else"
            )
        fields[f"a{index}"] = _field(parameter, hints[parameter.name])
        names.append(parameter.name)
    try:
        arguments: type[BaseModel] = create_model(name, __config__=_STRICT, **fields)
        json.dumps(arguments.model_json_schema(), allow_nan=False)
    except (PydanticUserError, TypeError, ValueError) as error:
        raise AgentDefinitionError(f"tool {name}: its parameters have no JSON schema: {_first_line(error)}") from None
    for index, described in enumerate(names):
        if f"a{index}" not in arguments.model_fields:
            raise AgentDefinitionError(f"tool {name}: {hints[described]} is no annotation of a parameter: {described}")
    if _is_lazy(arguments.__pydantic_core_schema__):
        raise AgentDefinitionError(
            f"tool {name}: an Iterable or Generator is checked only when it is read; annotate a list or Sequence"
        )
    return Signature(arguments, tuple(names), takes_context)


def _is_lazy(schema: object) -> bool:
    """Whether some argument is checked item by item, while the tool reads it, and not before it runs."""
    if isinstance(schema, dict):
        inner = (value for key, value in schema.items() if key != "default")
        return schema.get("type") == "generator" or any(map(_is_lazy, inner))
    return isinstance(schema, list | tuple) and any(map(_is_lazy, schema))


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # many types and functions written in C have none
        raise AgentDefinitionError(f"tool {name}: {function!r} has no signature; wrap it in a function") from None


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
    """The type and the field of one parameter; a default of ``Field(5, description=…)`` is a description too."""
    if isinstance(parameter.default, FieldInfo):
        return Annotated[hint, parameter.default], Field(alias=parameter.name)
    default = ... if parameter.default is parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name)


def _hints(name: str, function: Callable[..., Any], *, context: type) -> dict[str, Any]:
    inner = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        return get_type_hints(inner, localns={context.__name__: context} | _closure(inner), include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise AgentDefinitionError(f"tool {name}: its annotations cannot be read: {error}") from None


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function sees of the functions around it: annotations may name it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    seen = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not assigned yet
            seen[name] = cell.cell_contents
    return seen


class _Untitled(GenerateJsonSchema):
    """Without titles: they repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the interface's name
        return False

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        generated = super().generate(schema, mode)
        for described in (generated, *generated.get("$defs", {}).values()):
            described.pop("title", None)
        return generated


def _problems(error: ValidationError) -> list[str]:
    return [
        f"{_cut('.'.join(map(str, problem['loc'])) or 'arguments')}: {_cut(problem['msg'], 500)}"
        + ("" if problem["type"] in ("missing", "json_invalid") else f" (got {_short(problem['input'])})")
        for problem in error.errors(include_url=False, include_context=False)[:10]
    ]


def _short(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str, length: int = 100) -> str:
    """Keys and values are the model's, of any length."""
    return text if len(text) <= length else f"{text[:length]}…"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"the number {_cut(number)} is too large")
    return value
