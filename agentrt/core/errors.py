"""The errors that agentrt raises, and nothing else does.

    AgentrtError
    ├── ClientError                what a caller did wrong, or came too late for; SQLSTATE class AR
    │   ├── NotFound               AR001  no such session, approval, call
    │   ├── InvalidTransition      AR002  names the current status
    │   ├── Conflict               AR003  same key or command, other arguments; already decided otherwise
    │   ├── InvalidArgument        AR004  unknown option key, bad content, too large, wrong isolation level
    │   ├── StaleDecision          AR005  the hash is not the stored one
    │   └── Archived               AR006
    ├── ConfigurationError         settings, URLs, keys, extras: fix and start again
    │   ├── AgentDefinitionError   an agent or tool that cannot be used as written
    │   └── SchemaMismatch         the database is older, or newer in a way that this version cannot serve
    ├── DatabaseUnavailable        the database did not answer (in time); the write, if any, has an unknown outcome
    └── LeaseLost                  somebody else owns the session now: stop, write nothing

Tools raise ``ToolError`` and ``NotExecuted`` (agentrt.agents); models raise ``ModelError`` (agentrt.ports).
Every message says what was wrong, the value, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class AgentrtError(Exception):
    """Anything that agentrt itself raises."""


class ClientError(AgentrtError):
    """A command that the database refused; nothing was changed."""

    sqlstate: ClassVar[str] = ""


class NotFound(ClientError):
    """There is no such session, approval or tool call."""

    sqlstate = "AR001"


class InvalidTransition(ClientError):
    """The session's present status does not allow the command."""

    sqlstate = "AR002"


class Conflict(ClientError):
    """The same key or command was used before with other arguments."""

    sqlstate = "AR003"


class InvalidArgument(ClientError):
    """An argument that can never be accepted."""

    sqlstate = "AR004"


class StaleDecision(ClientError):
    """The decision names other arguments than those that wait for approval."""

    sqlstate = "AR005"


class Archived(ClientError):
    """The session was archived: it can only be read."""

    sqlstate = "AR006"


CLIENT_ERRORS: dict[str, type[ClientError]] = {
    kind.sqlstate: kind for kind in (NotFound, InvalidTransition, Conflict, InvalidArgument, StaleDecision, Archived)
}
"""The exception for each SQLSTATE of class AR."""


class ConfigurationError(AgentrtError):
    """A setting, URL, key or missing extra that has to be put right before a start."""


class AgentDefinitionError(ConfigurationError):
    """An agent or tool that cannot be used as it is written."""


class SchemaMismatch(ConfigurationError):
    """The database's schema and this version of agentrt do not fit together."""


class DatabaseUnavailable(AgentrtError):
    """The database did not answer, or not in time. A write that was under way has an unknown outcome."""


OUTAGES = (DatabaseUnavailable, ConfigurationError)
"""What a store raises that has worked before, and may work again: nothing is known of what it was asked to write."""


class LeaseLost(AgentrtError):
    """Another owner, or a client, took the session: whoever gets this stops and writes nothing."""


def message_of(error: BaseException) -> str:
    """An exception's message, whatever its class makes of that."""
    try:
        return str.__str__(str(error))
    except BaseException as raised:  # noqa: BLE001 - the user's other code: ``__str__`` of an exception
        return f"(its message cannot be shown: {type(raised).__name__})"
