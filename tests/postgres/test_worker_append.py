"""Owners' group commits: what they write, count and fill in, and what they refuse."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from agentrt.core.journal import (
    ApprovalRequested,
    Compaction,
    EntryData,
    ModelRetried,
    ToolStarted,
    Usage,
    call_id,
)
from agentrt.core.session import CallId, Seq
from agentrt.ports import Answer, NewEntry, UnstorableBatch
from tests.postgres.owner import HireOwner, answer, create, result
from tests.postgres.stage import Stage

Connect = Callable[[], Awaitable[asyncpg.Connection]]


# --- what an append does --------------------------------------------------------------------------------------------


async def test_an_append_writes_its_entries_in_order_and_counts_what_they_burnt(hire: HireOwner, stage: Stage) -> None:
    session = await stage.create()
    owner = await hire()
    held = await owner.take()

    first = await owner.append(held, answer("hm", cost=0.25))
    retried = ModelRetried(error_class="transient", usage=Usage(1, 2), cost=0.05)
    second = await owner.append(held, retried, Compaction("short", usage=Usage(100, 20), cost=0.1), answer(cost=None))

    assert (first.answer, first.last_seq, second.last_seq) == (Answer.WRITTEN, 4, 7)
    head = await stage.head(session)
    assert (head["turns"], head["input_tokens"], head["output_tokens"], float(head["cost"])) == (2, 121, 32, 0.4)
    assert (head["last_seq"], head["owner_writes"], head["status"]) == (7, 2, "running")
    entries = (await stage.entries(session))[3:]
    assert [e.type for e in entries] == ["assistant_message", "model_retried", "compaction", "assistant_message"]
    assert {(e.run, e.attempt, e.token, e.worker_id) for e in entries} == {(1, 1, 1, owner.id)}
    assert [e.dedup_key for e in entries] == ["w:1:0", "w:1:1", None, None]


async def test_calls_get_ids_from_seq_and_place_and_so_do_approvals_of_the_same_write(
    hire: HireOwner, stage: Stage
) -> None:
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    request = ApprovalRequested(
        approval_id=uuid4(), position=2, tool="pay", arguments='{"b":1, "a":1e2}', arguments_hash="c0ffee",
        reason="costly", expires_seconds=60.0,
    )  # fmt: skip

    await owner.append(held, answer("hm", "look", "pay"), request)

    message, requested = (await stage.entries(session))[3:]
    assert [b.get("call_id") for b in message.data["content"]] == [None, call_id(4, 1), call_id(4, 2)]
    assert (requested.data["call_id"], "position" in requested.data) == (call_id(4, 2), False)
    row = await stage.connection.fetchrow(
        "select *, expires_at - requested_at between interval '59 s' and interval '61 s' as in_time "
        "from agentrt.approvals where session_id = $1",
        session,
    )
    assert row is not None
    assert (row["id"], row["tool_call_id"], row["state"]) == (request.approval_id, call_id(4, 2), "pending")
    assert (row["arguments"], row["arguments_hash"], row["reason"]) == ('{"b":1, "a":1e2}', "c0ffee", "costly")
    assert row["in_time"]


async def test_an_answer_or_a_result_ends_the_row_of_crashes_and_nothing_else_does(
    hire: HireOwner, stage: Stage
) -> None:
    cases: list[tuple[EntryData | NewEntry, int]] = [
        (answer(), 1), (result(), 1), (ModelRetried(), 4), (ToolStarted(), 4),
    ]  # fmt: skip
    for entry, attempt in cases:
        session = await stage.create()
        await stage.connection.execute("update agentrt.sessions set attempt = 4 where id = $1", session)
        owner = await hire()
        await owner.append(await owner.take(), entry)
        assert (await stage.head(session))["attempt"] == attempt


async def test_entries_are_read_back_in_order_from_any_place_and_from_behind_the_last_compaction(
    hire: HireOwner, stage: Stage
) -> None:
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    await owner.append(held, answer("one"), answer("two"))

    assert [e.seq for e in await owner.store.read(held.id, Seq(0))] == [1, 2, 3, 4, 5]
    assert [e.seq for e in await owner.store.read(held.id, Seq(4))] == [5]

    await owner.append(held, Compaction("all of it", covers_from=Seq(1), covers_to=Seq(4)), answer("three"))
    entries = await owner.store.read(held.id, Seq(0))
    assert [(e.seq, e.data.type) for e in entries] == [
        (5, "assistant_message"), (6, "compaction"), (7, "assistant_message"),
    ]  # fmt: skip
    assert [e.seq for e in await owner.store.read(held.id, Seq(3))] == [4, 5, 6, 7]
    assert (await owner.store.head(held.id)) is not None
    assert session == held.id


@pytest.mark.parametrize(("covers_to", "first"), [("everything", 1), (-3, 1), (10**30, 1), (10**17, 4)])
async def test_a_compaction_that_covers_what_it_cannot_hides_no_later_entry(
    hire: HireOwner, stage: Stage, covers_to: Any, first: int
) -> None:
    await stage.create()
    owner = await hire()
    held = await owner.take()
    await owner.append(held, Compaction("odd", covers_to=covers_to), answer("after"))
    assert [e.seq for e in await owner.store.read(held.id, Seq(0))] == list(range(first, 6))


# --- what cannot be stored ------------------------------------------------------------------------------------------


UNSTORABLE: dict[str, Any] = {
    "a count that is no number": answer(usage=Usage(input_tokens="many")),  # type: ignore[arg-type]
    "a cost beyond all bounds": answer(cost=1e300),
    "a key that is taken": result("taken"),
    "an approval without an id": ApprovalRequested(call_id=CallId("000004001"), tool="pay"),
}


@pytest.mark.parametrize("what", UNSTORABLE)
async def test_of_a_batch_with_an_unstorable_entry_only_its_session_is_told(
    hire: HireOwner, connection: asyncpg.Connection, stage: Stage, what: str
) -> None:
    """Case 82."""
    await create(connection, 3)
    owner = await hire()
    held = await owner.claim(3)
    await owner.append_all(held, NewEntry(data=ToolStarted(), dedup_key="w:result:taken"))
    writes = [held[0].write(answer()), held[1].write(UNSTORABLE[what]), held[2].write(answer())]

    with pytest.raises(UnstorableBatch):
        await owner.store.append(owner.id, writes)
    one_by_one: list[Answer | None] = []
    for write in writes:
        try:
            one_by_one.append((await owner.store.append(owner.id, [write]))[0].answer)
        except UnstorableBatch:
            one_by_one.append(None)

    assert one_by_one == [Answer.WRITTEN, None, Answer.WRITTEN]
    assert len(await stage.entries(held[1].id)) == 4


async def test_what_python_cannot_hold_is_read_as_something_visible(hire: HireOwner, stage: Stage) -> None:
    """Case 96."""
    session = await stage.create()
    owner = await hire()
    held = await owner.take()
    for forced in ("[" * 3000 + "]" * 3000, '{"n": 1e5000}', "17", '{"content": [{"type": "text", "text": 1e5000}]}'):
        await stage.connection.execute(
            "with s as (update agentrt.sessions set last_seq = last_seq + 1 where id = $1 returning *) "
            "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, type, data) "
            "select id, last_seq, run, attempt, fencing_token, 'user_message', $2::jsonb from s",
            session,
            forced,
        )

    entries = await owner.store.read(held.id, Seq(3))

    assert [entry.seq for entry in entries] == [4, 5, 6, 7]
    assert "nested too deep" in repr(entries[0].data)
    assert [type(entry.data).__name__ for entry in entries] == ["Unknown", "UserMessage", "Unknown", "UserMessage"]
    assert (await owner.append(held, answer())).answer is Answer.WRITTEN
