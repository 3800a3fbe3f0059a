"""Keeping what runs and what is owned the same, in both directions."""

import asyncio
from typing import Any

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import SessionReleased
from agentrt.core.session import Lease, Released, ReleaseReason
from agentrt.ports import SessionStore
from tests.worker.claims import Fleet, LosesClaims
from tests.worker.ownership import OFFER, Ground, result


async def test_a_claim_whose_answer_was_lost_is_given_back_after_two_renewals(ground: Ground) -> None:
    """Case 75."""
    session_id = await ground.create()
    store = LosesClaims(ground.store, ground.heard.changed)
    store.lost = 1
    async with Fleet(ground, store=store) as fleet:
        try:
            await fleet.claimer.claim_once(1)
        except DatabaseUnavailable:
            await fleet.renew()
        assert (await ground.row(session_id))["status"] == "running"
        await fleet.renew()
        await ground.heard.wait_for(SessionReleased)
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("queued", 1, 0)


async def test_a_claim_that_is_still_on_its_way_is_not_given_back_however_often_it_is_renewed(ground: Ground) -> None:
    """Case 75."""
    await ground.create()
    store = LosesClaims(ground.store, ground.heard.changed)
    store.gate.clear()
    async with Fleet(ground, store=store) as fleet:
        claim = asyncio.create_task(fleet.claimer.claim_once(1))
        await ground.heard.until(lambda: store.answers)
        for _ in range(3):
            await fleet.renew()
            assert not fleet.reconciler._returning
        store.gate.set()
        assert await claim == 1
        await fleet.renew()
        [holding] = fleet.holdings
        written = await fleet.committer.append(holding, [result()])
    assert written.status == "running"
    assert not ground.heard.of(SessionReleased)


async def test_a_stray_is_given_back_although_a_later_claim_is_on_its_way(ground: Ground) -> None:
    """Case 75."""
    stray = await ground.create()
    store = LosesClaims(ground.store, ground.heard.changed)
    await ground.store.claim(ground.worker.id, OFFER, limit=1, fragile_limit=1)
    async with Fleet(ground, store=store) as fleet:
        await fleet.renew()
        store.gate.clear()
        await ground.create()
        claim = asyncio.create_task(fleet.claimer.claim_once(1))
        await ground.heard.until(lambda: store.answers)
        await fleet.renew()
        [released] = await ground.heard.wait_for(SessionReleased)
        assert released.session_id == stray
        store.gate.set()
        assert await claim == 1


async def test_a_renewal_sent_before_a_claim_does_not_stop_the_fresh_session(ground: Ground) -> None:
    """Case 75."""
    await ground.create()
    async with Fleet(ground) as fleet:
        held = fleet.holdings.snapshot()
        renewal = await ground.keeper.renew(ground.worker, None, draining=False)
        await fleet.claimer.claim_once(1)
        fleet.reconciler.renewed(held, renewal)
        [holding] = fleet.holdings
    assert not holding.lost


async def test_a_session_that_is_no_longer_granted_is_stopped(ground: Ground) -> None:
    for _ in range(2):
        await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(2)
        cancelled, kept = fleet.holdings
        await ground.connection.execute("select agentrt.cancel_session($1)", cancelled.session.id)
        await fleet.renew()
    assert (cancelled.lost, kept.lost) == (True, False)


async def test_our_own_ending_that_the_renewal_sees_first_is_not_taken_for_a_loss(ground: Ground) -> None:
    class Late:
        def __init__(self, store: SessionStore) -> None:
            self.store, self.gate, self.committed = store, asyncio.Event(), asyncio.Event()

        async def end(self, *arguments: Any, **named: Any) -> Any:
            answers = await self.store.end(*arguments, **named)
            self.committed.set()
            await self.gate.wait()
            return answers

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

    await ground.create()
    fleet = Fleet(ground)
    late = Late(ground.store)
    fleet.committer._store = late
    async with fleet:
        await fleet.claimer.claim_once(1)
        [holding] = fleet.holdings
        ending = asyncio.create_task(fleet.committer.end(holding, Released(ReleaseReason.DRAIN)))
        await late.committed.wait()
        await fleet.renew()
        assert not holding.lost
        late.gate.set()
        await ending
    assert holding.ended


async def test_a_session_that_ended_and_is_still_in_its_slot_is_not_taken_for_a_loss(ground: Ground) -> None:
    await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(1)
        [holding] = fleet.holdings
        await fleet.committer.end(holding, Released(ReleaseReason.DRAIN))
        await fleet.renew()
        fleet.reconciler.control([holding.session.id])
        await asyncio.sleep(0)
        await fleet.renew()
    assert (holding.ended, holding.lost) == (True, False)


async def test_entries_that_clients_wrote_are_seen_with_the_next_renewal(ground: Ground) -> None:
    await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(1)
        [holding] = fleet.holdings
        await fleet.renew()
        assert not holding.ahead.is_set()
        await ground.connection.execute("select agentrt.send_message($1, 'more')", holding.session.id)
        await fleet.renew()
        assert holding.ahead.is_set()


async def test_a_notification_about_a_session_stops_it_when_it_was_cancelled_and_wakes_it_otherwise(
    ground: Ground,
) -> None:
    """Case 32."""
    for _ in range(2):
        await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(2)
        cancelled, steered = fleet.holdings
        await ground.connection.execute("select agentrt.cancel_session($1)", cancelled.session.id)
        waits = asyncio.create_task(asyncio.Event().wait())
        cancelled.task = waits  # type: ignore[assignment]
        fleet.reconciler.control([cancelled.session.id, steered.session.id])
        await asyncio.wait({waits})
        assert (cancelled.lost, steered.lost) == (True, False)
        assert steered.ahead.is_set()
        assert fleet.renewals_wanted == 0
        fleet.reconciler.control(None)
        assert fleet.renewals_wanted == 1


async def test_what_a_fence_stopped_is_given_back_uncharged_with_the_first_renewal(ground: Ground) -> None:
    """Case 25."""
    session_id = await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(1)
        [holding] = fleet.holdings
        await fleet.committer.append(holding, [result()])
        holding.lose("no renewal", fenced=True)
        fleet.holdings.remove(holding)
        fleet.reconciler.stopped(holding)
        await fleet.renew()
        [released] = await ground.heard.wait_for(SessionReleased)
    assert released.reason == "fenced"
    row = await ground.row(session_id)
    assert (row["status"], row["attempt"], row["takeovers"]) == ("queued", 1, 0)


async def test_nothing_is_given_back_that_somebody_else_owns_by_now(ground: Ground) -> None:
    await ground.create()
    async with Fleet(ground) as fleet:
        await fleet.claimer.claim_once(1)
        [holding] = fleet.holdings
        await ground.connection.execute("select agentrt.cancel_session($1)", holding.session.id)
        await fleet.reconciler.give_back(Lease(holding.session.id, holding.lease.fencing_token), ReleaseReason.NOT_RUN)
    assert not ground.heard.of(SessionReleased)
