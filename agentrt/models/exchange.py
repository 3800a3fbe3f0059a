"""What an HTTP answer says of itself before its body is read: it is the provider's, or something else's."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import httpx2


class NotAnApi(Exception):
    """The base URL leads to something else than a model's API; the message is a whole sentence."""


@dataclass(slots=True)
class Exchange:
    """One call. ``answering``: the provider has taken the request, and what comes now is its answer."""

    answering: bool = False


UNDER_WAY: ContextVar[Exchange | None] = ContextVar("agentrt_exchange", default=None)
"""The call that the present task makes, for the hook of the client that its model shares with all others."""


async def look_at(response: httpx2.Response) -> None:
    """Response hook: a web page is no answer of a model's API, whatever its status says.

    Raises:
        NotAnApi: the base URL leads to something else.
    """
    url = response.request.url.copy_with(userinfo=b"", query=None)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_success and kind == "text/html":
        raise NotAnApi(f"{url} answered with a web page (text/html) in place of an API's events: the base URL is wrong")
    exchange = UNDER_WAY.get()
    if exchange is not None and response.is_success:
        exchange.answering = True
