"""Settings of a worker: environment variables ``AGENTRT_…``, read once, frozen, checked together.

Whatever is wrong with them is one ``ConfigurationError`` that names the variable, its value and what is accepted.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agentrt.core.errors import ConfigurationError
from agentrt.core.urls import passwords_of, without_password

PREFIX = "AGENTRT_"


class LogLevel(StrEnum):
    """What is logged: this level and everything above it."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """``auto`` is ``console`` on a terminal, and ``json`` elsewhere."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    return value


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _seconds(default: float, *, low: float, high: float = 86_400.0) -> Any:
    accepted = f"a number of seconds from {low:g} to {high:,.0f}"
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=accepted)


def _whole(default: int, *, low: int, high: int) -> Any:
    return Field(default, ge=low, le=high, description=f"a whole number from {low:,} to {high:,}")


_URL = "a PostgreSQL URL, such as postgresql://user:password@host:5432/database"


class Settings(BaseSettings):
    """All settings of a worker. Keyword arguments win over the environment.

    Raises:
        ConfigurationError: a value is not accepted, or two values do not go together.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    database_url: str | None = Field(None, repr=False, description=_URL)
    direct_database_url: str | None = Field(None, repr=False, validate_default=True, description=_URL)
    """For LISTEN and advisory locks; the same as ``database_url`` unless that goes through a transaction pooler."""

    agents: Names = Field((), description="a comma-separated list of modules and files")
    queues: Names = Field(("default",), min_length=1, description="a comma-separated list of queue names")
    slots: int = _whole(20, low=1, high=10_000)
    worker_name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=200,
        description="a name of 1 to 200 characters (the host's name when left out)",
    )

    heartbeat_seconds: float = _seconds(2.0, low=0.05, high=600)
    lease_seconds: float = _seconds(15.0, low=0.2)
    stop_seconds: float = _seconds(3.0, low=0.05, high=600)
    stall_seconds: float = _seconds(30.0, low=0.5)
    poll_seconds: float = _seconds(5.0, low=0.05, high=3_600)
    drain_seconds: float = _seconds(25.0, low=0)
    drain_tool_seconds: float = _seconds(300.0, low=0)
    max_attempts: int = _whole(5, low=1, high=20)

    model_idle_seconds: float = _seconds(120.0, low=0.1)
    model_first_event_seconds: float = _seconds(600.0, low=0.1)
    model_call_seconds: float = _seconds(1_800.0, low=0.1)
    model_retry_seconds: float = _seconds(21_600.0, low=0, high=2_592_000)
    release_wait_seconds: float = _seconds(10.0, low=0)
    model_concurrency: int = _whole(0, low=0, high=10_000)
    """Calls at once per provider and key; 0 is no limit."""

    tool_seconds: float = _seconds(600.0, low=0.1)
    tool_result_max_bytes: int = _whole(32_768, low=1_024, high=8_388_608)
    message_max_bytes: int = _whole(8_388_608, low=1_024, high=8_388_608)  # more, the database refuses
    transactional_connections: int = _whole(4, low=1, high=1_000)
    transactional_seconds: float = _seconds(10.0, low=0.1, high=3_600)

    db_statement_seconds: float = _seconds(10.0, low=0.1, high=3_600)
    db_lock_seconds: float = _seconds(2.0, low=0.05, high=3_600)
    db_idle_transaction_seconds: float = _seconds(5.0, low=0.1, high=3_600)

    http_host: str = Field("127.0.0.1", min_length=1, description="an address of this machine, such as 0.0.0.0")
    http_port: int = _whole(9464, low=0, high=65_535)
    """0 turns the probes and metrics off."""

    log_level: Annotated[LogLevel, BeforeValidator(_lower)] = Field(
        LogLevel.INFO, description="one of debug, info, warning, error"
    )
    log_format: Annotated[LogFormat, BeforeValidator(_lower)] = Field(
        LogFormat.AUTO, description="one of auto, console, json"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(_sentences(error))) from None

    @field_validator("database_url", "direct_database_url", "queues", "worker_name", "http_host", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str):
            value.encode()  # a variable may hold any bytes: these are no UTF-8 for the database
        return value

    @field_validator("database_url", "direct_database_url")
    @classmethod
    def _is_postgres(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return info.data.get("database_url") if info.field_name == "direct_database_url" else None
        try:
            scheme = urlsplit(url.strip()).scheme
        except ValueError:
            scheme = ""
        if scheme not in ("postgresql", "postgres"):
            raise ValueError("url")
        return url.strip()

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        least = 3 * self.heartbeat_seconds + self.stop_seconds
        if self.lease_seconds < least:
            raise ValueError(
                f"AGENTRT_LEASE_SECONDS={self.lease_seconds:g} is too short for a heartbeat of "
                f"{self.heartbeat_seconds:g} s and {self.stop_seconds:g} s to stop: set it to {least:g} or more "
                "(3 * AGENTRT_HEARTBEAT_SECONDS + AGENTRT_STOP_SECONDS), or lower one of the other two"
            )
        if self.db_lock_seconds > self.db_statement_seconds:
            raise ValueError(
                f"AGENTRT_DB_LOCK_SECONDS={self.db_lock_seconds:g} is longer than "
                f"AGENTRT_DB_STATEMENT_SECONDS={self.db_statement_seconds:g}, which would end the statement first: "
                "set it to that or less"
            )
        return self

    def require_database_url(self) -> str:
        """The database's URL.

        Raises:
            ConfigurationError: there is none.
        """
        if self.database_url is None:
            raise ConfigurationError(
                "AGENTRT_DATABASE_URL is not set: set it to the URL of your database, such as "
                "postgresql://user:password@host:5432/database (`agentrt demo` and `agentrt dev` need none)"
            )
        return self.database_url

    def require_direct_database_url(self) -> str:
        """The URL of the server itself. Raises as ``require_database_url``."""
        return self.direct_database_url or self.require_database_url()

    def passwords(self) -> tuple[str, ...]:
        """Those in the URLs, as written and as meant: what must not get into a log or a journal."""
        urls = filter(None, (self.database_url, self.direct_database_url))
        written = [password for url in urls for password in passwords_of(url)]
        return tuple(dict.fromkeys(form for password in written for form in (password, unquote(password))))


def _sentences(error: ValidationError) -> list[str]:
    sentences: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        if not problem["loc"]:  # a cross-check: its own words
            sentences.append(problem["msg"].removeprefix("Value error, "))
            continue
        name = str(problem["loc"][0])
        field = Settings.model_fields.get(name)
        if field is None:
            sentences.append(f"{name} is no setting of agentrt{_suggestion(name)}")
            continue
        variable, value = PREFIX + name.upper(), problem["input"]
        shown = without_password(str(value)) if name.endswith("_url") else _shortened(value)
        sentences.append(f"{variable}={shown} is not {field.description}{_default(field.default)}")
    return list(dict.fromkeys(sentences))


def _default(value: object) -> str:
    if isinstance(value, int | float | str) and str(value):
        return f"; the default is {value:g}" if isinstance(value, float) else f"; the default is {value}"
    return ""


def _shortened(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), Settings.model_fields, n=1, cutoff=0.6)
    return f"; did you mean {PREFIX}{close[0].upper()}?" if close else ""


# Not settings: the test-suite's, and what Kubernetes adds to every container for a service named agentrt….
_FOREIGN = re.compile(r"AGENTRT_(TEST_.*|(.*_)?SERVICE_(HOST|PORT(_.*)?)|(.*_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)")


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """One warning for each AGENTRT_ variable that is no setting, with the setting that was probably meant."""
    warnings = []
    for name in sorted(os.environ if environ is None else environ):
        if not name.upper().startswith(PREFIX):
            continue
        setting = name.upper().removeprefix(PREFIX).lower()
        if setting not in Settings.model_fields and not _FOREIGN.fullmatch(name.upper()):
            warnings.append(f"the variable {name} is no setting of agentrt and has no effect{_suggestion(setting)}")
    return warnings
