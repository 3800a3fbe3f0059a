"""The demo's report table: what the agent's transactional tool writes, and how often."""

from __future__ import annotations

from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection

# No unique constraint on purpose: nothing but the transaction keeps a row from being written twice.
_CREATE = "create table demo_report (call_id text, path text, lines integer, verdict text)"
_DOUBLED = "select count(*) - count(distinct call_id) from demo_report"


class Report:
    """The table of one demo."""

    def __init__(self, url: str) -> None:
        self._connection = RoleConnection(DatabaseOptions(url=url), Role.CLIENT)

    async def create(self) -> None:
        """Make the table."""
        await self._connection.fetch(_CREATE)
        await self._connection.close()

    async def doubled(self) -> int:
        """Rows above one per tool call."""
        rows = await self._connection.fetch(_DOUBLED)
        await self._connection.close()
        return int(rows[0][0])
