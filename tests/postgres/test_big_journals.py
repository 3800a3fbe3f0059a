"""A journal is read in pages of a bounded size, however large its entries are."""

from typing import Any
from uuid import UUID

import pytest

from agentrt.core.session import Seq, SessionId
from tests.postgres.owner import HireOwner
from tests.postgres.stage import Stage

RANDOM = "(select string_agg(md5(random()::text), '') from generate_series(1, 32768))"  # 1 MiB
EVEN = "repeat('even ', 200000)"  # 1 MB, stored in 12 KB


async def with_large_messages(stage: Stage, text: str, count: int) -> UUID:
    session = await stage.create()
    for _ in range(count):
        await stage.connection.execute(f"select agentrt.send_message($1, {text})", session)
    return session


@pytest.mark.parametrize(("text", "count", "least"), [(RANDOM, 20, 3), (EVEN, 120, 2)])
async def test_a_worker_reads_a_large_journal_in_pages_and_whole(
    hire: HireOwner, stage: Stage, monkeypatch: pytest.MonkeyPatch, *, text: str, count: int, least: int
) -> None:
    session = await with_large_messages(stage, text, count)
    owner = await hire()
    fetch, pages = owner.store._reads.fetch, list[int]()

    async def counted(*arguments: Any) -> Any:
        rows = await fetch(*arguments)
        pages.append(sum(len(row["data"]) for row in rows))
        return rows

    monkeypatch.setattr(owner.store._reads, "fetch", counted)
    entries = await owner.store.read(SessionId(session), Seq(0))

    assert [entry.seq for entry in entries] == list(range(1, count + 3))
    assert least <= len(pages) <= 10
    assert max(pages) < 100 * 2**20


async def test_clients_read_a_large_journal_in_pages_and_whole(stage: Stage) -> None:
    session = await with_large_messages(stage, RANDOM, 20)
    seqs, pages = [0], 0
    while rows := await stage.connection.fetch("select seq from agentrt.read_journal($1, $2)", session, seqs[-1]):
        seqs += [row["seq"] for row in rows]
        pages += 1
    assert seqs == list(range(23))
    assert 2 < pages < 6


async def test_an_entry_that_is_larger_than_a_page_is_read_by_itself(stage: Stage) -> None:
    session = await stage.create()
    await stage.connection.execute(
        "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, type, data) "
        "select $1, n, 1, 0, 0, 'user_message', jsonb_build_object('x', "
        "(select string_agg(md5(random()::text), '') from generate_series(1, 300000))) from generate_series(3, 4) n",
        session,
    )
    await stage.connection.execute("update agentrt.sessions set last_seq = 4 where id = $1", session)
    pages = [
        [row["seq"] for row in await stage.connection.fetch("select seq from agentrt.read_journal($1, $2)", session, n)]
        for n in (0, 3, 4)
    ]
    assert pages == [[1, 2, 3], [4], []]
