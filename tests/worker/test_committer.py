"""The group commit: one statement for all, repeated when its outcome is unknown, and true to its callers."""

import asyncio

import asyncpg
import pytest

from agentrt.core.errors import ConfigurationError, LeaseLost, SchemaMismatch
from agentrt.core.events import CommitFailed, CommitFinished
from agentrt.core.journal import AssistantMessage
from agentrt.core.session import Completed, Released, ReleaseReason, Seq, Status
from agentrt.ports import Answer, NewEntry, UnstorableBatch, Written
from tests.worker.commits import committing, within
from tests.worker.ownership import OFFER, Ground, result


async def test_a_write_alone_is_sent_at_once_and_those_that_come_meanwhile_go_together(ground: Ground) -> None:
    holdings = await ground.hold(5)
    async with committing(ground) as (committer, store):
        store.gate.clear()
        first = asyncio.create_task(committer.append(holdings[0], [result("0")]))
        await store.arrived.wait()
        rest = [asyncio.create_task(committer.append(holding, [result("n")])) for holding in holdings]
        await asyncio.sleep(0)
        store.gate.set()
        written = await asyncio.gather(first, *rest)
    assert [len(writes) for _, writes, _ in store.calls] == [1, 5]
    assert [one.answer for one in written] == [Answer.WRITTEN] * 6
    assert [one.last_seq for one in written] == [4, 5, 4, 4, 4, 4]
    assert [holding.owner_writes for holding in holdings] == [2, 1, 1, 1, 1]
    assert [event.sessions for event in ground.heard.of(CommitFinished)] == [1, 5]


async def test_writes_of_one_session_are_committed_in_the_order_in_which_they_were_asked_for(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.gate.clear()
        asked = [asyncio.create_task(committer.append(holding, [result(str(n), call_id=str(n))])) for n in range(4)]
        asked.append(asyncio.create_task(committer.end(holding, Released(ReleaseReason.DRAIN))))
        await store.arrived.wait()
        store.gate.set()
        written = await asyncio.gather(*asked)
    assert await ground.results(holding.session.id) == ["0", "1", "2", "3"]
    assert [one.last_seq for one in written] == [4, 5, 6, 7, 8]
    assert (await ground.row(holding.session.id))["status"] == "queued"
    assert holding.ended


async def test_a_write_holds_at_most_one_answer_of_a_model(ground: Ground) -> None:
    [holding] = await ground.hold()
    answer = NewEntry(data=AssistantMessage(model="m"))
    async with committing(ground) as (committer, store):
        store.gate.clear()
        asked = [asyncio.create_task(committer.append(holding, [answer])) for _ in range(3)]
        await store.arrived.wait()
        store.gate.set()
        await asyncio.gather(*asked)
    assert [len(write.entries) for _, [write], _ in store.calls] == [1, 1, 1]
    assert (await ground.row(holding.session.id))["turns"] == 3


async def test_three_lost_sessions_of_fifty_are_told_and_forty_seven_are_written(ground: Ground) -> None:
    """Case 17."""
    holdings = await ground.hold(50)
    for holding in holdings[:3]:
        await ground.connection.execute("select agentrt.cancel_session($1)", holding.session.id)
    async with committing(ground) as (committer, store):
        store.gate.clear()
        asked = [asyncio.create_task(committer.append(holding, [result()])) for holding in holdings]
        await store.arrived.wait()
        store.gate.set()
        written = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in written] == [LeaseLost] * 3 + [Written] * 47
    assert [holding.lost for holding in holdings] == [True] * 3 + [False] * 47
    assert len(store.calls) == 1
    assert [event.entries for event in ground.heard.of(CommitFinished)] == [47], "what the journal has got"
    for holding in holdings[:3]:
        assert await ground.results(holding.session.id) == []


@pytest.mark.parametrize("where", ["before", "after"])
async def test_an_append_with_an_unknown_outcome_is_repeated_byte_for_byte_and_written_once(
    ground: Ground, where: str
) -> None:
    """Case 31."""
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        setattr(store, where, 3)
        store.gate.clear()
        first = asyncio.create_task(committer.append(holding, [result("first", call_id="1")]))
        await store.arrived.wait()
        second = asyncio.create_task(committer.append(holding, [result("second", call_id="2")]))
        store.gate.set()
        written = await asyncio.gather(first, second)
    repeats = [writes for _, writes, _ in store.calls[:4]]
    assert repeats == [repeats[0]] * 4, "nothing may be merged into a write whose outcome is unknown"
    assert [one.last_seq for one in written] == [4, 5]
    assert await ground.results(holding.session.id) == ["first", "second"]
    assert holding.owner_writes == 2
    assert len(ground.heard.of(CommitFailed)) == 3


@pytest.mark.parametrize("where", ["before", "after"])
async def test_an_ending_with_an_unknown_outcome_is_written_once_and_reported_as_success(
    ground: Ground, where: str
) -> None:
    """Case 31."""
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        setattr(store, where, 2)
        written = await committer.end(holding, Completed({"text": "done"}), planned_from=holding.session.last_seq)
    assert written.answer is (Answer.ALREADY if where == "after" else Answer.WRITTEN)
    assert written.status is Status.COMPLETED
    types = [row["type"] for row in await ground.journal(holding.session.id)]
    assert types.count("session_completed") == 1


async def test_an_ending_whose_answer_was_lost_is_found_although_another_run_has_begun(ground: Ground) -> None:
    """Case 31."""
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.after = 1
        ending = asyncio.create_task(
            committer.end(holding, Completed({"text": "done"}), planned_from=holding.session.last_seq)
        )
        await ground.heard.wait_for(CommitFailed)
        await ground.connection.execute("select agentrt.send_message($1, 'again')", holding.session.id)
        claimed = await ground.store.claim(ground.worker.id, OFFER, limit=1, fragile_limit=1)
        assert claimed.sessions
        written = await ending
    assert written.answer is Answer.ALREADY
    assert not holding.lost


async def test_an_append_of_a_session_that_was_lost_meanwhile_is_never_reported_as_success(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.before = 1
        append = asyncio.create_task(committer.append(holding, [result()]))
        await ground.heard.wait_for(CommitFailed)
        await ground.connection.execute("select agentrt.cancel_session($1)", holding.session.id)
        with pytest.raises(LeaseLost):
            await append
        with pytest.raises(LeaseLost):
            await committer.append(holding, [result()])
    assert await ground.results(holding.session.id) == []


async def test_a_lasting_failure_is_reported_to_nobody_as_success(ground: Ground) -> None:
    """Case 31."""
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.before = 1_000_000
        append = asyncio.create_task(committer.append(holding, [result()]))
        await ground.heard.wait_for(CommitFailed, 3)
        assert not append.done()
        holding.lose("given up")
        with pytest.raises(LeaseLost, match="given up"):
            await append


async def test_a_cancelled_caller_cancels_neither_the_write_nor_its_count(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.gate.clear()
        append = asyncio.create_task(committer.append(holding, [result("kept")]))
        await store.arrived.wait()
        append.cancel()
        await asyncio.wait({append})
        assert committer.pending(holding)
        store.gate.set()
        await committer.settled(holding)
        assert holding.owner_writes == 1
        assert holding.committed_seq == 4
        written = await committer.append(holding, [result("next")])
    assert written.last_seq == 5
    assert await ground.results(holding.session.id) == ["kept", "next"]


async def test_a_fenced_session_writes_what_was_handed_over_and_takes_nothing_new(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.before = 2
        text = "finished before the fence"
        append = asyncio.create_task(committer.append(holding, [result(text)]))
        await store.arrived.wait()
        holding.lose("no renewal", fenced=True)
        append.cancel()
        await asyncio.wait({append})
        with pytest.raises(LeaseLost):
            await committer.append(holding, [result("later")])
        await committer.settled(holding)
    assert await ground.results(holding.session.id) == [text]


async def test_a_row_that_a_client_holds_up_keeps_nobody_waiting_and_goes_alone_on_the_side(ground: Ground) -> None:
    """Case 87."""
    held, *others = await ground.hold(5)
    client = await asyncpg.connect(ground.url)
    open_transaction = client.transaction()
    await open_transaction.start()
    await client.execute("select agentrt.send_message($1, 'wait')", held.session.id)
    async with (
        within(ground, lock_seconds=60, statement_seconds=60) as patient,
        committing(patient) as (
            committer,
            store,
        ),
    ):
        waits = [asyncio.create_task(committer.append(held, [result(str(n), call_id=str(n))])) for n in range(2)]
        await asyncio.gather(*[committer.append(other, [result()]) for other in others])
        await ground.heard.until(lambda: store.calls[-1][2])
        await asyncio.gather(*[committer.append(other, [result("more", call_id="2")]) for other in others])
        assert not waits[0].done()
        await open_transaction.commit()
        written = await asyncio.gather(*waits)
    await client.close()
    assert [len(writes) for _, writes, side in store.calls if side] == [1]
    assert sum(held.lease in [write.lease for write in writes] for _, writes, side in store.calls if not side) == 3
    assert [one.last_seq for one in written] == [5, 6]
    assert await ground.results(held.session.id) == ["0", "1"]


async def test_a_row_that_is_free_is_written_while_others_stay_locked_for_as_long_as_their_client_likes(
    ground: Ground,
) -> None:
    """Case 72: each of them takes turns in waiting alone, and nobody waits for all of these turns."""
    *locked, brief = await ground.hold(6)
    client, other = await asyncpg.connect(ground.url), await asyncpg.connect(ground.url)
    long, short = client.transaction(), other.transaction()
    await long.start()
    for holding in locked:
        await client.execute("select agentrt.send_message($1, 'wait')", holding.session.id)
    async with within(ground, lock_seconds=1) as hasty, committing(hasty) as (committer, store):

        def alone() -> list[object]:
            return [write.lease.session_id for _, [write, *_], side in store.calls if side]

        waits = [asyncio.create_task(committer.append(holding, [result()])) for holding in locked]
        await ground.heard.until(lambda: len(set(alone())) == len(locked))  # each had a turn
        await short.start()
        await other.execute("select agentrt.send_message($1, 'wait')", brief.session.id)
        mine = asyncio.create_task(committer.append(brief, [result()]))
        await ground.heard.until(lambda: brief.session.id in alone())
        ours = [n for n, (_, writes, _) in enumerate(store.calls) if brief.lease in [write.lease for write in writes]]
        first = next(n for n in ours if store.calls[n][2])
        turns = sum(side for _, _, side in store.calls[ours[2] : first])  # others', since its third answer "busy"
        assert turns <= 1, "it comes before those that had their turns"
        await short.commit()
        assert (await mine).answer is Answer.WRITTEN
        assert not any(wait.done() for wait in waits)
        await long.rollback()
        assert [(await wait).answer for wait in waits] == [Answer.WRITTEN] * len(locked)
    await client.close()
    await other.close()


async def test_a_write_with_an_unknown_outcome_stays_as_it_is_while_its_row_is_locked(ground: Ground) -> None:
    """Case 31."""
    [holding] = await ground.hold()
    client = await asyncpg.connect(ground.url)
    async with committing(ground) as (committer, store):
        store.after = 1
        first = asyncio.create_task(committer.append(holding, [result("first", call_id="1")]))
        await ground.heard.wait_for(CommitFailed)
        open_transaction = client.transaction()
        await open_transaction.start()
        await client.execute("select agentrt.send_message($1, 'wait')", holding.session.id)
        second = asyncio.create_task(committer.append(holding, [result("second", call_id="2")]))
        await ground.heard.until(lambda: store.calls[-1][2])
        await open_transaction.commit()
        written = await asyncio.gather(first, second)
    await client.close()
    assert [one.answer for one in written] == [Answer.ALREADY, Answer.WRITTEN]
    assert await ground.results(holding.session.id) == ["first", "second"]


async def test_only_the_session_whose_entry_cannot_be_stored_is_told(ground: Ground) -> None:
    """Case 82."""
    holdings = await ground.hold(4)
    bad = result("a second result", dedup_key="w:result:c")  # refused by the unique index, so by the whole statement
    async with committing(ground) as (committer, store):
        await committer.append(holdings[0], [result("a result", dedup_key="w:result:c")])
        store.arrived.clear()
        store.gate.clear()
        asked = [asyncio.create_task(committer.append(holding, [result()])) for holding in holdings[1:]]
        mixed = [
            asyncio.create_task(committer.append(holdings[0], [entry]))
            for entry in (result("before"), bad, result("after", call_id="2"))
        ]
        await store.arrived.wait()
        store.gate.set()
        written = await asyncio.gather(*asked)
        before, told, after = await asyncio.gather(*mixed, return_exceptions=True)
    assert [one.answer for one in written] == [Answer.WRITTEN] * 3
    assert isinstance(before, Written)
    assert isinstance(told, UnstorableBatch)
    assert isinstance(after, Written)
    assert await ground.results(holdings[0].session.id) == ["a result", "before", "after"]


@pytest.mark.parametrize("kind", [ConfigurationError, SchemaMismatch])
async def test_a_refusal_that_says_nothing_about_the_write_is_waited_out_and_nothing_is_dropped(
    ground: Ground, kind: type[Exception]
) -> None:
    """Case 25: a standby, a login that is refused, a right that was taken away."""
    append, end = await ground.hold(2)
    async with committing(ground) as (committer, store):
        store.kind, store.before = kind, 4
        written = await asyncio.gather(
            committer.append(append, [result("finished")]), committer.end(end, Released(ReleaseReason.DRAIN))
        )
    assert [one.answer for one in written] == [Answer.WRITTEN] * 2
    assert await ground.results(append.session.id) == ["finished"]


async def test_a_stale_ending_writes_nothing_and_counts_nothing(ground: Ground) -> None:
    [holding] = await ground.hold()
    planned_from = holding.session.last_seq
    await ground.connection.execute("select agentrt.send_message($1, 'one more thing')", holding.session.id)
    async with committing(ground) as (committer, _):
        written = await committer.end(holding, Completed({"text": "done"}), planned_from=planned_from)
        assert written.answer is Answer.STALE
        assert holding.owner_writes == 0
        assert holding.committed_seq == planned_from + 1
        again = await committer.end(holding, Completed({"text": "done"}), planned_from=Seq(planned_from + 1))
    assert again.answer is Answer.WRITTEN


async def test_what_is_asked_when_the_worker_has_stopped_is_refused(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.gate.clear()
        append = asyncio.create_task(committer.append(holding, [result()]))
        await store.arrived.wait()
    with pytest.raises(LeaseLost):
        await append
    with pytest.raises(LeaseLost):
        await committer.append(holding, [result()])
