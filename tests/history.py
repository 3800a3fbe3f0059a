"""The history checker: reads sessions and journal after a test, and names whatever must never have happened.

It looks at the database alone and believes no worker: gaps, tokens that go down, two owners under one token, an old
owner's entry after a new one's, doubled results, messages and endings, messages that no answer of a completed run saw.
"""

from dataclasses import dataclass

import asyncpg

# Each query returns session_id, seq and words for what is wrong there.
RULES = {
    "seq is gapless from 1 to last_seq": """
        select s.id, s.last_seq, format('%s entries, %s to %s', count(j.seq), min(j.seq), max(j.seq))
        from agentrt.sessions s left join agentrt.journal j on j.session_id = s.id
        group by s.id
        having count(j.seq) <> s.last_seq or coalesce(max(j.seq), 0) <> s.last_seq or coalesce(min(j.seq), 1) <> 1
    """,
    "tokens never go down along seq": """
        select session_id, seq, format('token %s after %s', fencing_token, before)
        from (
          select *, lag(fencing_token) over (partition by session_id order by seq) as before from agentrt.journal
        ) j
        where fencing_token < before
    """,
    "one token has one owner": """
        select session_id, min(seq), format('token %s was used by %s workers', fencing_token, count(distinct worker_id))
        from agentrt.journal
        where worker_id is not null and type in ('session_claimed', 'assistant_message', 'tool_started', 'tool_result',
          'session_resumed', 'session_suspended', 'session_completed', 'model_retried', 'approval_requested')
        group by session_id, fencing_token having count(distinct worker_id) > 1
    """,
    "each ownership begins with exactly one claim": """
        select session_id, min(seq), format('%s claims under token %s', count(*), fencing_token)
        from agentrt.journal where type = 'session_claimed'
        group by session_id, fencing_token having count(*) > 1
    """,
    "an owner writes nothing after its session was orphaned, released, suspended or ended": """
        select a.session_id, a.seq, format('%s by %s after %s at %s', a.type, a.worker_id, e.type, e.seq)
        from agentrt.journal e join agentrt.journal a on a.session_id = e.session_id and a.seq > e.seq
        where e.type in ('session_orphaned', 'session_released', 'session_suspended', 'session_completed',
            'session_failed', 'session_cancelled')
          and a.type in ('assistant_message', 'tool_started', 'tool_result', 'session_resumed', 'session_suspended',
            'session_completed', 'model_retried', 'approval_requested')
          and a.worker_id is not null
          and not exists (
            select from agentrt.journal c
            where c.session_id = e.session_id and c.type = 'session_claimed' and c.seq > e.seq and c.seq < a.seq)
    """,
    "each call has at most one result": """
        select session_id, max(seq), format('%s results for %s', count(*), data ->> 'call_id')
        from agentrt.journal where type = 'tool_result'
        group by session_id, data ->> 'call_id' having count(*) > 1
    """,
    "a run ends at most once": """
        select session_id, max(seq), format('%s endings of run %s', count(*), run)
        from agentrt.journal where type in ('session_completed', 'session_failed', 'session_cancelled')
        group by session_id, run having count(*) > 1
    """,
    "a queued message is promoted at most once": """
        select session_id, max(seq), format('message %s promoted %s times', data ->> 'message_seq', count(*))
        from agentrt.journal where type = 'user_message' and data ? 'message_seq'
        group by session_id, data ->> 'message_seq' having count(*) > 1
    """,
    "a completed session has answered every message": """
        select s.id, m.seq, format('message %s is above every seen_seq', m.seq)
        from agentrt.sessions s join agentrt.journal m on m.session_id = s.id and m.type = 'user_message'
        where s.status = 'completed' and not exists (
          select from agentrt.journal a
          where a.session_id = s.id and a.type = 'assistant_message' and (a.data ->> 'seen_seq')::bigint >= m.seq)
    """,
    "a completed session has answered every call": """
        select a.session_id, a.seq, format('call %s has no result', block ->> 'call_id')
        from agentrt.sessions s
        join agentrt.journal a on a.session_id = s.id and a.type = 'assistant_message'
        cross join lateral jsonb_array_elements(a.data -> 'content') block
        where s.status = 'completed' and block ->> 'type' = 'tool_call' and not exists (
          select from agentrt.journal r
          where r.session_id = s.id and r.type = 'tool_result' and r.data ->> 'call_id' = block ->> 'call_id')
    """,
    "a session that nobody runs is owned by nobody": """
        select s.id, s.last_seq, format('%s but owned by %s', s.status, s.lease_owner)
        from agentrt.sessions s where (s.status = 'running') <> (s.lease_owner is not null)
    """,
}


@dataclass(frozen=True)
class Problem:
    rule: str
    session_id: object
    seq: int
    words: str


async def problems(connection: asyncpg.Connection) -> list[Problem]:
    """All that is wrong in the database, rule by rule; empty when every promise was kept."""
    found = []
    for rule, query in RULES.items():
        found += [Problem(rule, *row) for row in await connection.fetch(query)]
    return found


async def assert_sound(connection: asyncpg.Connection) -> None:
    """No problem, or an error that names the first ones."""
    found = await problems(connection)
    assert not found, f"{len(found)} problems, such as {found[:5]}"
