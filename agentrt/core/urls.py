"""What of a database's URL is secret, however it is written."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"(//[^:@/?#]*):(.*)@")  # up to the last @: a password may hold what should be encoded
_ENCODED_USER: Final = re.compile(r"//[^:@/?#]*:([^/?#]*)@")
_PARAMETER: Final = re.compile(r"(?i)((?:ssl)?password=)([^&#\s]*)")
_NOT_ENCODED: Final = re.compile(r"[/?#\[\]]")


def passwords_of(url: str) -> tuple[str, ...]:
    """The passwords in ``url``, as they are written there: that of a user also for whoever takes the URL apart by its
    rules, since an @ further on may belong to something else."""
    found = [password for pattern in (_USER, _PARAMETER) for _, password in pattern.findall(url)]
    return tuple(dict.fromkeys(filter(None, (*found, *_ENCODED_USER.findall(url)))))


def without_password(url: str) -> str:
    """``url`` as it may be shown: its password, also one among its parameters, becomes ``***``."""
    return _USER.sub(r"\1:***@", _PARAMETER.sub(r"\1***", url))


def has_raw_password(url: str) -> bool:
    """Whether the password holds a character that ends it for whoever takes the URL apart."""
    found = _USER.search(url)
    return found is not None and _NOT_ENCODED.search(found[2]) is not None
