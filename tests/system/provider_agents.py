"""Agents that ask a provider of the tests, one in each format, and what the strict provider answers them."""

from agentrt import Agent, tool
from tests.strictprovider.script import Answer, Call, ModelRequest, Reply, Say, Think, Wait


@tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


MODELS = {
    "openai-chat": "openai-chat:gpt-5-mini",
    "openai": "openai:gpt-5-mini",
    "anthropic": "anthropic:claude-sonnet-5-5",
}
chat, responses, anthropic = (
    Agent(name, model=model, instructions="Be brief.", tools=[weather]) for name, model in MODELS.items()
)


def slow_weather(request: ModelRequest) -> Reply:
    """Thinks and calls a tool; stops in the middle of the sentence about its result when it is asked for the first
    time, and in the middle of the call when the first message says so."""
    gate = (Wait("mid-stream"),) if request.tries == 1 else ()
    within_call = request.first_text.startswith("within the call")
    if request.tool_results:
        return Answer((Say("There is "), *(() if within_call else gate), Say(request.tool_results[0].text)))
    call = Call("weather", {"city": "Oslo"})
    if gate and within_call:
        return Answer((Think("Weather."), Call("weather", {"city": "Rome"}, half=True), *gate))
    return Answer((Think("Weather."), Say("Let me see."), call))
