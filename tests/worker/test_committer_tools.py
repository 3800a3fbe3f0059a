"""Transactional tools' commits: with nothing else of the session on its way, and settled when they are not answered."""

import asyncio
from typing import Any

import pytest

from agentrt.core.errors import DatabaseUnavailable
from agentrt.ports import Answer, ToolTransactionConflict, Write, Written
from tests.worker.commits import committing
from tests.worker.ownership import Ground, result


class LosesItsAnswer:
    """A tool's transaction whose commit reaches the database, or not, and is not answered."""

    def __init__(self, transaction: Any, *, committed: bool) -> None:
        self.transaction = transaction
        self.committed = committed

    async def connection(self) -> Any:
        return await self.transaction.connection()

    async def commit(self, write: Write) -> Written:
        if self.committed:
            await self.transaction.commit(write)
        else:
            await self.transaction.rollback()
        raise DatabaseUnavailable("no answer")

    async def rollback(self) -> None:
        await self.transaction.rollback()

    def is_conflict(self, error: BaseException) -> bool:
        return bool(self.transaction.is_conflict(error))


@pytest.mark.parametrize("lost_questions", [0, 1], ids=["", "nor has the question what became of it"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "undone"])
async def test_a_tools_commit_without_an_answer_is_settled_for_good(
    ground: Ground, committed: bool, lost_questions: int
) -> None:
    """Case 31."""
    await ground.connection.execute("create table report (line text)")
    [holding] = await ground.hold()
    async with committing(ground) as (committer, watched):
        watched.after = lost_questions
        async with ground.store.tool_transaction(ground.worker.id) as transaction:
            connection = await transaction.connection()
            await connection.execute("insert into report values ('once')")
            lossy = LosesItsAnswer(transaction, committed=committed)
            commit = committer.append_in(holding, lossy, entries=[result("row written")])
            if committed:
                assert (await commit).answer is Answer.ALREADY
            else:
                with pytest.raises(ToolTransactionConflict):
                    await commit
        written = await committer.append(holding, [result("next", call_id="2")])
    assert written.answer is Answer.WRITTEN
    texts = await ground.results(holding.session.id)
    assert texts == (["row written", "next"] if committed else ["next"])
    assert await ground.connection.fetchval("select count(*) from report") == int(committed)
    assert (await ground.row(holding.session.id))["owner_writes"] == holding.owner_writes == 2


async def test_a_tools_commit_and_appends_of_the_same_session_do_not_take_each_others_number(ground: Ground) -> None:
    [holding] = await ground.hold()
    async with committing(ground) as (committer, _), ground.store.tool_transaction(ground.worker.id) as transaction:
        await (await transaction.connection()).execute("select 1")
        written = await asyncio.gather(
            committer.append(holding, [result("0", call_id="0")]),
            committer.append_in(holding, transaction, entries=[result("tool", call_id="t")]),
            committer.append(holding, [result("1", call_id="1")]),
        )
    assert [one.answer for one in written] == [Answer.WRITTEN] * 3
    assert sorted(await ground.results(holding.session.id)) == ["0", "1", "tool"]
    assert (await ground.row(holding.session.id))["owner_writes"] == holding.owner_writes
