-- withdraw_agent: this worker offers an agent no more; does another one?
-- Parameters: $1 uuid worker, $2 text agent, $3 text queue.
-- Row: elsewhere (another living worker offers the agent in the queue).
-- Workers that withdraw at the same time wait for each other here, and look again: the last one finds nobody.
with offering as materialized (
  select id
  from agentrt.workers
  where $2 = any(agents) and (id = $1 or $3 = any(queues) and state = 'alive' and lease_expires_at > clock_timestamp())
  order by id
  for no key update
),
withdrawn as (                                          -- a renewal that is on its way does not bring it back
  update agentrt.workers
  set agents = array_remove(agents, $2)
  where id = $1 and id in (select id from offering)
)
select exists (select from offering where id <> $1) as elsewhere
