-- mark: declare dead who is dead: the lease is over, or the liveness lock is free and the worker silent.
-- Parameters: $1 uuid the judge.
-- Rows: id, name of those declared dead.
-- Transition: alive, draining -> dead.
with judge as materialized (                            -- after an outage nobody reaps a fleet that is coming back:
  select id                                             -- judge only after two gapless heartbeats of one's own
  from agentrt.workers
  where id = $1 and state in ('alive', 'draining')
    and renewed_at - renewing_since >= make_interval(secs => 2 * heartbeat_seconds)
    and clock_timestamp() - renewed_at <= make_interval(secs => 2 * heartbeat_seconds)
),
suspects as materialized (
  select w.id, w.liveness_key, w.lease_expires_at < clock_timestamp() as expired
  from judge
  cross join agentrt.workers w
  where w.state in ('alive', 'draining') and w.id <> judge.id
    and (w.lease_expires_at < clock_timestamp()
      or (w.liveness_key is not null
        and clock_timestamp() - w.renewed_at > make_interval(secs => 2 * w.heartbeat_seconds)))
  for update of w skip locked                           -- waits for no heartbeat; conflicts with a claim's guard
)
update agentrt.workers w
set state = 'dead'
from suspects s
where w.id = s.id                                       -- shared: two judges do not take each other for the worker
  and case when s.expired then true else pg_try_advisory_xact_lock_shared(s.liveness_key) end
returning w.id, w.name
