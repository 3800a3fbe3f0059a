-- renew: one heartbeat, however many sessions the worker holds.
-- Parameters: $1 uuid worker, $2 float8 lease_seconds, $3 bigint liveness_key (null: no fast path), $4 bool draining,
--   $5 text[] agents that it offers just now, $6 int pid of the server process that holds the lock on $3,
--   $7 text[] agents as the renewal before saw them: if they are others now, this one was sent before a withdrawal.
-- Rows: state, whether the lock is this process's, agents, and one per session that the database grants (id null when
--   there is none); no row: the worker is gone.
-- Transition: alive -> draining when $4; a worker that is dead or stopped stays so.
with me as materialized (
  select id, state, state in ('alive', 'draining') as lives
  from agentrt.workers
  where id = $1
  for no key update                                     -- times are computed after the lock
),
renewed as (
  update agentrt.workers w
  set state = case when $4 then 'draining' else w.state end,
    renewed_at = clock_timestamp(),
    renewing_since = case when clock_timestamp() - w.renewed_at <= make_interval(secs => 2 * w.heartbeat_seconds)
      then w.renewing_since else clock_timestamp() end,
    lease_expires_at = clock_timestamp() + make_interval(secs => $2),
    liveness_key = case when pg_backend_pid() = $6 then $3::bigint end,  -- a transaction pooler gave us another process
    agents = case when w.agents = $7 then $5::text[] else w.agents end
  from me
  where w.id = me.id and me.lives
  returning w.state, w.liveness_key is not null as locked, w.agents
)
select coalesce(renewed.state, me.state) as state, coalesce(renewed.locked, false) as locked, renewed.agents,
  s.id, s.fencing_token, s.last_seq, s.owner_writes
from me
left join renewed on true
left join (
  select id, fencing_token, last_seq, owner_writes
  from agentrt.sessions
  where lease_owner = $1 and status = 'running'
) s on me.lives
