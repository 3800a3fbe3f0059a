"""What a crash would break is seen: take a guard of the runner away, and the crash tests name what went wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from agentrt.agents import ToolContext
from agentrt.core.journal import Entry, ToolStarted
from agentrt.core.transcript import Transcript, fold
from agentrt.ports import Write
from agentrt.postgres.store import PostgresSessionStore
from agentrt.toolspec import ToolConnection
from agentrt.worker import ownership as ownerships
from agentrt.worker import tools
from agentrt.worker.invoke import invoke
from tests.crash.invariants import ending_of, wrong
from tests.crash.points import calls_without_a_crash, single, staged
from tests.crash.scripts import SCRIPTS
from tests.history import problems

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(300)]

Patch = Callable[[pytest.MonkeyPatch], None]


def forgets_what_was_started(patch: pytest.MonkeyPatch) -> None:
    def forgetful(entries: Iterable[Entry]) -> Transcript:
        return fold(entry for entry in entries if not isinstance(entry.data, ToolStarted))

    patch.setattr(ownerships, "fold", forgetful)


def commits_the_effect_before_the_result(patch: pytest.MonkeyPatch) -> None:
    async def apart(ownership: Any, tool: Any, call: Any, *, context: Any) -> Any:
        async with ownership.deps.store.tool_transaction(ownership.deps.worker_id) as transaction:
            context.transaction = ToolConnection(transaction.connection)
            end = await invoke(ownership, tool, context=context, arguments=call.call.arguments)
            await context.connection.execute("commit")
            return end

    patch.setattr(tools, "run_transactional", apart)


def ends_whatever_was_said_meanwhile(patch: pytest.MonkeyPatch) -> None:
    end = PostgresSessionStore.end

    async def blind(self: PostgresSessionStore, worker_id: Any, writes: Sequence[Write], *, side: bool = False) -> Any:
        heads = [await self.head(write.lease.session_id) for write in writes]
        seen = [replace(w, planned_from=head.last_seq) for w, head in zip(writes, heads, strict=True) if head]
        return await end(self, worker_id, seen, side=side)

    patch.setattr(PostgresSessionStore, "end", blind)


def draws_a_key_for_each_execution(patch: pytest.MonkeyPatch) -> None:
    drawn = count()
    patch.setattr(ToolContext, "idempotency_key", property(lambda ctx: f"{ctx.call_id}:{next(drawn)}"))


@pytest.mark.parametrize(
    ("take_away", "script", "words"),
    [
        (forgets_what_was_started, "tools", "had its effect 2 times"),
        (commits_the_effect_before_the_result, "tools", "wrote 2 rows"),
        (ends_whatever_was_said_meanwhile, "late", "lost=1"),
        (draws_a_key_for_each_execution, "tools", "ran under the keys"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
async def test_a_guard_that_is_missing_is_named(database_url, monkeypatch, take_away: Patch, script, words):
    take_away(monkeypatch)
    async with staged(database_url) as stage:
        calls = (await calls_without_a_crash(stage, SCRIPTS[script])).lives[0].calls
        points = [await stage.point(SCRIPTS[script], doom) for doom in single(len(calls))]
        await stage.play(points)
        found = [told for point in points for told in wrong(await ending_of(stage, point))]
        found += [str(problem) for problem in await problems(stage.connection)]
        assert [told for told in found if words in told]
