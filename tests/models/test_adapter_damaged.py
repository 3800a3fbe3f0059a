"""Stored objects of a provider that are not of the form which the layer relies on: an import may hold anything."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import TextPart

from agentrt.core.content import Text, Thinking, ToolCall
from agentrt.core.messages import ModelOutput, UserInput
from agentrt.models.opaque import restored
from agentrt.models.provider import ProviderModel
from agentrt.ports import ModelError, ModelErrorClass, ModelLimits, ModelRequest

MODELS = ["anthropic:claude-opus-5-5", "openai:gpt-5", "openai-chat:gpt-5"]


def damaged(model: ProviderModel, value: Any) -> ModelOutput:
    """An answer whose opaque object holds ``value`` wherever something is expected."""
    identity = model.identity
    response = dict.fromkeys(("provider_details", "provider_name", "provider_url", "provider_response_id"), value)
    part = {"at": 0} | dict.fromkeys(("id", "signature", "provider_name", "provider_details"), value)
    return ModelOutput(
        (Text("a"), ToolCall("t", "{}")),
        provider={
            "format": identity.format,
            "provider": identity.provider,
            "model": identity.model,
            "response": json.dumps(response),
            "parts": [
                json.dumps(part),
                json.dumps({**part, "at": 1}),
                json.dumps({"native": value}),
                json.dumps({"at": value}),
                value,
            ],
        },
        positions=(0, 1),
    )


@pytest.mark.parametrize("value", ["x", 5, [1], True])
@pytest.mark.parametrize("name", MODELS)
async def test_a_damaged_object_does_not_keep_a_request_from_being_sent(name, value):
    model = ProviderModel(name, api_key="k", base_url="http://127.0.0.1:1")
    view = (UserInput((Text("q"),)), damaged(model, value), UserInput((Text("again"),)))
    request = ModelRequest(instructions="", messages=view, tools=(), limits=ModelLimits())
    try:
        with pytest.raises(ModelError) as caught:
            await model.request(request, lambda _: None)
        assert caught.value.error_class is ModelErrorClass.TRANSIENT  # it was sent: nobody listens there
    finally:
        await model.close()


@pytest.mark.parametrize("value", [5, [1], True])
def test_what_is_of_another_form_is_left_out(value):
    model = ProviderModel(MODELS[0], api_key="k")
    answer = restored(damaged(model, value), model.identity)
    assert answer.provider_details is None
    assert answer.provider_name is None
    assert [getattr(part, "id", None) for part in answer.parts] == [None, None]


@pytest.mark.parametrize("signature", [None, "", 7, ["s"]])
def test_thinking_whose_signature_is_no_text_is_left_out(signature):
    """It would be sent as words of the user's."""
    model = ProviderModel(MODELS[0], api_key="k")
    whole = damaged(model, None)
    parts = [json.dumps({"at": 0, "signature": signature}), json.dumps({"at": 1})]
    answer = replace(
        whole,
        content=(Thinking("hm"), Text("a")),
        provider={**(whole.provider or {}), "response": "{}", "parts": parts},
    )
    assert [type(part) for part in restored(answer, model.identity).parts] == [TextPart]
