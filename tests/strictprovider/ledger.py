"""What a provider knows of its own answers: signatures, item ids, paused answers, cached prefixes.

Signatures are keyed hashes over (origin, item id, text) with a fixed key, so that every process of this provider
accepts what another one signed. All else is remembered.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import deque
from dataclasses import dataclass, field

from .conversation import AssistantMessage, Text, Thinking, WireFormat

_KEY = b"strict provider"
_BYTES_PER_TOKEN = 4


def origin_of(wire_format: WireFormat, model: str) -> str:
    """Who signs: thinking belongs to a model in a format."""
    return f"{wire_format}/{model}"


def sign(origin: str, text: str, item_id: str = "") -> str:
    """The signature of thinking: names its origin, so that a foreign one can be told from an altered one."""
    digest = hmac.new(_KEY, f"{origin}\n{item_id}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256)
    return base64.b64encode(origin.encode() + b"\n" + digest.digest()).decode()


def signer(signature: str, text: str, item_id: str = "") -> str | None:
    """The origin that signed this text; None when nobody of ours did, or the text is another one."""
    try:
        origin = base64.b64decode(signature, validate=True).partition(b"\n")[0].decode()
    except ValueError:
        return None
    return origin if hmac.compare_digest(sign(origin, text, item_id).encode(), signature.encode()) else None


@dataclass(frozen=True, slots=True)
class Unit:
    """One step of the bytes that a prompt cache sees: a tool, a block of text. `marked` ends a prefix."""

    data: bytes
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: `total` is all of them, `cached` and `written` are parts of it."""

    total: int
    cached: int = 0
    written: int = 0


@dataclass(slots=True)
class Ledger:
    """The memory of one provider."""

    prefixes: dict[str, deque[bytes]] = field(default_factory=dict)
    paused: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    requires: dict[str, str] = field(default_factory=dict)
    thoughts: dict[str, str] = field(default_factory=dict)
    tool_names: set[str] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)
    minted: int = 0

    def mint(self, prefix: str) -> str:
        """A provider's own id: unlike ours in form, unique, and the same from run to run."""
        self.minted += 1
        return f"{prefix}{hashlib.sha256(f'{prefix}{self.minted}'.encode()).hexdigest()[:24]}"

    def pause(self, blocks: tuple[tuple[str, str], ...]) -> None:
        self.paused.append(blocks)

    def was_paused(self, message: AssistantMessage) -> bool:
        """Whether the message ends with an answer in the middle of which this provider stopped by itself.

        Known by its text and thinking: clients may leave out what server tools did.
        """
        shown = tuple(
            (type(block).__name__, block.text) for block in message.blocks if isinstance(block, Text | Thinking)
        )
        return any(shown[len(shown) - len(blocks) :] == blocks for blocks in self.paused)

    def account(self, owner: str, units: tuple[Unit, ...], *, marked_only: bool) -> Usage:
        """How much of a request an earlier one has left in the cache.

        `marked_only` (Anthropic): only prefixes that end at a mark are written, and only a request with a mark
        reads. Otherwise (OpenAI) the longest common prefix with any earlier request counts.
        """
        known = self.prefixes.setdefault(owner, deque(maxlen=512))
        whole = b"".join(unit.data for unit in units)
        if not marked_only:
            shared = max((_shared(whole, earlier) for earlier in known), default=0)
            known.append(whole)
            return Usage(len(whole) // _BYTES_PER_TOKEN, shared // _BYTES_PER_TOKEN)
        ends: list[int] = []
        length = 0
        for unit in units:
            length += len(unit.data)
            if unit.marked:
                ends.append(length)
        if not ends:
            return Usage(len(whole) // _BYTES_PER_TOKEN)
        shared = max((len(earlier) for earlier in known if whole.startswith(earlier)), default=0)
        known.extend(whole[:end] for end in ends if end > shared)
        written = max(0, ends[-1] - shared)
        return Usage(len(whole) // _BYTES_PER_TOKEN, shared // _BYTES_PER_TOKEN, written // _BYTES_PER_TOKEN)


def _shared(one: bytes, other: bytes) -> int:
    """The length of the common prefix, found by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
