"""Claims whose answer comes late, or never, to a worker that may not begin anything any more."""

import asyncio
from collections.abc import Sequence
from typing import Any

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import ClaimFailed, SelfFenced, SessionEnded, SessionReleased
from agentrt.ports import Claimed, KeeperStore, Renewal, SessionStore, Written
from tests.worker.daemons import LEASE_SECONDS, QUICK, Held, working
from tests.worker.ownership import Ground, stores


class Away:
    """The real stores. The first claim that brings something commits, and its answer waits for ``gate`` or is lost;
    neither a renewal nor an ending is answered while ``silent``."""

    def __init__(self, ground: Ground, *, lost: bool) -> None:
        self.real = stores(ground.url)
        self.changed = ground.heard.changed
        self.gate = asyncio.Event()
        self.lost = lost
        self.silent = False
        self.claims = 0

    async def sessions(self) -> SessionStore:
        return _Claiming(self, await self.real.sessions())

    async def keeper(self) -> KeeperStore:
        return _Renewing(self, await self.real.keeper())

    async def reaper(self) -> Any:
        return await self.real.reaper()


class _Claiming:
    def __init__(self, away: Away, store: SessionStore) -> None:
        self._away = away
        self._store = store

    async def claim(self, *arguments: Any, **named: Any) -> Claimed:
        claimed = await self._store.claim(*arguments, **named)
        if claimed.sessions and not self._away.claims:
            self._away.claims += 1
            self._away.changed()
            await self._away.gate.wait()
            if self._away.lost:
                raise DatabaseUnavailable("the connection broke after the claim")
        return claimed

    async def end(self, *arguments: Any, **named: Any) -> Sequence[Written]:
        if self._away.silent:
            raise DatabaseUnavailable("no answer")
        return await self._store.end(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Renewing:
    def __init__(self, away: Away, store: KeeperStore) -> None:
        self._away = away
        self._store = store

    async def renew(self, *arguments: Any, **named: Any) -> Renewal:
        if self._away.silent:
            raise DatabaseUnavailable("no answer")
        return await self._store.renew(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_claim_that_returns_behind_the_fence_does_not_end_the_process(ground: Ground) -> None:
    """Case 10: nothing runs, so nothing outlives the lease; it is given back with the first renewal."""
    held, away = Held(ground), Away(ground, lost=False)
    held.release.set()
    session_id = await ground.create()
    async with working(ground, held.agent(), opened=away, **QUICK) as worker:
        await ground.heard.until(lambda: away.claims)
        away.silent = True
        await ground.heard.wait_for(SelfFenced)
        away.gate.set()
        keeper = worker.daemon._incarnation.keeper  # type: ignore[union-attr]
        worker.clock.seconds += LEASE_SECONDS
        assert keeper._clock() > keeper.fence.exit_at
        keeper.watch_once()
        assert worker.left == []
        away.silent = False
        await ground.heard.wait_for(SessionEnded)
    assert [event.reason for event in ground.heard.of(SessionReleased)] == ["fenced"]
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("completed", 1, 0)


async def test_a_claim_that_returns_when_the_drain_has_begun_is_released_and_not_started(ground: Ground) -> None:
    """Case 10."""
    held, away = Held(ground), Away(ground, lost=False)
    session_id = await ground.create()
    async with working(ground, held.agent(), opened=away) as worker:
        await ground.heard.until(lambda: away.claims)
        worker.daemon.drain("test")
        away.gate.set()
        [released] = await ground.heard.wait_for(SessionReleased)
    assert released.session_id == session_id
    assert held.begun == []
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("queued", 1, 0)


async def test_a_claim_whose_answer_is_lost_in_a_drain_is_given_back_uncharged(ground: Ground) -> None:
    """Case 10, when the connection breaks behind the claim."""
    away = Away(ground, lost=True)
    session_id = await ground.create()
    async with working(ground, Held(ground).agent(), opened=away, **QUICK) as worker:
        await ground.heard.until(lambda: away.claims)
        worker.daemon.drain("test")
        away.gate.set()
        await ground.heard.wait_for(ClaimFailed)
    row = await ground.row(session_id)
    assert (row["status"], row["takeovers"], row["lease_owner"]) == ("queued", 0, None)
    assert [event.reason for event in ground.heard.of(SessionReleased)] == ["not run"]
