-- head: a session's row.
-- Parameters: $1 uuid session.
select id, agent, queue, priority, status, run, attempt, takeovers, max_attempts, fencing_token, owner_writes,
  lease_owner, ready_at, last_seq, suspension, outcome, config, labels, tenant, parent_id, turns, input_tokens,
  output_tokens, cost, running_seconds, created_at, finished_at, archived_at
from agentrt.sessions
where id = $1
