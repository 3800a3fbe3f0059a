"""Claiming for free slots, and keeping what runs and what is owned the same."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import AgentUnavailable, ClaimFailed, ClaimFinished, SessionReleased
from agentrt.core.session import Lease, Released, Session, WorkerId
from agentrt.ports import Claimed, Offer, SessionStore
from agentrt.worker.claimer import Claimer, Offering
from agentrt.worker.committer import Committer
from agentrt.worker.holding import Holding, Holdings
from agentrt.worker.reconciler import Reconciler
from tests.worker.ownership import AGENT, OFFER, Clock, Ground, result, settings


class Fleet:
    """A claimer and a reconciler of the ground's worker, without tasks that drive them."""

    def __init__(self, ground: Ground, *, store: SessionStore | None = None, slots: int = 5, **agents: str) -> None:
        self.ground = ground
        self.clock = Clock()
        self.holdings = Holdings()
        self.open = True
        self.doubts = 0
        self.renewals_wanted = 0
        self.offering = Offering(("default",), agents or {AGENT: "v1"}, emit=ground.heard, clock=self.clock)
        self.claimer = Claimer(
            store or ground.store,
            ground.worker.id,
            offering=self.offering,
            holdings=self.holdings,
            settings=settings(ground.url, slots=slots),
            start=self.start,
            open=lambda: self.open,
            listening=lambda: True,
            doubted=self.doubt,
            emit=ground.heard,
        )
        self.committer = Committer(ground.store, ground.worker.id, emit=ground.heard)
        self.reconciler = Reconciler(
            ground.store,
            self.committer,
            worker_id=ground.worker.id,
            holdings=self.holdings,
            pending_claim=lambda: self.claimer.pending,
            renew=self.want_renewal,
            emit=ground.heard,
        )

    def start(self, session: Session) -> None:
        self.holdings.add(Holding(session))
        self.ground.heard.changed()

    def doubt(self) -> None:
        self.doubts += 1

    def want_renewal(self) -> None:
        self.renewals_wanted += 1

    async def renew(self) -> None:
        """One heartbeat."""
        held = self.holdings.snapshot()
        renewal = await self.ground.keeper.renew(self.ground.worker, None, draining=False)
        self.reconciler.renewed(held, renewal)

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(self.committer.run()), asyncio.create_task(self.reconciler.run())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class LosesClaims:
    """The real store; the claim commits, but its answer is lost, or is held up."""

    def __init__(self, store: SessionStore, changed: Any) -> None:
        self.store = store
        self.changed = changed
        self.lost = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.claims: list[tuple[Offer, int, int]] = []
        self.answers: list[Claimed] = []

    async def claim(self, worker_id: WorkerId, offer: Offer, *, limit: int, fragile_limit: int) -> Claimed:
        self.claims.append((offer, limit, fragile_limit))
        claimed = await self.store.claim(worker_id, offer, limit=limit, fragile_limit=fragile_limit)
        self.answers.append(claimed)
        self.changed()
        await self.gate.wait()
        if self.lost:
            self.lost -= 1
            raise DatabaseUnavailable("no answer")
        return claimed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


# --- claiming -------------------------------------------------------------------------------------------------------


async def test_free_slots_are_filled_with_one_statement_and_no_more_than_they_are(ground: Ground) -> None:
    for _ in range(8):
        await ground.create()
    fleet = Fleet(ground, slots=5)
    running = asyncio.create_task(fleet.claimer.run())
    await ground.heard.until(lambda: len(fleet.holdings) == 5)
    fleet.claimer.stop()
    await running
    assert [event.sessions for event in ground.heard.of(ClaimFinished)] == [5]
    assert await fleet.claimer.claim_next_session() == 1


async def test_a_wake_up_and_a_free_slot_lead_to_a_claim_and_a_full_worker_to_none(ground: Ground) -> None:
    fleet = Fleet(ground, slots=1)
    running = asyncio.create_task(fleet.claimer.run())
    await ground.heard.wait_for(ClaimFinished)
    first, second = await ground.create(), await ground.create()
    fleet.claimer.look()
    await ground.heard.until(lambda: len(fleet.holdings) == 1)
    fleet.claimer.look()
    claims = len(ground.heard.of(ClaimFinished))
    holding = fleet.holdings.get(first)
    assert holding is not None
    assert len(ground.heard.of(ClaimFinished)) == claims
    fleet.holdings.remove(holding)
    fleet.claimer.wake()
    await ground.heard.until(lambda: fleet.holdings.get(second))
    fleet.claimer.stop()
    await running


async def test_a_worker_holds_at_most_one_fragile_session(ground: Ground) -> None:
    for _ in range(3):
        fragile = await ground.create()
        await ground.connection.execute("update agentrt.sessions set attempt = 3 where id = $1", fragile)
    sound = await ground.create()
    fleet = Fleet(ground)
    assert await fleet.claimer.claim_once(5) == 2
    assert fleet.holdings.get(sound) is not None
    assert fleet.holdings.fragile
    assert await fleet.claimer.claim_once(3) == 0
    fragile_one = next(holding for holding in fleet.holdings if holding.fragile)
    fleet.holdings.remove(fragile_one)
    assert await fleet.claimer.claim_once(3) == 1


async def test_a_failed_claim_is_told_and_tried_again(ground: Ground) -> None:
    await ground.create()
    store = LosesClaims(ground.store, ground.heard.changed)
    store.lost = 1
    fleet = Fleet(ground, store=store)
    running = asyncio.create_task(fleet.claimer.run())
    await ground.heard.wait_for(ClaimFailed)
    await ground.create()
    await ground.heard.until(lambda: len(fleet.holdings) == 1)
    fleet.claimer.stop()
    await running


async def test_a_worker_that_was_declared_dead_does_not_take_silence_for_an_empty_queue(ground: Ground) -> None:
    """Case 71."""
    await ground.create()
    fleet = Fleet(ground)
    await ground.reap(ground.worker.id)
    assert await fleet.claimer.claim_once(5) == 0
    assert fleet.doubts == 1
    assert (await ground.connection.fetchval("select status from agentrt.sessions")) == "queued"


async def test_nothing_is_claimed_while_the_worker_is_shut(ground: Ground) -> None:
    await ground.create()
    fleet = Fleet(ground)
    fleet.open = False
    running = asyncio.create_task(fleet.claimer.run())
    await asyncio.sleep(0)
    assert not ground.heard.of(ClaimFinished)
    fleet.open = True
    fleet.claimer.wake()
    await ground.heard.until(lambda: len(fleet.holdings) == 1)
    fleet.claimer.stop()
    await running


# --- agents that are not offered for a while -------------------------------------------------------------------------


def _offered(offering: Offering) -> list[tuple[Sequence[str], bool]]:
    return [(sorted(offer.agents), trial) for offer, trial in offering.offers()]


async def test_an_agent_that_cannot_be_used_here_is_not_offered_until_one_session_has_been_tried(
    ground: Ground,
) -> None:
    fleet = Fleet(ground, a="1", b="2")
    offering = fleet.offering
    assert _offered(offering) == [(["a", "b"], False)]
    offering.withhold("a", "no key")
    offering.withhold("a", "no key")
    assert len(ground.heard.of(AgentUnavailable)) == 1
    assert _offered(offering) == [(["b"], False)]
    fleet.clock.now += 300
    assert _offered(offering) == [(["b"], False), (["a"], True)]
    offering.begun("a")
    assert _offered(offering) == [(["b"], False)]
    offering.withhold("a", "still no key")
    offering.ended("a")
    assert _offered(offering) == [(["b"], False)]
    fleet.clock.now += 300
    offering.begun("a")
    offering.ended("a")
    assert _offered(offering) == [(["a", "b"], False)]


async def test_a_trial_claims_one_session_beside_those_of_sound_agents(ground: Ground) -> None:
    for _ in range(3):
        await ground.create(agent="a")
        await ground.create(agent="b")
    fleet = Fleet(ground, a="1", b="2")
    fleet.offering.withhold("a", "no key")
    assert await fleet.claimer.claim_once(2) == 2
    assert {holding.session.agent for holding in fleet.holdings} == {"b"}
    fleet.clock.now += 300
    assert await fleet.claimer.claim_once(3) == 2
    assert sorted(holding.session.agent for holding in fleet.holdings) == ["a", "b", "b", "b"]


# --- what is owned and what runs --------------------------------------------------------------------------------------


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
        ending = asyncio.create_task(fleet.committer.end(holding, Released("drain")))
        await late.committed.wait()
        await fleet.renew()
        assert not holding.lost
        late.gate.set()
        await ending
    assert holding.ended


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
        await fleet.reconciler.give_back(Lease(holding.session.id, holding.lease.fencing_token), "owned, but not run")
    assert not ground.heard.of(SessionReleased)
