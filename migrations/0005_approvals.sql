-- What a suspended session waits for: decisions of people, results of deferred tool calls, expiry.

-- Call ids, or words for people; whatever was stored.
create function agentrt._waits_for(suspension jsonb) returns setof text language sql immutable as $$
  select w from jsonb_array_elements_text(
    case jsonb_typeof(suspension -> 'waits_for') when 'array' then suspension -> 'waits_for' else '[]' end) w
$$;

-- The seq of the answer that the call stands in, as the call id holds it; null when it is no call id.
create function agentrt._answer_seq(call_id text) returns integer language sql immutable as $$
  select case when call_id ~ '^[0-9a-f]{9}$' then ('x' || lpad(left(call_id, 6), 8, '0'))::bit(32)::integer end
$$;

-- Whether its tool has said that the call's result comes from outside.
create function agentrt._is_deferred(session_id uuid, call_id text) returns boolean language sql volatile as $$
  select exists (select from agentrt.journal j
    where j.session_id = _is_deferred.session_id and j.type = 'tool_started'
      and j.seq > agentrt._answer_seq(_is_deferred.call_id)
      and j.data ->> 'call_id' = _is_deferred.call_id and j.data ->> 'deferred' = 'true')
$$;

-- What is left of what the session waits for: every open approval of its own, and the results of the deferred calls in
-- waits_for; those that were suspended for their approval need no result to go on. A call with a result misses nothing.
create function agentrt._missing(head agentrt.sessions, out call_id text, out what text) returns setof record
language sql volatile as $$
  select o.call_id, o.what
  from (
    select a.tool_call_id, 'a decision' from agentrt.approvals a where a.session_id = head.id and a.state = 'pending'
    union all
    select w, 'a result' from agentrt._waits_for(head.suspension) w where agentrt._is_deferred(head.id, w)
  ) o (call_id, what)
  where not exists (
    select from agentrt.journal j where j.session_id = head.id and j.dedup_key = 'w:result:' || o.call_id)
$$;

-- After a decision, result or expiry: suspended -> queued when it was the last, else the suspension says what is left;
-- tells the owner of a running session. head as it was locked. Returns the status afterwards.
create function agentrt._settle(head agentrt.sessions, by text) returns text language plpgsql as $$
#variable_conflict use_column
begin
  if head.status = 'running' then
    perform agentrt._notify('agentrt_control', array[head.id::text]);
  elsif head.status = 'suspended' and head.suspension ->> 'reason' in ('approval', 'external') then
    if not exists (select from agentrt._missing(head)) then
      perform agentrt._wake(head.id, by);
      return 'queued';
    end if;
    update agentrt.sessions s set suspension = agentrt._with_expiry(head.id, agentrt._still_waiting(head))
      where s.id = head.id;
  end if;
  return head.status;
end $$;

-- The suspension without the calls that it no longer waits for; external when there is nothing left to decide.
create function agentrt._still_waiting(head agentrt.sessions) returns jsonb language plpgsql volatile as $$
#variable_conflict use_column
declare
  calls text[];
  decisions boolean;
  words text;
begin
  select array_agg(m.call_id), bool_or(m.what = 'a decision') into calls, decisions from agentrt._missing(head) m;
  select string_agg(format('waits for %s: %s', l.what, l.tools), '; ' order by l.what) into words
    from (select m.what, string_agg(coalesce((agentrt._find_call(head.id, m.call_id)).tool, m.call_id), ', '
                                    order by m.call_id) as tools
          from agentrt._missing(head) m group by m.what) l;
  return head.suspension || jsonb_build_object(
    'reason', case when decisions then head.suspension ->> 'reason' else 'external' end,
    'message', words,
    'waits_for', (select coalesce(jsonb_agg(w order by n), '[]')
      from agentrt._waits_for(head.suspension) with ordinality e (w, n)
      where w = any (calls) or agentrt._answer_seq(w) is null));
end $$;

-- Decides an approval: verdict approved or rejected. options: arguments_hash (the one that the reviewer saw; refused when
-- it is not the stored one), comment. reviewer is the caller's word. Returns the session's status afterwards.
create function agentrt.decide_approval(approval_id uuid, verdict text, reviewer text, options jsonb default '{}')
returns text language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{arguments_hash,comment}');
  arguments_hash text := agentrt._text_option(asked, 'arguments_hash');
  words text := agentrt._text_option(asked, 'comment');
  owner uuid;
  head agentrt.sessions;
  approval agentrt.approvals;
begin
  if not coalesce(verdict in ('approved', 'rejected'), false) then
    perform agentrt._refuse('AR004', format('verdict must be approved or rejected, not %s', coalesce(left(verdict, 100), 'null')));
  end if;
  if coalesce(reviewer, '') = '' or octet_length(reviewer) > 1048576 then
    perform agentrt._refuse('AR004', 'reviewer must be a name: say who decides');
  end if;
  select a.session_id into owner from agentrt.approvals a where a.id = approval_id;
  if not found then
    perform agentrt._refuse_unknown('approval', approval_id);
  end if;
  head := agentrt._lock_session(owner);
  select * into strict approval from agentrt.approvals a where a.id = approval_id;
  if arguments_hash <> approval.arguments_hash then
    perform agentrt._refuse('AR005', format('approval %s is for arguments with the hash %s, not %s: look at them again',
      approval.id, approval.arguments_hash, left(arguments_hash, 100)),
      jsonb_build_object('approval_id', approval.id, 'arguments_hash', approval.arguments_hash));
  end if;
  if approval.state in ('approved', 'rejected') then
    if approval.state = verdict and approval.decided_by = reviewer and approval.comment is not distinct from words then
      return head.status;
    end if;
    perform agentrt._refuse('AR003', format('approval %s was %s by %s already', approval.id, approval.state,
      left(approval.decided_by, 100)),
      jsonb_build_object('approval_id', approval.id, 'state', approval.state, 'decided_by', approval.decided_by));
  end if;
  if head.archived_at is not null then
    perform agentrt._refuse_status(head, 'a decision', 'a session that goes on');
  end if;
  if approval.state <> 'pending' or approval.expires_at <= clock_timestamp() then
    perform agentrt._refuse('AR002', format('approval %s is %s, session %s is %s: it can no longer be decided', approval.id,
      case approval.state when 'pending' then 'expired' else approval.state end, head.id, head.status),
      jsonb_build_object('approval_id', approval.id, 'session_id', head.id, 'status', head.status));
  end if;
  update agentrt.approvals a
    set state = verdict, decided_at = clock_timestamp(), decided_by = reviewer, comment = words
    where a.id = approval.id;
  perform agentrt._append_entry(head.id, 'approval_decided', jsonb_strip_nulls(jsonb_build_object(
    'approval_id', approval.id, 'call_id', approval.tool_call_id, 'verdict', verdict, 'reviewer', reviewer,
    'comment', words)));
  return agentrt._settle(head, 'decision');
end $$;

-- For the sweep: what one session has waited for too long: its approvals -> expired, and its deferred calls get a result
-- that says so. Nothing when a client holds the session just now: the next sweep comes. Returns how many.
create function agentrt._expire(session_id uuid) returns integer language plpgsql as $$
#variable_conflict use_column
declare
  head agentrt.sessions;
  approval record;
  call record;
  expired integer := 0;
begin
  select * into head from agentrt.sessions s where s.id = _expire.session_id for no key update skip locked;
  if not found then
    return 0;
  end if;
  for approval in
    update agentrt.approvals a set state = 'expired', decided_at = clock_timestamp()
      where a.session_id = head.id and a.state = 'pending' and a.expires_at <= clock_timestamp()
      returning a.id, a.tool_call_id
  loop
    expired := expired + 1;
    perform agentrt._append_entry(head.id, 'approval_decided',
      jsonb_build_object('approval_id', approval.id, 'call_id', approval.tool_call_id, 'verdict', 'expired'));
  end loop;
  for call in
    select * from agentrt._deferred_calls(head.id, head.suspension) d where d.expires_at <= clock_timestamp()
  loop
    expired := expired + 1;
    perform agentrt._append_entry(head.id, 'tool_result', jsonb_build_object(
      'call_id', call.call_id, 'tool', call.tool, 'content', agentrt._expired_words(call.effect, call.expires_seconds),
      'outcome', case when call.effect in ('once', 'transactional') then 'unknown' else 'timeout' end,
      'seconds', extract(epoch from clock_timestamp() - call.called_at)), 'w:result:' || call.call_id);
  end loop;
  if expired > 0 then
    perform agentrt._settle(head, 'expiry');
  else
    update agentrt.sessions s set suspension = agentrt._with_expiry(s.id, s.suspension)
      where s.id = head.id and s.status = 'suspended';
  end if;
  return expired;
end $$;

-- The deferred calls that a suspended session waits for, and when each has waited for too long. Those without a limit
-- are not among them.
create function agentrt._deferred_calls(
  session_id uuid, suspension jsonb, out call_id text, out tool text, out effect text, out expires_seconds numeric,
  out called_at timestamptz, out expires_at timestamptz
) returns setof record language sql stable as $$
  select w, j.data ->> 'tool', j.data ->> 'effect', l.seconds, j.created_at,
    j.created_at + make_interval(secs => l.seconds::float8)
  from agentrt._waits_for(suspension) w
  join agentrt.journal j on j.session_id = _deferred_calls.session_id and j.type = 'tool_started'
    and j.seq > agentrt._answer_seq(w)
    and j.data ->> 'call_id' = w and j.data ->> 'deferred' = 'true'
  cross join lateral (select case jsonb_typeof(j.data -> 'expires_seconds') when 'number'
    then least(greatest((j.data ->> 'expires_seconds')::numeric, 0), 1e9) end as seconds) l
  where l.seconds is not null
    and not exists (select from agentrt.journal r where r.session_id = j.session_id and r.dedup_key = 'w:result:' || w)
$$;

-- The suspension with expires_at: when the first of its deferred calls has waited for too long. Looks with a fresh
-- snapshot, since the caller has just locked the session.
create function agentrt._with_expiry(session_id uuid, suspension jsonb) returns jsonb language plpgsql volatile as $$
#variable_conflict use_column
declare
  first timestamptz := (select min(d.expires_at) from agentrt._deferred_calls(session_id, suspension) d);
begin
  return case when first is null then suspension - 'expires_at'
    else suspension || jsonb_build_object('expires_at', agentrt._moment(first)) end;
end $$;

-- A moment as text that sorts like the moment: UTC, always of the same length.
create function agentrt._moment(moment timestamptz) returns text language sql stable as $$
  select to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- What the model reads of a deferred call without a result; for effects once and transactional, whose deferral left
-- something behind, as of every call whose end nobody saw.
create function agentrt._expired_words(effect text, seconds numeric) returns text language sql immutable as $$
  select case
    when effect in ('once', 'transactional') then format('The outcome is unknown: no result came within %s s. The call may or may not have had its '
      'effect. Assume neither; find out before you rely on it or repeat it.', trim_scale(seconds))
    else format('No result came within %s s.', trim_scale(seconds))
  end
$$;

-- ---- Results from outside -------------------------------------------------------------------------------------------

-- The tool that the call names, and when it was called.
create function agentrt._find_call(session_id uuid, call_id text, out tool text, out run integer, out called_at timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select b ->> 'tool', j.run, j.created_at into tool, run, called_at
    from agentrt.journal j, jsonb_array_elements(j.data -> 'content') b
    where j.session_id = _find_call.session_id and j.type = 'assistant_message'
      and j.seq = agentrt._answer_seq(_find_call.call_id)
      and b ->> 'type' = 'tool_call' and b ->> 'call_id' = _find_call.call_id;
end $$;

-- Gives a deferred tool call its result, from anywhere, once. options: outcome (ok, the default, or error). Returns the
-- session's status afterwards.
create function agentrt.complete_tool_call(session_id uuid, call_id text, result text, options jsonb default '{}')
returns text language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{outcome}');
  outcome text := coalesce(agentrt._text_option(asked, 'outcome'), 'ok');
  head agentrt.sessions;
  call record;
  stored jsonb;
begin
  if outcome not in ('ok', 'error') then
    perform agentrt._wrong_option('outcome', asked -> 'outcome', 'ok or error');
  end if;
  if result is null or octet_length(result) > 8388608 then
    perform agentrt._refuse('AR004', format('the result must be a text of at most 8388608 bytes, not %s',
      coalesce(octet_length(result) || ' bytes', 'null')));
  end if;
  head := agentrt._lock_session(session_id);
  select j.data into stored from agentrt.journal j
    where j.session_id = head.id and j.dedup_key = 'w:result:' || complete_tool_call.call_id;
  if found then
    if stored ->> 'content' = result and stored ->> 'outcome' = outcome then
      return head.status;
    end if;
    perform agentrt._refuse('AR003', format('call %s has another result already (%s)', call_id, stored ->> 'outcome'),
      jsonb_build_object('session_id', head.id, 'call_id', call_id, 'outcome', stored -> 'outcome'));
  end if;
  if head.archived_at is not null or head.status in ('completed', 'failed', 'cancelled') then
    perform agentrt._refuse_status(head, 'a result', 'a session that goes on');
  end if;
  call := agentrt._find_call(session_id, call_id);
  if call.tool is null then
    perform agentrt._refuse('AR001', format('no call %s in session %s', coalesce(left(call_id, 100), 'null'), head.id));
  end if;
  perform agentrt._check_waiting(head, call_id, call.run);
  perform agentrt._append_entry(session_id, 'tool_result', jsonb_build_object(
    'call_id', call_id, 'tool', call.tool, 'content', result, 'outcome', outcome,
    'seconds', extract(epoch from clock_timestamp() - call.called_at)), 'w:result:' || call_id);
  return agentrt._settle(head, 'result');
end $$;

-- A result is taken while its run is on, and only of a call that its tool has deferred: one that still waits for
-- approval, was rejected, or is being run gets its result from the worker. A suspended session takes only those that it
-- waits for.
create function agentrt._check_waiting(head agentrt.sessions, call_id text, run integer) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  perform agentrt._check_run(head, run);
  if exists (select from agentrt.approvals a
             where a.session_id = head.id and a.tool_call_id = _check_waiting.call_id and a.state = 'pending') then
    perform agentrt._refuse_status(head, format('a result of call %s', call_id), 'its approval first');
  end if;
  if not agentrt._is_deferred(head.id, call_id) then
    perform agentrt._refuse_status(head, format('a result of call %s', call_id), 'that its tool has deferred it');
  end if;
  if head.status = 'suspended' and not coalesce(head.suspension -> 'waits_for' ? call_id, false) then
    perform agentrt._refuse_status(head, format('a result of call %s', call_id), 'a session that waits for it');
  end if;
end $$;

revoke execute on all functions in schema agentrt from public;
