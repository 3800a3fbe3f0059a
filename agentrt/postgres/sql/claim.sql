-- claim: take up to n queued sessions that are due, and become their only writer.
-- Parameters:
--   $1 uuid    the worker
--   $2 text[]  queues, each once
--   $3 text[]  agents that it serves, each once
--   $4 text[]  the version of each agent
--   $5 int     at most so many sessions
--   $6 int     at most so many fragile ones (attempt >= 3) among them
--   $7 bigint  looked at are at most so many of each queue and agent: more than $5, since others hold and claim as well
-- Rows: alive (the guard held), more (fewer than $5, but others may stand behind those that were looked at) and a
-- session's head; one row with a null id when there is nothing to claim.
-- Transition: queued, due -> running; session_claimed is written.
with me as materialized (                               -- the guard: no reap can pass between this and the commit
  select id, name, $2::text[] as queues, $3::text[] as agents
  from agentrt.workers
  where id = $1 and state = 'alive'
  for key share
),
normal_seen as materialized (
  select c.id, c.priority, c.ready_at
  from me
  cross join unnest(me.queues) as q(queue)
  cross join unnest(me.agents) as a(agent)
  cross join lateral (                                  -- in index order
    select id, priority, ready_at
    from agentrt.sessions
    where queue = q.queue and agent = a.agent and status = 'queued' and due and attempt < 3
    order by priority desc, ready_at, id
    limit $7
  ) c
),
normal as materialized (
  select s.id, s.priority, s.ready_at
  from (select id from normal_seen order by priority desc, ready_at, id) c
  cross join lateral (
    select id, priority, ready_at
    from agentrt.sessions
    where id = c.id and status = 'queued' and due       -- no attempt here: it would invite a claim index
    for no key update skip locked
  ) s
  limit $5
),
fragile_seen as materialized (
  select c.id, c.priority, c.ready_at
  from me
  cross join unnest(me.queues) as q(queue)
  cross join unnest(me.agents) as a(agent)
  cross join lateral (
    select id, priority, ready_at
    from agentrt.sessions
    where queue = q.queue and agent = a.agent and status = 'queued' and due and attempt >= 3
    order by priority desc, ready_at, id
    limit $7
  ) c
  where $6 > 0
),
fragile as materialized (
  select s.id, s.priority, s.ready_at
  from (select id from fragile_seen order by priority desc, ready_at, id) c
  cross join lateral (
    select id, priority, ready_at
    from agentrt.sessions
    where id = c.id and status = 'queued' and due
    for no key update skip locked
  ) s
  limit $6
),
best as materialized (
  select id
  from (select * from normal union all select * from fragile) c
  order by priority desc, ready_at, id
  limit $5
),
claimed as (
  update agentrt.sessions s
  set status = 'running',
    fencing_token = s.fencing_token + 1,
    owner_writes = 0,
    attempt = greatest(s.attempt, 1),
    lease_owner = $1,
    lease_acquired_at = clock_timestamp(),
    last_seq = s.last_seq + 1
  where s.id = any(array(select id from best))
  returning s.*
),
journaled as (
  insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data)
  select c.id, c.last_seq, c.run, c.attempt, c.fencing_token, $1, 'session_claimed',
    jsonb_build_object('worker', me.name, 'agent_version', ($4::text[])[array_position(me.agents, c.agent)])
  from claimed c
  cross join me
),
told as materialized (
  select agentrt._notify('agentrt_journal', array_agg(c.id::text)) as journal
  from claimed c
  cross join lateral (                                  -- limit: a point look-up each, never a scan of all followers
    select from agentrt.followers f where f.session_id = c.id and f.expires_at > now() limit 1
  ) f
)
select me.id is not null as alive,
  case when (select count(*) from best) < $5 then (select count(*) from normal_seen) >= $7
    or (select count(*) from fragile) < $6 and (select count(*) from fragile_seen) >= $7 else false end as more,
  c.id, c.agent, c.queue, c.priority, c.status, c.run, c.attempt, c.takeovers,
  c.max_attempts, c.fencing_token, c.owner_writes, c.lease_owner, c.ready_at, c.last_seq, c.suspension, c.outcome,
  c.config, c.labels, c.tenant, c.parent_id, c.turns, c.input_tokens, c.output_tokens, c.cost, c.running_seconds,
  c.created_at, c.finished_at, c.archived_at
from told
left join me on true
left join claimed c on true
order by c.priority desc, c.ready_at, c.id
