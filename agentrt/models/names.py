"""What can be said of ``"provider:name"`` without importing anything: its form, its API, its key."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agentrt.core.errors import ConfigurationError
from agentrt.core.messages import MODEL_NAME, ModelIdentity


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its format, whose it is, the SDK that speaks it, and where its key and URL usually are."""

    format: str
    vendor: str
    sdk: str
    key_variable: str
    url_variable: str
    key_needed_with_url: bool


_OPENAI_RESPONSES = Api(
    "openai-responses", "openai", "openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", key_needed_with_url=False
)
_OPENAI_CHAT = Api("openai-chat", "openai", "openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", key_needed_with_url=False)
_ANTHROPIC = Api(
    "anthropic", "anthropic", "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", key_needed_with_url=True
)

APIS: Final[Mapping[str, Api]] = {
    "openai": _OPENAI_RESPONSES,
    "openai-responses": _OPENAI_RESPONSES,
    "openai-chat": _OPENAI_CHAT,
    "anthropic": _ANTHROPIC,
}
"""The providers that agentrt is tested with. Others are built at once to see whether they can be used."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed ``"provider:name"``."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def api(self) -> Api | None:
        """What is known of the provider's API; None for providers that agentrt is not tested with."""
        return APIS.get(self.provider)

    @property
    def identity(self) -> ModelIdentity:
        """Format, vendor and model; a provider that is not known here counts as a format of its own."""
        api = self.api
        return ModelIdentity(api.format if api else self.provider, api.vendor if api else self.provider, self.model)


def parse(name: str) -> ModelName:
    """``"provider:name"`` in its two parts.

    Raises:
        ConfigurationError: it has another form.
    """
    found = MODEL_NAME.fullmatch(name)
    if found is None:
        raise ConfigurationError(
            f"model {name!r} is not of the form 'provider:name'; write for example 'openai:gpt-5' or "
            "'anthropic:claude-opus-5-5'"
        )
    return ModelName(found["provider"], found["model"])


@dataclass(frozen=True, slots=True)
class Access:
    """Where a model is asked and with which key; None leaves it to the provider's layer."""

    key: str | None
    url: str | None


def access(name: ModelName, environ: Mapping[str, str], *, key: str | None, url: str | None) -> Access:
    """The key and base URL to use: those given, else those of the usual environment variables.

    Cheap: nothing is imported. Providers without a known API find their own.

    Raises:
        ConfigurationError: the extra, the key or a sound base URL is missing.
    """
    api = name.api
    if api is None:
        return Access(key, url)
    if importlib.util.find_spec(api.sdk) is None:
        raise missing_extra(name, api.sdk)
    used_url = url or environ.get(api.url_variable) or None
    if used_url:
        _check_url(name, used_url, "base_url" if url else api.url_variable)
    used_key = key or environ.get(api.key_variable) or None
    if used_key is None and (api.key_needed_with_url or used_url is None):
        raise ConfigurationError(
            f"model '{name}' needs a key: set {api.key_variable}, or give one with ProviderModel('{name}', api_key=...)"
        )
    return Access(used_key or "none", used_url)  # a server of one's own may need no key, but its SDK wants some text


def _check_url(name: ModelName, url: str, source: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:
        shown = "its value" if "@" in url else repr(url)  # it may hold a password
        raise ConfigurationError(f"model '{name}': {source}: {shown} is no URL such as https://api.example.com/v1")


def missing_extra(name: ModelName, sdk: str) -> ConfigurationError:
    """The error for an SDK that is not installed, with the extra that brings it: ours, where we have one."""
    ours = {api.sdk for api in APIS.values()}
    package = f"agentrt[{sdk}]" if sdk in ours else f"pydantic-ai-slim[{name.provider}]"
    return ConfigurationError(f"model '{name}' needs a package that is not installed: pip install '{package}'")
