-- append: a group commit of owners' entries; the sessions stay running.
-- Parameters, one element per session in $1-$4:
--   $1 uuid[]    session ids, each at most once
--   $2 bigint[]  fencing tokens
--   $3 bigint[]  owner_writes before this write
--   $4 jsonb[]   entries, each an array of {"type", "data", "dedup_key"?}
--   $5 uuid      the worker
-- Rows, in the order of the input: n, answer, last_seq (of our last entry when written or already), status.
-- Transition: running -> running; attempt becomes 1 with an answer or a tool result; an open approval becomes
--   obsolete with the result of its call, which was not run.
with input as (
  select *
  from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::jsonb[]) with ordinality as t(id, token, writes, entries, n)
),
held as materialized (
  select i.*, s.status, s.lease_owner, s.fencing_token, s.owner_writes, s.last_seq, s.run, s.attempt
  from input i
  left join lateral (
    select status, lease_owner, fencing_token, owner_writes, last_seq, run, attempt
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
journaled as (
  insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data, dedup_key)
  select d.id, d.last_seq + a.position, d.run, d.attempt, d.token, $5::uuid, a.value ->> 'type',
    case a.value ->> 'type'
      when 'assistant_message' then agentrt._with_call_ids(a.value -> 'data', d.last_seq + a.position)
      when 'approval_requested' then agentrt._with_call_id(a.value -> 'data', d.last_seq + d.answer_position)
      else a.value -> 'data'
    end,
    coalesce(a.value ->> 'dedup_key', case when a.position = 1 then 'w:' || d.token || ':' || d.writes end)
  from decided d
  cross join lateral jsonb_array_elements(d.entries) with ordinality as a(value, position)
  where d.answer = 'written'
  returning session_id, run, type, data
),
requested as (
  insert into agentrt.approvals (id, session_id, run, tool_call_id, tool, arguments, arguments_hash, reason, expires_at)
  select (data ->> 'approval_id')::uuid, session_id, run, data ->> 'call_id', data ->> 'tool', data ->> 'arguments',
    data ->> 'arguments_hash', data ->> 'reason',
    clock_timestamp() + make_interval(secs => (data ->> 'expires_seconds')::double precision)
  from journaled
  where type = 'approval_requested'
),
obsoleted as (                                          -- what was closed without being run is decided no more
  update agentrt.approvals a
  set state = 'obsolete', decided_at = clock_timestamp()
  from journaled j
  cross join lateral (                                  -- a point look-up each, never a scan of all approvals
    select o.id from agentrt.approvals o
    where o.session_id = j.session_id and o.tool_call_id = j.data ->> 'call_id' and o.state = 'pending' limit 1
  ) o
  where j.type = 'tool_result' and j.data ->> 'outcome' <> 'ok' and a.id = o.id and a.state = 'pending'
),
updated as (
  update agentrt.sessions s
  set last_seq = d.last_seq + d.entry_count,
    owner_writes = d.writes + 1,
    attempt = case when d.progress then 1 else d.attempt end,
    turns = s.turns + d.turns,
    input_tokens = s.input_tokens + d.input_tokens,
    output_tokens = s.output_tokens + d.output_tokens,
    cost = s.cost + d.cost
  from decided d
  where s.id = d.id and d.answer = 'written'
),
told as materialized (
  select agentrt._notify('agentrt_journal', array_agg(d.id::text)) as journal
  from decided d
  cross join lateral (                                  -- limit: a point look-up each, never a scan of all followers
    select from agentrt.followers f where f.session_id = d.id and f.expires_at > now() limit 1
  ) f
  where d.answer = 'written'
)
select d.n, d.answer, d.status,
  case d.answer
    when 'written' then d.last_seq + d.entry_count
    when 'already' then d.entry_count - 1
      + agentrt._seq_of(d.id, coalesce(d.entries -> 0 ->> 'dedup_key', 'w:' || d.token || ':' || d.writes))
    else d.last_seq
  end as last_seq
from decided d
cross join told
order by d.n
