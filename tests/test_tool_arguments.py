"""Arguments that a model invents, and the words in which a tool refuses them."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from agentrt.agents import InvalidArguments, tool


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
