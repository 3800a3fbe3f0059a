"""What a user writes: agents, tools, and where a worker finds them."""

import threading
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from typing import Annotated, Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

import agentrt
from agentrt.agents import Agent, Done, InvalidArguments, Registry, Tool, ToolContext, ToolError, tool
from agentrt.core.budget import Limits
from agentrt.core.errors import AgentDefinitionError, InvalidArgument
from agentrt.core.journal import Effect
from agentrt.core.session import CallId, SessionId
from agentrt.testing import ScriptedModel

MODEL = ScriptedModel(lambda conversation: "ok")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    street: str
    number: int = 1


@tool(effect="read")
async def paint(
    ctx: ToolContext, place: Place, colour: Colour, coats: Annotated[int, Field(ge=1, description="how often")] = 2
) -> str:
    """Paint a place."""
    return f"{place.street} {colour} {coats} {ctx.call_id}"


def add(a: int, b: float = 0.5) -> float:
    """Add."""
    return a + b


def context() -> ToolContext:
    return ToolContext(session_id=SessionId(UUID(int=1)), call_id=CallId("00000a000"))


# --- the schema -------------------------------------------------------------------------------------------------------


def test_the_signature_gives_the_schema_without_titles_and_without_the_context():
    assert paint.name == "paint"
    assert paint.description == "Paint a place."
    assert set(paint.parameters["properties"]) == {"place", "colour", "coats"}
    assert paint.parameters["required"] == ["place", "colour"]
    assert paint.parameters["additionalProperties"] is False
    assert paint.parameters["properties"]["coats"] == {
        "default": 2, "description": "how often", "minimum": 1, "type": "integer",
    }  # fmt: skip
    assert "title" not in str(paint.parameters)


def test_parameters_may_have_names_that_pydantic_uses_itself():
    @tool(effect="read")
    def odd(json: str, schema: int, model_config: str, copy: bool, self: str) -> str:
        """Odd."""
        return f"{json}{schema}{model_config}{copy}{self}"

    arguments = odd.parse('{"json": "a", "schema": 1, "model_config": "b", "copy": true, "self": "c"}')
    assert odd(**arguments) == "a1bTruec"


def test_a_decorated_function_can_still_be_called():
    @tool(effect="read")
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    assert double(4) == 8


def test_the_bare_decorator_and_a_plain_function_leave_the_effect_undeclared():
    bare = tool(add)
    assert isinstance(bare, Tool)
    assert (bare.effect, bare.declared) == (Effect.ONCE, False)
    agent = Agent("adder", model=MODEL, tools=[add, paint])
    assert agent.tools["add"].effect is Effect.ONCE
    [warning] = agent.warnings()
    assert "add" in warning
    assert "paint" not in warning


# --- arguments --------------------------------------------------------------------------------------------------------


def test_good_arguments_become_the_types_of_the_signature():
    parsed = paint.parse('{"place": {"street": "x"}, "colour": "blue"}')
    assert parsed == {"place": Place(street="x"), "colour": Colour.BLUE, "coats": 2}


def test_a_blank_string_counts_as_no_arguments():
    @tool(effect="read")
    def now() -> str:
        """Now."""
        return "now"

    assert now.parse("") == now.parse(" ") == now.parse("{}") == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"path": "x", "content": "abc', "not valid JSON"),
        ("[]", "object"),
        ('"str"', "object"),
        ("null", "object"),
        ("not JSON", "not valid JSON"),
        ('{"a": 1, "a": 2}', "a key is there twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": "1"}', "a: Input should be a valid integer"),
        ('{"a": 1.5}', "a: "),
        ('{"a": true}', "a: Input should be a valid integer"),
        ('{"b": 1}', "a: Field required"),
        ('{"a": 1, "c": 1}', "c: Extra inputs are not permitted"),
        ('{"a": "\\ud800"}', "a"),
        ("{" * 100_000, "not valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": 1' + "0" * 5000 + "}", "not valid JSON"),
        ('{"a": 1e999}', "not valid JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_is_right(arguments, words):
    """F8, F9: half arguments, wrong shapes, no JSON."""
    with pytest.raises(InvalidArguments) as caught:
        tool(add).parse(arguments)
    assert words in str(caught.value)
    assert '"required": ["a"]' in str(caught.value)
    assert len(str(caught.value)) < 1_000


# --- definitions that cannot be used ----------------------------------------------------------------------------------


def untyped(a, b: int):
    """Untyped."""


def variadic(*numbers: int):
    """Variadic."""


def late_context(a: int, ctx: ToolContext):
    """Late."""


def unknowable(a: threading.Thread):
    """No schema."""


async def without_context(a: int):
    """Without context."""


def one_by_one() -> Iterator[int]:
    yield 1


async def slowly_one_by_one() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("options", "function", "words"),
    [
        ({}, untyped, "annotate the parameter 'a'"),
        ({}, variadic, "*numbers"),
        ({}, late_context, "first parameter"),
        ({}, unknowable, "no JSON schema"),
        ({"description": 3}, add, "description=3"),
        ({"effect": ""}, add, "effect=''"),
        ({"name": "a b"}, add, "'a b'"),
        ({"name": "x" * 65}, add, "1 to 64"),
        ({"effect": "often"}, add, "effect='often'"),
        ({"timeout_seconds": 0}, add, "timeout_seconds=0"),
        ({"timeout_seconds": float("nan")}, add, "timeout_seconds=nan"),
        ({"timeout_seconds": "5"}, add, "timeout_seconds='5'"),
        ({}, one_by_one, "it yields"),
        ({}, slowly_one_by_one, "it yields"),
        ({"name": "int"}, int, "no signature"),
        ({"on_unknown": "guess"}, add, "on_unknown='guess'"),
        ({"effect": "transactional"}, add, "async"),
        ({"effect": "transactional"}, without_context, "ToolContext"),
        ({"effect": "read", "reconcile": lambda ctx, a, b: Done()}, add, "reconcile is for effect='once'"),
        ({"effect": "once", "reconcile": lambda ctx: Done()}, add, "reconcile(ctx, **arguments)"),
        ({"requires_approval": lambda x: True}, add, "requires_approval"),
    ],
)
def test_a_tool_that_cannot_be_used_as_written_is_refused(options, function, words):
    with pytest.raises(AgentDefinitionError) as caught:
        tool(**options)(function)
    assert words in str(caught.value)
    assert (options.get("name") or function.__name__) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "agent ''"),
        ({"name": "a b"}, "agent 'a b'"),
        ({"name": "_x"}, "a letter or digit first"),
        ({"name": None}, "agent None"),
        ({"model": "gpt"}, "'provider:name'; write for example 'openai:gpt-5'"),
        ({"model": "openai-chat:"}, "'provider:name'"),
        ({"model": 5}, "model=5"),
        ({"model": ["openai:a", "openai:b"]}, "model=["),
        ({"instructions": lambda session: "x"}, "instructions are text"),
        ({"tools": add}, "not a list"),
        ({"tools": [add, add]}, "two tools are called add"),
        ({"tools": [5]}, "5 is not a function"),
        ({"limits": {"turns": 5}}, "Limits("),
        ({"limits": Limits(turns=cast(int, "5"))}, "turns='5' is no whole number"),
        ({"limits": Limits(cost=float("nan"))}, "cost=nan is no number of 0"),
        ({"limits": Limits(tokens=-1)}, "tokens=-1 is no whole number"),
        ({"allow_overrides": ["queue"]}, "queue"),
        ({"allow_overrides": 5}, "allow_overrides=5 is not a list"),
        ({"allow_overrides": [5, "limits"]}, "names [5]"),
        ({"output": Place}, "output= is not supported"),
        ({"mcp": []}, "mcp= is not supported"),
        ({"lifespan": None}, "lifespan= is not supported"),
        ({"secrets": None}, "secrets= is not supported"),
        ({"temperature": 1}, "no option 'temperature'; known: model, instructions, tools, limits, allow_overrides"),
        ({"instruction": "hi"}, "no option 'instruction'; did you mean 'instructions'?"),
    ],
)
def test_an_agent_that_cannot_be_used_as_written_is_refused(options, words):
    given: dict[str, Any] = {"name": "good", "model": MODEL} | options
    with pytest.raises(AgentDefinitionError) as caught:
        Agent(given.pop("name"), **given)
    assert words in str(caught.value)


def test_an_agent_does_not_change():
    agent = Agent("fixed", model=MODEL)
    with pytest.raises(AttributeError, match="does not change"):
        agent.instructions = "other"


# --- versions and traits ----------------------------------------------------------------------------------------------


def test_the_version_follows_instructions_model_and_tools_and_nothing_else():
    def version(**options: Any) -> str:
        return Agent("a", **({"model": "openai:x", "instructions": "i", "tools": [paint]} | options)).version

    assert version() == version(limits=Limits(turns=3))
    others = {
        version(),
        version(instructions="j"),
        version(model="openai:y"),
        version(tools=[]),
        version(tools=[add]),
        version(tools=[tool(effect="idempotent", name="paint")(paint.function)]),
    }
    assert len(others) == 6


def test_traits_tell_the_planner_what_a_tool_is():
    asking = tool(effect="once", pauses=True, reconcile=lambda ctx, a, b: Done(), on_unknown="suspend")
    traits = Agent("a", model=MODEL, tools=[asking(add)]).traits()["add"]
    assert (traits.effect, traits.pauses) == (Effect.ONCE, True)
    assert (traits.reconciles, traits.on_unknown) == (True, "suspend")


# --- the context ------------------------------------------------------------------------------------------------------


def test_the_idempotency_key_names_session_and_call():
    assert context().idempotency_key == "00000000-0000-0000-0000-000000000001:00000a000"


def test_only_transactional_tools_have_a_connection():
    with pytest.raises(ToolError, match="transactional"):
        _ = context().connection


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e12])
def test_a_deferral_that_cannot_expire_is_refused(seconds):
    with pytest.raises(ToolError, match="expires_seconds"):
        context().defer(expires_seconds=seconds)


# --- the registry -----------------------------------------------------------------------------------------------------

GOOD = """
from agentrt.agents import Agent
one = Agent("{one}", model="openai:x")
two = [one]
"""


def write(folder, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return [str(folder / f"{name}.py") for name in files]


def test_every_agent_at_the_top_level_of_a_module_or_file_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [file, _] = write(tmp_path, some_file=GOOD.format(one="from-file"), some_module=GOOD.format(one="from-module"))
    registry = Registry.load(f" {file}, some_module ,")
    assert set(registry.agents) == {"from-file", "from-module"}
    assert registry.problems == ()


def test_a_file_may_import_what_lies_beside_it_and_share_its_agents(tmp_path):
    beside = f"beside_{tmp_path.name.replace('-', '_')}"
    files = write(tmp_path, **{beside: GOOD.format(one="shared"), "main": f"from {beside} import one"})
    registry = Registry.load([files[1], beside])
    assert set(registry.agents) == {"shared"}
    assert registry.problems == ()


def test_two_agents_of_one_name_are_refused_with_both_places(tmp_path):
    files = write(tmp_path, a=GOOD.format(one="same"), b=GOOD.format(one="same"))
    with pytest.raises(AgentDefinitionError) as caught:
        Registry.load(files)
    assert all(word in str(caught.value) for word in ("'same'", *files))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef broken(:\n", ", line 2: "),
        ("import agentrt_nothing_of_this_name", "ModuleNotFoundError"),
        ("1 / 0", "line 1: ZeroDivisionError"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("from agentrt.agents import Agent\na = Agent('x', model='y')", "'provider:name'"),
        ("x = 1", "no Agent at the top level"),
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\nraise Mute",
            "line 4: Mute: (its message cannot be shown: ValueError)",
        ),
    ],
)
def test_a_source_that_cannot_be_loaded_is_named_and_the_others_go_on(tmp_path, text, words):
    files = write(tmp_path, bad=text, good=GOOD.format(one="good"))
    registry = Registry.load(files)
    assert set(registry.agents) == {"good"}
    [problem] = registry.problems
    assert problem.startswith(files[0])
    assert words in problem


@pytest.mark.parametrize("source", ["no_such_module_anywhere", "./missing.py", "folder/", "a b", "..x"])
def test_a_source_that_is_not_there_is_a_problem(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    registry = Registry.load(source)
    assert registry.agents == {}
    assert registry.problems[0].startswith(source)


# --- public names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in agentrt.__all__ if name not in ("Client", "connect")])
def test_public_names_are_there(name):
    assert getattr(agentrt, name) is not None


def test_a_name_that_is_not_public_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = agentrt.nothing


# --- overrides --------------------------------------------------------------------------------------------------------


def test_a_session_overrides_single_limits_as_far_as_the_agent_allows():
    agent = Agent("a", model=MODEL, limits=Limits(turns=3, tokens=9))
    assert agent.limits_for({}) == agent.limits_for({"limits": None}) == Limits(turns=3, tokens=9)
    assert agent.limits_for({"limits": {"turns": 5}}) == Limits(turns=5, tokens=9)
    assert Agent("a", model=MODEL, allow_overrides=()).limits_for({"limits": {"turns": 5}}) == Limits()


@pytest.mark.parametrize("limits", [{"turns": "many"}, 5, [], "x"])
def test_limits_of_a_session_that_are_none_are_refused_in_words(limits):
    with pytest.raises(InvalidArgument, match=r"config\.limits"):
        Agent("a", model=MODEL).limits_for({"limits": limits})


def test_a_model_may_stand_behind_a_gateway():
    assert Agent("a", model="gateway/openai:gpt-5").model == "gateway/openai:gpt-5"
