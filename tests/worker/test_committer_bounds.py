"""How much goes into one group commit: so many bytes, less after a failure, and nobody waits for what is too slow."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from agentrt.core.content import Text
from agentrt.core.errors import DatabaseUnavailable
from agentrt.core.events import CommitFailed, CommitFinished
from agentrt.core.journal import AssistantMessage
from agentrt.ports import Answer, NewEntry, UnstorableBatch, Write
from agentrt.worker.commitline import CROWD, MOST_BYTES, MOST_SESSIONS, Asked, Bounds, Line, Sending
from agentrt.worker.holding import Holding
from tests.worker.commits import committing, within
from tests.worker.ownership import Ground, result
from tests.worker.scenes import Flawed

LIMIT_SECONDS = 0.6

SLOW = """
create table public.slow (session_id uuid, seconds double precision);
create function public.be_slow() returns trigger language plpgsql as $$
begin
  perform pg_sleep((select max(slow.seconds) from public.slow where session_id is null or session_id = new.session_id));
  return new;
end $$;
create trigger slow before insert on agentrt.journal for each row execute function public.be_slow();
"""


TOO_MUCH = """
create function public.refuse_a_crowd() returns trigger language plpgsql as $$
begin
  if (select count(*) from inserted) > 12 then
    raise exception 'canceling statement due to statement timeout' using errcode = 'query_canceled';
  end if;
  return null;
end $$;
create trigger crowd after insert on agentrt.journal referencing new table as inserted
  for each statement execute function public.refuse_a_crowd();
"""


@pytest.fixture
async def impatient(ground: Ground) -> AsyncIterator[Ground]:
    """A worker's ground where a statement may take ``LIMIT_SECONDS``, and where the table ``slow`` makes it slow."""
    await ground.connection.execute(SLOW)
    async with within(ground, statement_seconds=LIMIT_SECONDS) as hasty:
        yield hasty


def answer(characters: int) -> NewEntry:
    return NewEntry(data=AssistantMessage(content=(Text("x" * characters),), model="m"))


async def test_a_commit_is_bounded_in_bytes_and_one_session_goes_however_large_it_is(ground: Ground) -> None:
    holdings = await ground.hold(7)
    sizes = [MOST_BYTES // 3] * 5 + [MOST_BYTES * 3 // 2]
    async with committing(ground) as (committer, store):
        store.gate.clear()
        first = asyncio.create_task(committer.append(holdings[0], [result()]))
        await store.arrived.wait()
        asked = [
            asyncio.create_task(committer.append(holding, [answer(size)]))
            for holding, size in zip(holdings[1:], sizes, strict=True)
        ]
        await asyncio.sleep(0)
        store.gate.set()
        written = await asyncio.gather(first, *asked)
    assert [len(writes) for _, writes, _ in store.calls] == [1, 2, 2, 1, 1]
    assert [one.answer for one in written] == [Answer.WRITTEN] * 7


@pytest.mark.parametrize(("sessions", "commits"), [(CROWD, [CROWD]), (2 * CROWD, [CROWD, CROWD])])
async def test_of_a_crowd_that_comes_at_once_half_goes_first(ground: Ground, sessions: int, commits: list[int]) -> None:
    holdings = await ground.hold(sessions)
    async with committing(ground) as (committer, store):
        await asyncio.gather(*[committer.append(holding, [result()]) for holding in holdings])
    assert [len(writes) for _, writes, _ in store.calls] == commits


async def test_a_crowd_that_has_gathered_behind_a_commit_goes_together(ground: Ground) -> None:
    first, *crowd = await ground.hold(2 * CROWD + 1)
    async with committing(ground) as (committer, store):
        store.gate.clear()
        asked = [asyncio.create_task(committer.append(first, [result()]))]
        await store.arrived.wait()
        asked += [asyncio.create_task(committer.append(holding, [result()])) for holding in crowd]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(*asked)
    assert [len(writes) for _, writes, _ in store.calls] == [1, 2 * CROWD]


async def test_the_writes_of_one_session_are_merged_within_the_bound_only(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, store):
        store.gate.clear()
        asked = [
            asyncio.create_task(committer.append(holding, [result("x" * (MOST_BYTES // 3), call_id=str(n))]))
            for n in range(4)
        ]
        await store.arrived.wait()
        store.gate.set()
        await asyncio.gather(*asked)
    assert [len(write.entries) for _, [write], _ in store.calls] == [2, 2]


async def test_a_commit_that_the_server_gives_up_is_split_until_it_fits(ground: Ground) -> None:
    """Sixteen together are more than the server does in time, eight are not."""
    holdings = await ground.hold(17)
    async with committing(ground) as (committer, store):
        store.gate.clear()
        first = asyncio.create_task(committer.append(holdings[0], [result()]))
        await store.arrived.wait()
        await ground.connection.execute(TOO_MUCH)
        asked = [asyncio.create_task(committer.append(holding, [result()])) for holding in holdings[1:]]
        await asyncio.sleep(0)
        store.gate.set()
        await ground.heard.until(lambda: len(store.calls) >= 3)
        assert [len(writes) for _, writes, _ in store.calls][:3] == [1, 16, 8]
        written = await asyncio.gather(first, *asked)
    assert [one.answer for one in written] == [Answer.WRITTEN] * 17
    assert ground.heard.of(CommitFailed)[0].sessions == 16
    assert sum(event.sessions for event in ground.heard.of(CommitFinished)) == 17
    for holding in holdings:
        assert await ground.results(holding.session.id) == ["done"]


async def test_nobody_waits_for_a_session_whose_write_alone_is_too_slow(impatient: Ground) -> None:
    slow, *others = await impatient.hold(4)
    await impatient.connection.execute("insert into public.slow values ($1, $2)", slow.session.id, 2 * LIMIT_SECONDS)
    async with committing(impatient) as (committer, store):
        pieces = [asyncio.create_task(committer.append(slow, [result(str(n), call_id=str(n))])) for n in range(3)]
        await impatient.heard.until(lambda: store.calls and store.calls[-1][2])
        for n in range(3):
            await asyncio.gather(*[committer.append(other, [result(call_id=str(n))]) for other in others])
        assert not any(piece.done() for piece in pieces)
        await impatient.connection.execute("delete from public.slow")
        written = await asyncio.gather(*pieces)
    assert [one.answer for one in written] == [Answer.WRITTEN] * 3
    assert await impatient.results(slow.session.id) == ["0", "1", "2"]
    side = [writes for _, writes, side in store.calls if side]
    assert side
    assert {write.lease for writes in side for write in writes} == {slow.lease}
    together = [writes for _, writes, side in store.calls if not side and len(writes) > 1]
    assert slow.lease not in {write.lease for writes in together for write in writes}


async def test_what_was_not_sent_yet_when_the_connection_broke_is_sent_later(ground: Ground) -> None:
    """Case 82: a batch is refused for one of its writes, and the connection breaks while they go one by one."""
    *holdings, busy = await ground.hold(5)
    broken: list[Sequence[Write]] = []

    def fails(writes: Sequence[Write]) -> tuple[bool, Exception] | None:
        if broken or len(writes) > 1 or writes[0].lease != holdings[1].lease:
            return None
        broken.append(writes)
        return False, DatabaseUnavailable("the connection broke")

    async with committing(replace(ground, store=Flawed(ground.store, fails))) as (committer, store):
        await committer.append(holdings[0], [result("a result", dedup_key="w:result:c")])
        store.gate.clear()
        store.arrived.clear()
        first = asyncio.create_task(committer.append(busy, [result()]))
        await store.arrived.wait()
        entries = [result("a second result", dedup_key="w:result:c"), *[result()] * 3]
        asked = [
            asyncio.create_task(committer.append(holding, [entry]))
            for holding, entry in zip(holdings, entries, strict=True)
        ]
        await asyncio.sleep(0)
        store.gate.set()
        told, *written = await asyncio.gather(*asked, return_exceptions=True)
        await first
    assert broken
    assert isinstance(told, UnstorableBatch)
    assert [getattr(one, "answer", one) for one in written] == [Answer.WRITTEN] * 3
    assert [len(writes) for _, writes, _ in store.calls] == [1, 1, 4, 1, 1, 2, 1], "those behind it were not tried"


def a_batch(ground_holdings: Sequence[Holding], characters: int) -> list[Sending]:
    return [
        Sending(Line(holding), (Asked((answer(characters),)),), Write(lease=holding.lease, owner_writes=0, entries=()))
        for holding in ground_holdings
    ]


async def test_bounds_shrink_with_what_failed_and_grow_back_to_where_they_were(ground: Ground) -> None:
    bounds = Bounds()
    batch = a_batch(await ground.hold(8), 10_000)
    bounds.failed(batch[:1])
    assert (bounds.sessions, bounds.size) == (MOST_SESSIONS, MOST_BYTES), "one alone says nothing about how many"
    bounds.failed(batch)
    assert bounds.sessions == 4
    assert 40_000 <= bounds.size <= 42_000
    for _ in range(5):
        bounds.failed(batch[:2])
    assert bounds.sessions == 1
    for _ in range(60):
        bounds.succeeded()
    assert (bounds.sessions, bounds.size) == (MOST_SESSIONS, MOST_BYTES)
