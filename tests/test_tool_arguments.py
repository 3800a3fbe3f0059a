"""Arguments that a model invents, the words in which a tool refuses them, and parameters that take none."""

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, field_validator

from agentrt.agents import InvalidArguments, ToolContext, tool
from agentrt.core.errors import AgentDefinitionError


class Rough(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Checked(BaseModel):
    which: int

    @field_validator("which")
    @classmethod
    def known(cls, which: int) -> int:
        raise {1: KeyError("which"), 2: Rough(), 3: SystemExit(7)}[which]


@tool(effect="read")
def look_up(what: Checked) -> str:
    """Look up."""
    return str(what.which)


@tool(effect="read")
def measure(length: float = 0.0, steps: list[float] | None = None) -> float:
    """Measure."""
    return length + sum(steps or ())


@pytest.mark.parametrize(("which", "words"), [(1, "KeyError: 'which'"), (2, "Rough"), (3, "SystemExit: 7")])
def test_a_validator_that_breaks_is_a_complaint_about_the_arguments(which, words):
    with pytest.raises(InvalidArguments, match=f"cannot be checked: {words}"):
        look_up.parse(json.dumps({"what": {"which": which}}))


@pytest.mark.parametrize(
    "arguments", ['{"length": 1e999}', '{"length": -1e999}', '{"steps": [1e999]}', f'{{"length": 1{"0" * 400}}}']
)
def test_a_number_beyond_a_float_is_no_argument(arguments):
    with pytest.raises(InvalidArguments):
        measure.parse(arguments)


def test_a_field_as_default_describes_the_parameter_and_gives_its_default():
    @tool(effect="read")
    def turn(
        degrees: int = Field(5, description="how far", le=9),
        marks: list[str] = Field(default_factory=list),  # noqa: B008 - as users write it
    ) -> Any:
        """Turn."""

    assert turn.parse("{}") == {"degrees": 5, "marks": []}
    assert turn.parse('{"degrees": 7}')["degrees"] == 7
    assert turn.parameters["properties"]["degrees"] == {
        "default": 5, "description": "how far", "maximum": 9, "type": "integer",
    }  # fmt: skip
    with pytest.raises(InvalidArguments, match="degrees: Input should be less"):
        turn.parse('{"degrees": 10}')


def test_a_required_field_as_default_stays_required():
    @tool(effect="read")
    def turn(degrees: int = Field(description="how far")) -> Any:
        """Turn."""

    assert turn.parameters["required"] == ["degrees"]


def test_a_complaint_does_not_repeat_all_that_the_model_wrote():
    with pytest.raises(InvalidArguments) as caught:
        measure.parse(json.dumps({"k" * 1_000_000: 1}))
    assert len(str(caught.value)) < 2_000


# --- parameters that could never be filled in -------------------------------------------------------------------------


def context_by_name(*, ctx: ToolContext, a: int):
    """The worker gives it by position."""


def context_or_none(ctx: ToolContext | None, a: int):
    """The worker gives it always."""


def lazily_checked(a: dict[str, Iterable[int]]):
    """An item of a wrong type would be met in the middle of the work."""


def default_of_no_json(a: float = float("nan")):
    """No provider takes the schema."""


def of_the_class(a: Any):
    """No parameter has such a type, whatever a type checker would say."""


of_the_class.__annotations__["a"] = ClassVar[int]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (context_by_name, "given by position"),
        (context_or_none, "annotated with nothing else"),
        (lazily_checked, "a list or Sequence"),
        (default_of_no_json, "no JSON schema"),
        (of_the_class, "ClassVar[int]"),
    ],
)
def test_a_parameter_that_could_never_be_filled_in_is_refused(function, words):
    with pytest.raises(AgentDefinitionError, match=re.escape(words)):
        tool(function)
