"""Which models can be used here is known at start, without importing what is not needed yet."""

import json
import subprocess
import sys
from typing import Any

import pytest

from agentrt import ProviderModel
from agentrt.agents import Agent
from agentrt.core.errors import ConfigurationError
from agentrt.core.transcript import ModelIdentity
from agentrt.models.factory import ProviderModels
from tests.databases import CHECKOUT


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own keys and URLs decide no test."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["gpt-5", "openai:", ":gpt-5", "OpenAI:gpt-5", "openai:gpt 5", "", "openai"])
def test_a_malformed_model_says_what_is_right(name: str) -> None:
    with pytest.raises(ConfigurationError, match="'provider:name'"):
        ProviderModels()(name)


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'opnai:gpt-5' .*openai, openai-chat and anthropic"):
        ProviderModels()("opnai:gpt-5")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-opus-5-5", "ANTHROPIC_API_KEY"),
        ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY"),
    ],
)
def test_a_missing_key_names_its_variable(name: str, variable: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        ProviderModels()(name)


def test_an_empty_key_is_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        ProviderModels()("openai:gpt-5")


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("openai:gpt-5", "openai", r"pip install 'agentrt\[openai\]'"),
        ("anthropic:claude-opus-5-5", "anthropic", r"pip install 'agentrt\[anthropic\]'"),
        ("groq:llama", "groq", r"pip install 'pydantic-ai-slim\[groq\]'"),
    ],
)
def test_a_missing_extra_is_named(name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=package):
        ProviderModels()(name)


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://example.com", "https://", "http://host:99999", "not a url"])
def test_a_base_url_that_is_none_names_its_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
        ProviderModels()("openai:gpt-5")


def test_a_password_in_a_broken_url_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "ftp://me:secret@example.com")
    with pytest.raises(ConfigurationError) as refused:
        ProviderModels()("openai:gpt-5")
    assert "secret" not in str(refused.value)


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8080/v1")
    assert ProviderModels()("openai-chat:local").identity.model == "local"
    ProviderModel("openai-chat:local", base_url="http://localhost:8080/v1").check()


def test_a_model_is_made_once_for_each_name_key_and_url(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ProviderModels()
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    first = models("openai:gpt-5")
    assert models("openai:gpt-5") is first
    assert models("openai-chat:gpt-5") is not first
    monkeypatch.setenv("OPENAI_API_KEY", "two")
    second = models("openai:gpt-5")
    assert second is not first
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8080/v1")
    assert models("openai:gpt-5") not in (first, second)
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    assert models("openai:gpt-5") is first


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("openai:gpt-5", ModelIdentity("openai-responses", "openai", "gpt-5")),
        ("openai-chat:gpt-5", ModelIdentity("openai-chat", "openai", "gpt-5")),
        ("anthropic:claude-opus-5-5", ModelIdentity("anthropic", "anthropic", "claude-opus-5-5")),
        ("groq:openai/gpt-oss:20b", ModelIdentity("groq", "groq", "openai/gpt-oss:20b")),
    ],
)
def test_the_identity_tells_format_vendor_and_model(name: str, identity: ModelIdentity) -> None:
    assert ProviderModel(name).identity == identity


def test_a_model_object_is_an_agents_model_and_is_checked_like_a_name() -> None:
    agent = Agent("a", model=ProviderModel("openai:gpt-5"))
    assert agent.model_name == "openai:gpt-5"
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        ProviderModels().check(agent.model)
    ProviderModels().check(ProviderModel("openai:gpt-5", api_key="key"))


def test_the_context_window_is_known() -> None:
    assert (ProviderModel("openai:gpt-5", api_key="key").context_window or 0) > 100_000
    assert ProviderModel("openai-chat:nobodys-model", api_key="key").context_window is None


# --- what is imported -----------------------------------------------------------------------------------------------

LOOK = """
import json, sys
print(json.dumps([name for name in ("pydantic_ai", "openai", "anthropic") if name in sys.modules]))
"""


def imported_after(program: str, **environ: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{LOOK}"],
        cwd=CHECKOUT,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_help_imports_no_model_layer() -> None:
    program = "import sys; sys.argv = ['agentrt', '--help']\nfrom agentrt.cli import main\n"
    assert imported_after(program + "try:\n    main()\nexcept SystemExit:\n    pass") == []


def test_checking_a_tested_provider_imports_neither_layer_nor_sdk() -> None:
    program = "from agentrt.models.factory import ProviderModels\nmodels = ProviderModels()\n"
    program += "[models(name) for name in ('openai:gpt-5', 'openai-chat:gpt-5', 'anthropic:claude-opus-5-5')]"
    assert imported_after(program, OPENAI_API_KEY="key", ANTHROPIC_API_KEY="key") == []


def test_warming_imports_the_layer_and_only_the_sdk_that_is_used() -> None:
    program = "from agentrt.models.factory import ProviderModels\nmodels = ProviderModels()\n"
    program += "models('openai:gpt-5')\nmodels.warm()\nimport threading\n"
    program += "[thread.join() for thread in threading.enumerate() if thread.name == 'agentrt-models']"
    assert imported_after(program, OPENAI_API_KEY="key") == ["pydantic_ai", "openai"]


def test_warming_nothing_imports_nothing() -> None:
    program = "from agentrt.models.factory import ProviderModels\nProviderModels().warm()"
    assert imported_after(program) == []
