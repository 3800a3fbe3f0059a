"""What users need to test their own agents: a scripted model, and a worker that runs when it is told.

async with local_worker(database_url, agent) as worker:
    session_id = await worker.ask("greeter", "hello")
    assert (await worker.client.get(session_id)).outcome == {"text": "Hi."}
"""

from agentrt.models.scripted import Call, Conversation, Reply, ScriptedModel
from agentrt.testing.local import LocalWorker, local_worker

__all__ = ["Call", "Conversation", "LocalWorker", "Reply", "ScriptedModel", "local_worker"]
