"""``agentrt.testing.local_worker``: what it does when its own parts fail."""

import pytest

from agentrt.agents import Agent
from agentrt.testing import ScriptedModel, local_worker

pytestmark = pytest.mark.one_server


async def test_what_has_ended_the_committer_is_told_to_whoever_runs_a_session(database_url, monkeypatch):
    async with local_worker(database_url, Agent("a", model=ScriptedModel(lambda _: "ok"))) as worker:
        monkeypatch.setattr(worker.deps.committer, "_take", lambda *_: 1 / 0)
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            await worker.ask("a", "hello")
