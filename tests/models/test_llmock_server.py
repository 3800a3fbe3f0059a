"""llmock runs as a process, breaks by a seed, and its verdict tells careless clients from careful ones."""

import httpx
import pytest

from tests.models.direct import direct, results, user
from tests.models.llmock_server import LlmockServer
from tests.strictprovider.conversation import WireFormat

SOME_FAULTS = {"truncate": 0.25, "disconnect": 0.25, "malformed": 0.25}


def ask(server: LlmockServer, text: str) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    try:
        return httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("wire_format", list(WireFormat))
async def test_each_format_completes_a_tool_round_trip(wire_format: WireFormat) -> None:
    with LlmockServer() as server:
        async with direct(server, wire_format) as model:
            first = await model.ask(user("what is the weather in Oslo?"))
            assert [call.tool_name for call in first.tool_calls] == ["weather"]
            second = await model.ask(user("what is the weather in Oslo?"), first, results(first, ["rain"]))
        verdict = server.verdict()
    assert second.finish_reason == "stop"
    assert (verdict.calls, verdict.failures) == (2, ())


def test_the_same_seed_breaks_the_same_requests() -> None:
    seen = []
    for seed in (7, 7, 8):
        with LlmockServer(seed=seed, errors={429: 0.1, 503: 0.1}, stream_faults=SOME_FAULTS) as server:
            for number in range(20):
                ask(server, f"this is the long question with the number {number}")
            seen.append([(request["status"], request["fault"]) for request in server.requests()])
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) > 3


def test_a_client_that_takes_half_an_answer_or_ignores_retry_after_fails() -> None:
    with LlmockServer() as server:
        server.script({"type": "fail", "status": 429, "retry_after": 600})
        server.script({"type": "stream_fault", "kind": "truncate", "after_chunks": 2})
        assert [ask(server, "a question of some words") for _ in range(2)] == [429, 200]
        verdict = server.verdict()
        assert {finding["code"] for finding in verdict.failures} == {
            "retry_after_ignored",
            "truncated_stream_accepted",
        }
        assert "FAIL" in verdict.text
        server.reset()
        ask(server, "a question of some words")
        assert server.verdict().failures == ()


def test_a_bad_option_is_reported_with_llmocks_words() -> None:
    with pytest.raises(RuntimeError, match="stream-fault"), LlmockServer(stream_faults={"explode": 1.0}):
        pass
