"""Claiming for free slots, and which agents to claim for."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agentrt.core.events import AgentUnavailable, ClaimFailed, ClaimFinished
from agentrt.core.journal import ToolStarted
from agentrt.core.session import CallId, WorkerId
from agentrt.ports import Claimed, NewEntry, Offer
from agentrt.worker.claimer import Offering
from tests.worker.claims import Fleet, LosesClaims
from tests.worker.ownership import Ground, result

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


async def test_a_wake_up_while_a_claim_that_finds_nothing_is_on_its_way_leads_to_another_claim(ground: Ground) -> None:
    store = LosesClaims(ground.store, ground.heard.changed)
    store.gate.clear()
    fleet = Fleet(ground, store=store, poll_seconds=3_600)
    running = asyncio.create_task(fleet.claimer.run())
    await ground.heard.until(lambda: store.answers)
    late = await ground.create()
    fleet.claimer.look()
    store.gate.set()
    await ground.heard.until(lambda: fleet.holdings.get(late))
    fleet.claimer.stop()
    await running


async def test_slots_that_come_free_all_the_time_put_off_no_poll(ground: Ground) -> None:
    fleet = Fleet(ground, poll_seconds=0.05)

    async def free_slots() -> None:
        while True:
            fleet.claimer.wake()
            await asyncio.sleep(0)

    freeing = asyncio.create_task(free_slots())
    running = asyncio.create_task(fleet.claimer.run())
    await ground.heard.wait_for(ClaimFinished)
    unheard = await ground.create()
    await ground.heard.until(lambda: fleet.holdings.get(unheard))
    fleet.claimer.stop()
    await running
    freeing.cancel()


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


async def test_a_session_that_commits_a_step_is_fragile_no_longer_and_the_next_one_may_come(ground: Ground) -> None:
    for _ in range(2):
        fragile = await ground.create()
        await ground.connection.execute("update agentrt.sessions set attempt = 3 where id = $1", fragile)
    fleet = Fleet(ground)
    async with fleet:
        assert await fleet.claimer.claim_once(5) == 1
        [holding] = fleet.holdings
        calmed: list[bool] = []
        holding.calmed = lambda: calmed.append(fleet.holdings.fragile)
        await fleet.committer.append(holding, [NewEntry(data=ToolStarted(CallId("c"), "look"))])
        assert fleet.holdings.fragile, "a start is no progress"
        await fleet.committer.append(holding, [result()])
        assert calmed == [False]
        assert (await ground.row(holding.session.id))["attempt"] == 1
        assert await fleet.claimer.claim_once(5) == 1


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


class _HalfAnswered(LosesClaims):
    """A further look of each claim is not answered."""

    async def claim(self, worker_id: WorkerId, offer: Offer, *, limit: int, fragile_limit: int) -> Claimed:
        claimed = await super().claim(worker_id, offer, limit=limit, fragile_limit=fragile_limit)
        return replace(claimed, whole=False)


async def test_what_a_claim_that_was_answered_in_part_may_have_brought_is_looked_for_at_the_end(ground: Ground) -> None:
    """A worker that drains waits for it: else its next reap would charge a crash."""
    await ground.create()
    fleet = Fleet(ground, store=_HalfAnswered(ground.store, ground.heard.changed))
    assert not fleet.claimer.unanswered
    assert await fleet.claimer.claim_once(5) == 1
    assert fleet.claimer.unanswered


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
    trial, other = [replace(holding.session, agent="a") for holding in await ground.hold(2)]
    assert _offered(offering) == [(["a", "b"], False)]
    assert offering.offered() == ("a", "b")
    offering.withhold("a", "no key")
    offering.withhold("a", "no key")
    assert len(ground.heard.of(AgentUnavailable)) == 1
    assert _offered(offering) == [(["b"], False)]
    fleet.clock.now += 300
    assert _offered(offering) == [(["b"], False), (["a"], True)]
    assert offering.offered() == ("b",), "a trial is no offer that another worker may count on"
    offering.begun(trial)
    assert _offered(offering) == [(["b"], False)]
    offering.withhold("a", "still no key")
    offering.ended(trial)
    assert _offered(offering) == [(["b"], False)]
    fleet.clock.now += 300
    offering.begun(trial)
    offering.ended(other)
    assert _offered(offering) == [(["b"], False)], "one that was claimed before shows nothing"
    offering.ended(trial)
    assert _offered(offering) == [(["a", "b"], False)]
    assert offering.offered() == ("a", "b")


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
