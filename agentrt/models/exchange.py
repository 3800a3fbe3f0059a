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
    """Response hook: a web page or a redirect is no answer of a model's API.

    Redirects are not followed: the key would go to where the operator has not sent it.

    Raises:
        NotAnApi: the base URL leads to something else.
    """
    url = response.request.url.copy_with(userinfo=b"", query=None)
    if 300 <= response.status_code < 400:
        where = _place(response)
        words = f"{url} answered with a redirect ({response.status_code}) to {where}: the base URL is wrong"
        raise NotAnApi(words)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_success and kind == "text/html":
        raise NotAnApi(f"{url} answered with a web page (text/html) in place of an API's events: the base URL is wrong")
    exchange = UNDER_WAY.get()
    if exchange is not None and response.is_success:
        exchange.answering = True


def _place(response: httpx2.Response) -> str:
    """Scheme and host of where a redirect leads; more of it may be secret."""
    location = response.headers.get("location")
    if not location:
        return "nowhere (it has no Location)"
    try:
        to = response.request.url.join(location)
    except httpx2.InvalidURL:
        return "a Location that is no URL"
    return f"{to.scheme}://{to.netloc.decode('ascii', 'replace')}"
