"""What the database says we own against what we run: the answers to renewals, and the notifications about sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from agentrt.core.errors import AgentrtError
from agentrt.core.session import FencingToken, Lease, Released, ReleaseReason, SessionId, WorkerId
from agentrt.ports import Grant, Renewal, SessionStore, UnstorableBatch
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding, Holdings

_MOST_LOOKED_AT = 20
"""Sessions that are looked at one by one; for more, one renewal tells of all."""


class Reconciler:
    """Keeps what runs and what is owned the same, in both directions; in the main loop.

    Args:
        store: Where to look at single sessions.
        committer: Gives sessions back; knows which endings are on their way.
        worker_id: The incarnation.
        holdings: What runs.
        pending_claim: The number of the claim that is on its way.
        renew: Ask for a renewal now.
    """

    def __init__(
        self,
        store: SessionStore,
        committer: Committer,
        *,
        worker_id: WorkerId,
        holdings: Holdings,
        pending_claim: Callable[[], int | None],
        renew: Callable[[], None],
    ) -> None:
        self._store = store
        self._committer = committer
        self._worker_id = worker_id
        self._holdings = holdings
        self._pending_claim = pending_claim
        self._renew = renew
        self._missing: set[Holding] = set()
        self._strays: dict[Lease, int | None] = {}
        self._stopped: dict[Lease, Holding] = {}
        self._asked: dict[SessionId, None] = {}
        self._work: dict[Lease, ReleaseReason] = {}
        self._returning: set[Lease] = set()
        self._wanted = asyncio.Event()
        self._renewals = 0
        self._renewed = asyncio.Event()

    def stopped(self, holding: Holding) -> None:
        """``holding`` has left its slot without an ending since the worker was fenced: give it back when the lease is
        proven again."""
        self._stopped[holding.lease] = holding

    def renewed(self, held: Mapping[SessionId, FencingToken], renewal: Renewal) -> None:
        """Compare what was held before the renewal was sent with what it grants."""
        granted = {grant.session_id: grant for grant in renewal.grants}
        for session_id, token in held.items():
            holding = self._holdings.get(session_id)
            if holding is None or holding.lost or holding.ended:  # ended: its task has not left the slot yet
                continue
            if holding.lease.fencing_token == token:
                self._compare(holding, granted.get(session_id))
        before, self._strays = self._strays, {}
        for grant in renewal.grants:
            if not self._runs(grant) and held.get(grant.session_id) != grant.fencing_token:
                self._consider_stray(grant, before)
        for lease in [lease for lease in self._stopped if lease.session_id not in granted]:
            del self._stopped[lease]  # somebody else's now
        for grant in renewal.grants:
            self._consider_stopped(Lease(grant.session_id, grant.fencing_token))
        self._renewals += 1
        self._renewed.set()

    async def nothing_astray(self) -> None:
        """Wait until the database grants nothing that we do not run: a claim without an answer may have been made."""
        enough = self._renewals + 2
        while self._renewals < enough or self._strays or self._returning:
            self._renewed.clear()
            self._renew()
            await self._renewed.wait()

    def _compare(self, holding: Holding, grant: Grant | None) -> None:
        if grant is not None and grant.fencing_token == holding.lease.fencing_token:
            self._missing.discard(holding)
            known = max(holding.committed_seq, holding.last_seq)
            if grant.last_seq > known and not self._committer.pending(holding):
                holding.ahead.set()
        elif self._committer.ending(holding) and holding not in self._missing:
            self._missing.add(holding)  # most likely it is our own ending that the database already knows
        else:
            self._missing.discard(holding)
            holding.lose("the database grants it no more: reaped, cancelled, or released by an operator")

    def _runs(self, grant: Grant) -> bool:
        holding = self._holdings.get(grant.session_id)
        return holding is not None and holding.lease.fencing_token == grant.fencing_token

    def _consider_stray(self, grant: Grant, before: Mapping[Lease, int | None]) -> None:
        """Granted twice in a row, and not by a claim that was on its way when it was first seen: nobody runs it."""
        lease = Lease(grant.session_id, grant.fencing_token)
        if lease in self._stopped:
            return
        if lease not in before:
            self._strays[lease] = self._pending_claim()
        elif before[lease] is not None and before[lease] == self._pending_claim():
            self._strays[lease] = before[lease]
        else:
            self._give_back(lease, ReleaseReason.NOT_RUN)

    def _consider_stopped(self, lease: Lease) -> None:
        holding = self._stopped.get(lease)
        if holding is not None and not self._committer.pending(holding):
            del self._stopped[lease]
            if not holding.ended:
                self._give_back(lease, ReleaseReason.FENCED)

    def _give_back(self, lease: Lease, reason: ReleaseReason) -> None:
        if lease not in self._returning:
            self._returning.add(lease)
            self._work[lease] = reason
            self._wanted.set()

    def control(self, session_ids: Sequence[SessionId] | None) -> None:
        """Something happened to these sessions, or to any: cancelled, steered, decided."""
        ours = [holding for holding in map(self._holdings.get, session_ids or ()) if holding is not None]
        for holding in ours:
            holding.ahead.set()
            self._asked[holding.session.id] = None
        if session_ids is None or len(self._asked) > _MOST_LOOKED_AT:
            self._asked.clear()
            self._renew()
        elif ours:
            self._wanted.set()

    async def run(self) -> None:
        """Look at sessions and give sessions back until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while self._work:
                    lease, reason = self._work.popitem()
                    tasks.create_task(self.give_back(lease, reason), name=f"give back {lease.session_id}")
                while self._asked:
                    session_id = next(iter(self._asked))
                    del self._asked[session_id]
                    await self._look_at(session_id)

    async def _look_at(self, session_id: SessionId) -> None:
        try:
            head = await self._store.head(session_id)
        except AgentrtError:
            return  # the next renewal tells
        holding = self._holdings.get(session_id)
        if holding is None or holding.ended or self._committer.ending(holding):
            return
        if head is None or head.fencing_token > holding.lease.fencing_token:
            status = "deleted" if head is None else f"{head.status} now"
            holding.lose(f"taken from this worker: {status}")

    async def give_back(self, lease: Lease, reason: ReleaseReason) -> None:
        """Release a session that we own and do not run, uncharged. What fails is seen again by the next renewals."""
        try:
            head = await self._store.head(lease.session_id)
            if head is None or head.fencing_token != lease.fencing_token or head.lease_owner != self._worker_id:
                return
            holding = Holding(head)
            try:
                await self._committer.end(holding, Released(reason))
            finally:
                self._committer.forget(holding)
        except (AgentrtError, UnstorableBatch):
            return
        finally:
            self._returning.discard(lease)
