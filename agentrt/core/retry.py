"""When to ask a model again: delays, and what a provider's Retry-After means."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

BASE_SECONDS: Final = 1.0
CEILING_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 86_400.0
"""No provider's wish makes us wait longer than a day."""

_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15}")


def delay_seconds(
    retries: int, *, jitter: float, base: float = BASE_SECONDS, ceiling: float = CEILING_SECONDS
) -> float:
    """The wait before retry number ``retries`` (from 0): exponential with full jitter.

    ``jitter`` is a random number from 0 to 1, the caller's. Any count gives a number from 0 to ``ceiling``. Full
    jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    exponent = min(max(retries, 0), 60)
    return min(max(jitter, 0.0), 1.0) * min(ceiling, base * 2.0**exponent)


def wait_seconds(retries: int, *, jitter: float, retry_after_seconds: float | None = None) -> float:
    """The wait before the next model call: ``delay_seconds``, but never earlier than the provider asked, and then a
    little later: whoever was refused in the same moment would come back in the same moment."""
    own = delay_seconds(retries, jitter=jitter)
    if retry_after_seconds is None:
        return own
    return max(own, clamp(clamp(retry_after_seconds) + delay_seconds(0, jitter=jitter)))


def clamp(seconds: float) -> float:
    """``seconds`` as a wait that makes sense: from 0 to a day; not a number is 0."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_SECONDS)


def parse_retry_after(text: str | None, now: datetime) -> float | None:
    """The seconds that a Retry-After header asks to wait, clamped; None when it asks for nothing that makes sense.

    Seconds, also with a fraction (RFC 9110 has whole ones only, providers send both), or an HTTP date, measured from
    ``now``; a date in the past is 0. Negative numbers and nonsense are None.
    """
    stripped = (text or "").strip()
    if _SECONDS.fullmatch(stripped):
        return clamp(float(stripped))
    try:
        at = parsedate_to_datetime(stripped)
        return clamp((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
