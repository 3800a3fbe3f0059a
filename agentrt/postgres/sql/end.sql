-- end: a group commit of endings: suspend, complete, fail, release, crash release.
-- Parameters, one element per session in $1-$4, $6 and $7:
--   $1-$5        as in append.sql; entries (often none) are written before the ending's own
--   $6 bigint[]  the last_seq that the ending was planned from
--   $7 jsonb[]   {"kind": suspend | complete | fail | release | crash,
--                "suspension"?, "outcome"?, "reason"?, "message"?, "delay_seconds"?}
-- Rows, in the order of the input: n, answer, last_seq (the session's when written), status (afterwards), exhausted (a
-- crash that failed the run).
-- Transitions: running -> suspended, completed, failed, queued. Complete and suspend are stale when a client wrote
-- meanwhile; a crash is charged on the locked row; a terminal ending promotes the oldest queued message: a new run.
-- Open approvals become obsolete with a terminal ending, or with the result of their call.
with input as (
  select *
  from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::jsonb[], $6::bigint[], $7::jsonb[]) with ordinality
    as t(id, token, writes, entries, planned_from, ending, n)
),
held as materialized (
  select i.*, i.ending ->> 'kind' as kind, s.status, s.lease_owner, s.lease_acquired_at, s.fencing_token, s.owner_writes,
    s.last_seq, s.queue, s.run, s.attempt, s.takeovers, s.max_attempts
  from input i
  left join lateral (
    select status, lease_owner, lease_acquired_at, fencing_token, owner_writes, last_seq, queue, run, attempt,
      takeovers, max_attempts
    from agentrt.sessions
    where id = i.id
    for no key update skip locked                       -- the fence: everything below is decided on the locked row
  ) s on true
),
decided as materialized (
  select h.*, e.entry_count, e.answer_position, e.progress, e.turns, e.input_tokens, e.output_tokens, e.cost,
    case
      when h.status is null then 'busy'                 -- locked by somebody else, or gone: the renewal tells
      when h.fencing_token = h.token and h.owner_writes = h.writes + 1 then 'already'
      when h.fencing_token <> h.token or h.lease_owner is distinct from $5::uuid or h.status <> 'running'
        or h.owner_writes <> h.writes then 'lost'
      when h.kind in ('suspend', 'complete') and h.last_seq <> h.planned_from then 'stale'
      else 'written'
    end as answer
  from held h
  cross join lateral (
    select count(*) as entry_count,
      max(position) filter (where type = 'assistant_message') as answer_position,
      coalesce(bool_or(type in ('assistant_message', 'tool_result')), false) as progress,
      count(*) filter (where type = 'assistant_message') as turns,
      coalesce(sum((usage ->> 'input_tokens')::bigint) filter (where burns), 0) as input_tokens,
      coalesce(sum((usage ->> 'output_tokens')::bigint) filter (where burns), 0) as output_tokens,
      coalesce(sum(cost) filter (where burns), 0) as cost
    from (
      select position, value ->> 'type' as type, value -> 'data' -> 'usage' as usage,
        (value -> 'data' ->> 'cost')::numeric as cost,
        value ->> 'type' in ('assistant_message', 'model_retried', 'compaction') as burns
      from jsonb_array_elements(h.entries) with ordinality as a(value, position)
    ) x
  ) e
),
charged as materialized (
  select d.*, d.answer = 'written' as ours, a.attempt_now, c.exhausted,
    d.kind in ('complete', 'fail') or c.exhausted as terminal,
    case
      when d.kind = 'release'
        then make_interval(secs => least(greatest(coalesce((d.ending ->> 'delay_seconds')::float8, 0), 0), 1e8))
      when d.kind = 'crash' and not c.exhausted then agentrt._crash_delay(a.attempt_now)
      else interval '0'
    end as delay
  from decided d
  cross join lateral (select case when d.progress then 1 else d.attempt end as attempt_now) a
  cross join lateral (
    select d.kind = 'crash' and agentrt._exhausted(a.attempt_now, d.max_attempts, d.takeovers) as exhausted
  ) c
),
ended as materialized (                                 -- all rows of the input; those with `ours` are written below
  select c.*, p.seq as promoted_seq, p.content as promoted_content, clock_timestamp() as at,
    c.last_seq + c.entry_count + 1 + c.exhausted::integer + (p.seq is not null)::integer as new_last_seq,
    case
      when p.seq is not null then 'queued'
      when c.kind = 'complete' then 'completed'
      when c.terminal then 'failed'
      when c.kind = 'suspend' then 'suspended'
      else 'queued'
    end as new_status,
    case
      when c.exhausted then agentrt._exhausted_outcome(c.attempt_now, c.takeovers, 'session_released')
      when c.terminal then c.ending -> 'outcome'
    end as outcome,
    case when c.ours and c.kind = 'suspend' then agentrt._with_expiry(c.id, c.ending -> 'suspension') end as suspension
  from charged c                                        -- the functions look with a fresh snapshot, after the lock
  left join lateral agentrt._oldest_queued(case when c.ours and c.terminal then c.id end) p on true
),
written as (
  select id, last_seq + a.position as seq, run, attempt, token, a.value ->> 'type' as type,
    case a.value ->> 'type'
      when 'assistant_message' then agentrt._with_call_ids(a.value -> 'data', last_seq + a.position)
      when 'approval_requested' then agentrt._with_call_id(a.value -> 'data', last_seq + answer_position)
      else a.value -> 'data'
    end as data,
    coalesce(a.value ->> 'dedup_key', case when a.position = 1 then 'w:' || token || ':' || writes end) as dedup_key
  from ended
  cross join lateral jsonb_array_elements(entries) with ordinality as a(value, position)
  where ours
  union all
  select id, last_seq + entry_count + 1, run, attempt_now, token,
    case kind when 'suspend' then 'session_suspended' when 'complete' then 'session_completed'
      when 'fail' then 'session_failed' else 'session_released' end,
    case kind
      when 'suspend' then jsonb_build_object('suspension', suspension)
      when 'release' then jsonb_strip_nulls(jsonb_build_object('reason', ending ->> 'reason',
        'message', nullif(ending ->> 'message', '')))
      when 'crash' then jsonb_strip_nulls(jsonb_build_object('reason', 'crash', 'message', ending ->> 'message'))
      else jsonb_build_object('outcome', outcome)
    end,
    case when entry_count = 0 then 'w:' || token || ':' || writes end
  from ended
  where ours
  union all
  select id, last_seq + entry_count + 2, run, attempt_now, token, 'session_failed',
    jsonb_build_object('outcome', outcome), null
  from ended
  where ours and exhausted
  union all
  select id, last_seq + entry_count + 2 + exhausted::integer, run + 1, 0, token, 'user_message',
    jsonb_build_object('content', promoted_content, 'message_seq', promoted_seq), 'w:message:' || promoted_seq
  from ended
  where promoted_seq is not null                        -- only looked for when ours
),
journaled as (
  insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data, dedup_key)
  select id, seq, run, attempt, token, $5::uuid, type, data, dedup_key
  from written
),
requested as (
  insert into agentrt.approvals (id, session_id, run, tool_call_id, tool, arguments, arguments_hash, reason, expires_at)
  select (w.data ->> 'approval_id')::uuid, w.id, w.run, w.data ->> 'call_id', w.data ->> 'tool',
    w.data ->> 'arguments', w.data ->> 'arguments_hash', w.data ->> 'reason',
    clock_timestamp() + make_interval(secs => (w.data ->> 'expires_seconds')::double precision)
  from written w
  where w.type = 'approval_requested'
),
obsoleted as (
  update agentrt.approvals a
  set state = 'obsolete', decided_at = clock_timestamp()
  from ended e
  cross join lateral (                                  -- a point look-up each, never a scan of all approvals
    select o.id, o.tool_call_id from agentrt.approvals o where o.session_id = e.id and o.state = 'pending' limit 10000
  ) o
  where e.ours and a.id = o.id and a.state = 'pending' and (e.terminal or exists (
    select from written w where w.id = e.id and w.type = 'tool_result' and w.data ->> 'call_id' = o.tool_call_id))
),
updated as (
  update agentrt.sessions s
  set status = e.new_status,
    last_seq = e.new_last_seq,
    owner_writes = e.writes + 1,
    lease_owner = null,
    lease_acquired_at = null,
    ready_at = case when e.new_status = 'queued' then e.at + e.delay else s.ready_at end,
    due = e.delay <= interval '0',
    run = e.run + (e.promoted_seq is not null)::integer,
    attempt = case when e.promoted_seq is not null or e.kind = 'suspend' then 0
      when e.kind = 'crash' and not e.exhausted then e.attempt_now + 1 else e.attempt_now end,
    takeovers = case when e.promoted_seq is not null or e.kind = 'suspend' then 0
      when e.kind = 'crash' and not e.exhausted then e.takeovers + 1 else e.takeovers end,
    turns = case when e.promoted_seq is null then s.turns + e.turns else 0 end,
    input_tokens = case when e.promoted_seq is null then s.input_tokens + e.input_tokens else 0 end,
    output_tokens = case when e.promoted_seq is null then s.output_tokens + e.output_tokens else 0 end,
    cost = case when e.promoted_seq is null then s.cost + e.cost else 0 end,
    running_seconds = case when e.promoted_seq is null
      then s.running_seconds + greatest(extract(epoch from e.at - e.lease_acquired_at)::double precision, 0) else 0 end,
    suspension = e.suspension,
    outcome = case when e.promoted_seq is null then e.outcome end,
    finished_at = case when e.new_status in ('completed', 'failed') then e.at end
  from ended e
  where s.id = e.id and e.ours
),
told as materialized (
  select agentrt._notify('agentrt_ready', (
      select array_agg(distinct queue) from ended where ours and new_status = 'queued' and delay <= interval '0'
    )) as ready,
    agentrt._notify('agentrt_journal', (
      select array_agg(e.id::text)
      from ended e
      cross join lateral (                              -- limit: a point look-up each, never a scan of all followers
        select from agentrt.followers f where f.session_id = e.id and f.expires_at > now() limit 1
      ) f
      where e.ours
    )) as journal
)
select n, answer,
  case when ours then new_status else status end as status,
  case when ours then new_last_seq else last_seq end as last_seq,
  kind = 'crash' and (ours and exhausted or answer = 'already' and status = 'failed') as exhausted
from ended
cross join told
order by n
