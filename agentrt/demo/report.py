"""The demo's report table: what the agent's transactional tool writes, and how often."""

from __future__ import annotations

from agentrt.app import query

# No unique constraint on purpose: nothing but the transaction keeps a row from being written twice.
_CREATE = "create table demo_report (call_id text, path text, lines integer, verdict text)"
_DOUBLED = "select count(*) - count(distinct call_id) from demo_report"


class Report:
    """The table of one demo."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def create(self) -> None:
        """Make the table."""
        await query(self._url, _CREATE)

    async def doubled(self) -> int:
        """Rows above one per tool call."""
        [[doubled]] = await query(self._url, _DOUBLED)
        return int(doubled)
