"""The keeper, one method at a time: beats, fences and reaps against the real database, on a clock that a test moves."""

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

from agentrt.core.events import HeartbeatFailed, SelfFenced, WarningRaised, WorkerAborted, WorkerReaped, WorkerStalled
from agentrt.ports import Renewal
from agentrt.worker.keeper import EXIT_CODE
from agentrt.worker.watchdog import MainLoop
from tests.postgres.owner import NO_LOCK, may_judge
from tests.postgres.stage import HANGS_AFTER_SECONDS, until
from tests.worker.keepers import Kept, kept
from tests.worker.ownership import Clock, Ground


async def test_a_renewal_returns_what_is_owned_beside_what_was_held_before_it_was_sent(ground: Ground) -> None:
    """Case 11."""
    async with kept(ground) as one:
        assert await one.beat()
        holding = await one.hold()
        assert await one.beat()
    (_, none), (held, renewal) = one.renewals
    assert none.grants == ()
    [grant] = renewal.grants
    assert held == {grant.session_id: grant.fencing_token} == {holding.session.id: holding.lease.fencing_token}


async def test_a_lease_that_ran_out_unseen_is_renewed(ground: Ground) -> None:
    """Case 12."""
    async with kept(ground) as one:
        await one.beat()
        await ground.silence(one.id, seconds=100)
        assert await one.beat()
        assert "dead" not in one.told


async def test_a_worker_that_was_declared_dead_stops_everything_and_renews_no_more(ground: Ground) -> None:
    """Case 13."""
    async with kept(ground) as one:
        await one.beat()
        await one.hold()
        await ground.reap(one.id)
        assert not await one.beat()
        assert one.told == ["fenced", "dead"]
        assert not await one.beat()
        assert len(one.renewals) == 1


async def test_a_worker_whose_row_was_pruned_stops_everything(ground: Ground) -> None:
    async with kept(ground) as one:
        await one.beat()
        await ground.connection.execute("delete from agentrt.workers where id = $1", one.id)
        assert not await one.beat()
    assert one.told == ["fenced", "dead"]


async def test_without_renewals_everything_stops_at_the_lease_less_the_time_to_stop(ground: Ground) -> None:
    """Case 25."""
    async with kept(ground) as one:
        await one.beat()
        one.clock.now += 11.9
        await one.watch()
        assert one.told == []
        one.clock.now += 0.2
        await one.watch()
        assert one.told == ["fenced"]
        [fenced] = ground.heard.of(SelfFenced)
        assert fenced.worker_id == one.id
        await one.watch()
        assert one.told == ["fenced"]
        assert await one.beat()
        assert one.told == ["fenced", "unfenced"], "renewed under the same id, since nobody declared it dead"


async def test_the_fence_counts_from_when_the_renewal_was_sent_not_from_its_answer(ground: Ground) -> None:
    class Slow:
        def __init__(self, store: Any, clock: Clock) -> None:
            self.store, self.clock = store, clock

        async def renew(self, *arguments: Any, **named: Any) -> Renewal:
            renewal: Renewal = await self.store.renew(*arguments, **named)
            self.clock.now += 13  # on its way for longer than the lease allows
            return renewal

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

    async with kept(ground) as one:
        await one.beat()
        store = one.keeper._store
        assert store is not None
        one.keeper._store = Slow(store, one.clock)
        assert await one.beat()
        await one.watch()
        assert one.told == ["fenced"]


async def test_the_keepers_connection_breaks_and_a_new_key_is_locked_and_told(ground: Ground) -> None:
    """Case 78."""
    async with kept(ground) as one:
        await one.beat()
        key = await _key(ground, one)
        assert key is not None
        assert await ground.terminate("keeper") >= 1
        assert not await one.beat()
        assert len(ground.heard.of(HeartbeatFailed)) == 1
        one.clock.now += 2.9
        await one.watch()
        assert one.told == []
        one.clock.now += 0.2
        await one.watch()
        assert one.told == ["fenced"], "others may see the lock free: nothing is begun until it is locked and renewed"
        assert await one.beat()
        assert one.told == ["fenced", "unfenced"]
        assert await _key(ground, one) not in (None, key)
        assert await ground.connection.fetchval(
            "select count(*) from pg_locks "
            "where locktype = 'advisory' and (classid::bigint << 32) + objid::bigint = $1",
            await _key(ground, one),
        )


async def test_a_break_that_is_mended_within_two_heartbeats_costs_nothing(ground: Ground) -> None:
    """Case 78."""
    async with kept(ground) as one:
        await one.beat()
        await ground.terminate("keeper")
        assert not await one.beat()
        one.clock.now += 2
        assert await one.beat()
        one.clock.now += 2
        await one.watch()
    assert one.told == []


class Lockless:
    """The real stores behind a URL through which advisory locks do not work."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    async def keeper(self) -> Any:
        store = await self.opened.keeper()

        async def no_lock() -> None:
            return None

        store.lock_liveness = no_lock
        return store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)


async def test_without_advisory_locks_only_the_lease_counts_and_it_is_said_once(ground: Ground) -> None:
    """Case 14."""
    async with kept(ground) as one:
        one.keeper._stores = Lockless(one.keeper._stores)
        await one.beat()
        assert await _key(ground, one) is None
        await ground.terminate("keeper")
        assert not await one.beat()
        one.clock.now += 11.9
        await one.watch()
        assert one.told == []
        assert await one.beat()
    [warning] = ground.heard.of(WarningRaised)
    assert "AGENTRT_DIRECT_DATABASE_URL" in warning.message


async def test_a_lock_that_is_found_to_be_another_connections_is_given_up_and_that_is_said_once(ground: Ground) -> None:
    """As behind a transaction pooler whose connections were busy when the lock was proven."""
    async with kept(ground) as one:
        await one.beat()
        locked = [one.keeper.fence.locked]
        store: Any = one.keeper._store
        store._server = -1
        await one.beat()
        await one.beat()
        assert await _key(ground, one) is None
        assert [*locked, one.keeper.fence.locked] == [True, False]
    [warning] = ground.heard.of(WarningRaised)
    assert "advisory locks do not work" in warning.message


async def test_what_outlives_the_lease_ends_the_process(ground: Ground) -> None:
    """Case 79."""
    async with kept(ground) as one:
        await one.beat()
        holding = await one.hold()
        one.clock.now += 14.9
        await one.watch()
        assert one.left == []
        one.clock.now += 0.2
        await one.watch()
        assert one.left == [EXIT_CODE]
        one.left.clear()
        one.holdings.remove(holding)
        one.threads = 1
        await one.watch()
        assert one.left == [EXIT_CODE], "a tool thread that never returns"
    told = [(event.worker_id, event.reason, event.exit_code) for event in ground.heard.of(WorkerAborted)]
    assert told == [
        (one.id, "1 sessions and 0 tool threads outlive the lease", EXIT_CODE),
        (one.id, "0 sessions and 1 tool threads outlive the lease", EXIT_CODE),
    ]


async def test_a_worker_that_has_stopped_everything_stays_and_waits_for_the_database(ground: Ground) -> None:
    """Case 25."""
    async with kept(ground) as one:
        await one.beat()
        one.clock.now += 1000
        await one.watch()
    assert one.told == ["fenced"]
    assert one.left == []


async def test_a_main_loop_that_makes_no_progress_stops_the_renewals_and_its_stack_is_told(ground: Ground) -> None:
    """Case 79."""
    async with kept(ground) as one:
        await one.beat()
        for _ in range(30):  # ticks of a second, and the loop does not get to answer in between
            one.keeper.watch_once()
            one.clock.now += 1
        assert not one.stalled()
        one.keeper.watch_once()
        assert one.stalled()
        [stalled] = ground.heard.of(WorkerStalled)
        assert "test_a_main_loop_that_makes_no_progress" in stalled.stack
        assert not await one.keeper.beat_once()
        await asyncio.sleep(0)
        await one.watch()
        assert not one.stalled()
        assert await one.beat()


async def test_a_process_that_was_stopped_as_a_whole_has_not_stalled(ground: Ground) -> None:
    async with kept(ground) as one:
        one.keeper.watch_once()
        one.clock.now += 100
        one.keeper.watch_once()
        assert not one.stalled()


async def test_a_reaper_declares_a_silent_worker_dead_and_frees_its_sessions(ground: Ground) -> None:
    """Case 14."""
    [orphan] = await ground.hold()
    await ground.keeper.close()  # as if killed: its lock is free
    await until(ground.connection, NO_LOCK)
    await ground.silence(ground.worker.id, seconds=4.5)
    async with kept(ground) as one:
        await one.beat()
        await one.keeper.reap_once()
        assert not ground.heard.of(WorkerReaped), "a reaper judges only after two gapless heartbeats of its own"
        await may_judge(ground.connection, one.id)
        await one.keeper.reap_once()
    [reaped] = ground.heard.of(WorkerReaped)
    assert (reaped.worker_id, reaped.reaped, reaped.name) == (one.id, ground.worker.id, "test")
    row = await ground.row(orphan.session.id)
    assert (row["status"], row["attempt"], row["fencing_token"]) == ("queued", 2, 2)


async def test_after_an_outage_of_three_leases_nobody_reaps_a_fleet_that_comes_back(ground: Ground) -> None:
    """Case 76."""
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(kept(ground)) for _ in range(5)]
        for one in fleet:
            await one.beat()
            await one.hold()
            await ground.connection.execute(
                "update agentrt.workers set renewing_since = renewing_since - interval '1 h' where id = $1", one.id
            )
        for one in fleet:
            await ground.silence(one.id, seconds=45)
            await ground.terminate("keeper")
            assert not await one.beat()
        for one in fleet:  # each comes back, and looks for the dead before the next one does
            assert await one.beat()
            await one.keeper.reap_once()
    assert not ground.heard.of(WorkerReaped)
    assert await ground.connection.fetchval("select count(*) from agentrt.sessions where attempt = 1") == 5


async def test_the_reapers_connection_is_made_again(ground: Ground) -> None:
    async with kept(ground) as one:
        await one.beat()
        await one.keeper.reap_once()
        await ground.terminate("reaper")
        await one.keeper.reap_once()
        await one.keeper.reap_once()
        assert one.keeper._reaper is not None


async def test_draining_is_told_with_the_next_renewal_and_the_end_with_the_last(ground: Ground) -> None:
    async with kept(ground) as one:
        await one.beat()
        one.keeper.drain()
        await one.beat()
        assert await ground.state(one.id) == "draining"
    assert await ground.state(one.id) == "stopped"


# --- with its thread ------------------------------------------------------------------------------------------------


async def test_the_thread_renews_while_the_main_loop_is_blocked(ground: Ground) -> None:
    """Case 79."""
    one = Kept(ground, heartbeat_seconds=0.05, lease_seconds=3, stop_seconds=0.5)
    one.keeper._clock = time.monotonic
    one.keeper._main = MainLoop(asyncio.get_running_loop(), thread_id=threading.get_ident(), clock=time.monotonic)
    one.keeper.start()
    await ground.heard.until(lambda: "registered" in one.told)
    before = one.keeper.fence.renewed_at
    while one.keeper.fence.renewed_at == before:  # the main loop is blocked by this very line
        pass
    await one.keeper.stop()
    assert not one.keeper.alive
    assert await ground.state(one.id) == "stopped"
    assert one.left == []


async def test_a_keeper_that_cannot_register_tells_why_and_ends(ground: Ground) -> None:
    one = Kept(ground)
    await ground.connection.execute("drop table agentrt.workers cascade")
    one.keeper.start()
    await ground.heard.until(lambda: one.told)
    await one.keeper.stop()
    [failed] = one.told
    assert "agentrt migrate" in failed
    assert one.left == []


async def _key(ground: Ground, one: Kept) -> int | None:
    key: int | None = await ground.connection.fetchval("select liveness_key from agentrt.workers where id = $1", one.id)
    return key


async def test_a_keeper_that_is_told_to_stop_before_its_loop_runs_stops(ground: Ground) -> None:
    """Nobody would tell it again, and it would renew for ever the lease of a worker that does nothing."""
    one = Kept(ground)
    one.keeper._call(one.keeper._stop_wanted.set)  # as ``stop`` does, before the thread has got anywhere
    one.keeper.start()
    await asyncio.to_thread(one.keeper._thread.join, HANGS_AFTER_SECONDS)
    stopped = not one.keeper.alive
    await one.keeper.stop()
    assert stopped
    assert await ground.state(one.id) == "stopped"
