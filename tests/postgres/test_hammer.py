"""All at once, on the same hundred sessions: nothing is lost, nothing is doubled, and no owner meets a deadlock."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from tests.history import assert_sound
from tests.postgres.hammering import HammeringClient, HammeringWorker, Ledger, reap
from tests.postgres.owner import HireOwner, create
from tests.postgres.stage import Stage

Connect = Callable[[], Awaitable[asyncpg.Connection]]

SESSIONS = 100
CLIENTS = 8
ACTS = 250
"""Of each client; they stop earlier when the time is over."""
SECONDS = 10.0
HELD_SECONDS = 0.4


@pytest.mark.timeout(300)
async def test_hammering_loses_and_doubles_nothing(
    hire_patient: HireOwner, connection: asyncpg.Connection, connect: Connect
):
    """Case 73, case 53, case 56, F24: and no deadlock on the owner's side, no gap, no entry of an old owner."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ledger, found, over = Ledger(), Counter[str](), asyncio.Event()
    sessions = await create(connection, SESSIONS)
    await connection.execute("update agentrt.sessions set max_attempts = 1000")
    clients = [HammeringClient(Stage(await connect()), sessions, ledger, dice) for _ in range(CLIENTS)]
    holder = HammeringClient(Stage(await connect()), sessions, ledger, dice)
    judge, reaping = await hire_patient("judge"), await connect()
    workers = [HammeringWorker(await hire_patient(name), ledger, dice) for name in ("anna", "bert")]

    async with asyncio.TaskGroup() as everybody:
        for worker in workers:
            everybody.create_task(worker.work(over))
        everybody.create_task(reap(judge, reaping, found=found, over=over))
        holding = everybody.create_task(hold(holder, dice, sessions, over))
        await asyncio.gather(*(act(client) for client in clients))
        while not happened(ledger, found):  # on a slow machine not everything has had its turn yet
            await clients[0].act()
        over.set()
    print(dict(sorted(ledger.said.items())), dict(found), holding.result())
    print(f"{len(ledger.sent)} messages, {len(ledger.written)} answers written, {len(ledger.lost)} refused")

    assert ledger.failures == []
    await assert_sound(connection)
    await assert_true_to(ledger, connection)


def happened(ledger: Ledger, found: Counter[str]) -> bool:
    """Whether there was something to lose."""
    return min(len(ledger.sent), len(ledger.written), found["requeued"], ledger.said["held"]) > 0


async def act(client: HammeringClient) -> None:
    end = asyncio.get_running_loop().time() + SECONDS
    for _ in range(ACTS):
        await client.act()
        if asyncio.get_running_loop().time() > end:
            return


async def hold(client: HammeringClient, dice: random.Random, sessions: list[UUID], over: asyncio.Event) -> int:
    held = 0
    while not over.is_set():
        await client.hold(dice.choice(sessions), HELD_SECONDS)
        held += 1
    return held


TEXTS = """
    select data -> 'content' -> 0 ->> 'text' as text, array_agg(session_id) as sessions, array_agg(seq) as seqs
    from agentrt.journal
    where type = any ($1) and not data ? 'message_seq' and data -> 'content' -> 0 ->> 'text' <> 'hello'
    group by 1
"""

FORGOTTEN = """
    select s.id, s.status, 'has a queued message' as what from agentrt.sessions s
    where s.status in ('completed', 'failed') and exists (select from agentrt._queued_messages(s.id))
    union all
    select s.id, s.status, 'sleeps over a message' from agentrt.sessions s
    where s.status = 'suspended' and s.suspension ->> 'reason' = 'input' and exists (
      select from agentrt.journal m where m.session_id = s.id and m.type = 'user_message' and m.seq > (
        select max(p.seq) from agentrt.journal p where p.session_id = s.id and p.type = 'session_suspended'))
    union all
    select s.id, s.status, 'sleeps over a decision' from agentrt.sessions s
    where s.status = 'suspended' and s.suspension ->> 'reason' = 'approval' and not exists (
      select from agentrt.approvals a where a.session_id = s.id and a.state = 'pending')
    union all
    select s.id, s.status, 'is not asked for its approval' from agentrt.sessions s
    join agentrt.approvals a on a.session_id = s.id and a.state = 'pending'
    where s.status in ('completed', 'failed', 'cancelled')
"""


async def assert_true_to(ledger: Ledger, connection: asyncpg.Connection) -> None:
    """Each message that was taken stands once where it was said to stand, none that was refused; likewise answers."""
    rows = await connection.fetch(TEXTS, ["user_message", "message_queued"])
    assert {row["text"]: [*zip(row["sessions"], row["seqs"], strict=True)] for row in rows} == {
        text: [place] for text, place in ledger.sent.items()
    }
    rows = await connection.fetch(TEXTS, ["assistant_message"])
    assert {row["text"]: len(row["seqs"]) for row in rows} == dict.fromkeys(ledger.written, 1)
    assert not ledger.written & ledger.lost
    assert await connection.fetch(FORGOTTEN) == []
