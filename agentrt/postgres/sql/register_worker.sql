-- register_worker: a new process incarnation.
-- Parameters: $1 uuid id, $2 text name, $3 text host, $4 int pid, $5 text version, $6 text[] agents, $7 text[] queues,
--   $8 int slots, $9 float8 heartbeat_seconds, $10 float8 lease_seconds, $11 bigint liveness_key (null: no fast path).
-- Transition: - -> alive. Repeated after an answer that was lost, it changes nothing.
insert into agentrt.workers (id, name, host, pid, version, agents, queues, slots, heartbeat_seconds, lease_expires_at,
  liveness_key)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp() + make_interval(secs => $10), $11)
on conflict (id) do nothing
