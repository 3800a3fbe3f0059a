-- What clients call, on sessions that exist. Each locks the session row first and decides on what it finds there.

-- ---- Messages -------------------------------------------------------------------------------------------------------

-- An earlier message with the same request id: its seq when it was the same message, refused when not, null when none.
create function agentrt._sent_before(session_id uuid, dedup_key text, content jsonb, mode text) returns bigint
language plpgsql as $$
#variable_conflict use_column
declare
  sent record;
begin
  select j.seq, j.type, j.data into sent from agentrt.journal j
    where j.session_id = _sent_before.session_id and j.dedup_key = _sent_before.dedup_key;
  if not found then
    return null;
  end if;
  if sent.data -> 'content' is distinct from _sent_before.content
     or (sent.type = 'message_queued' and mode <> 'queue')
     or (coalesce(sent.data ->> 'when_running', 'steer') = 'interrupt') <> (mode = 'interrupt') then
    perform agentrt._refuse('AR003', format('request_id %s was used for another message (entry %s): use a new one',
      left(sent.data ->> 'request_id', 200), sent.seq), jsonb_build_object('session_id', session_id, 'seq', sent.seq));
  end if;
  return sent.seq;
end $$;

-- Sends a message; returns the seq of its entry. when_running says what a run that is on does with it: steer (sees it at
-- the next turn), queue (it begins the next run), interrupt (what is in flight is cancelled first), reject.
create function agentrt.send_message(session_id uuid, message text, options jsonb default '{}') returns bigint
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{content,request_id,when_running}');
  content jsonb := agentrt._content(message, asked);
  mode text := coalesce(agentrt._text_option(asked, 'when_running'), 'steer');
  request_id text := agentrt._text_option(asked, 'request_id');
  dedup_key text := 'c:' || case when octet_length(request_id) <= 500 then request_id
    else 'sha256:' || encode(sha256(convert_to(request_id, 'UTF8')), 'hex') end;
  head agentrt.sessions;
  seq bigint;
  active boolean;
begin
  if mode <> all ('{steer,queue,interrupt,reject}') then
    perform agentrt._wrong_option('when_running', asked -> 'when_running', 'steer, queue, interrupt or reject');
  end if;
  head := agentrt._lock_session(session_id);
  if dedup_key is not null then
    seq := agentrt._sent_before(session_id, dedup_key, content, mode);
    if seq is not null then
      return seq;
    end if;
  end if;
  active := head.status in ('queued', 'running') or head.status = 'suspended' and head.suspension ->> 'reason' <> 'input';
  if head.archived_at is not null or active and mode = 'reject' then
    perform agentrt._refuse_status(head, 'a message with when_running reject', 'a session that waits for input or has ended');
  end if;
  if head.status in ('completed', 'failed', 'cancelled') then
    perform agentrt._new_run(session_id);
  end if;
  seq := agentrt._append_entry(session_id, case when active and mode = 'queue' then 'message_queued' else 'user_message' end,
    jsonb_build_object('content', content) || jsonb_strip_nulls(jsonb_build_object(
      'request_id', request_id, 'when_running', case when mode = 'interrupt' then mode end)), dedup_key);
  if mode = 'interrupt' and active then
    perform agentrt._obsolete_approvals(session_id, journaled => true);
  end if;
  if head.status = 'suspended' and head.suspension ->> 'reason' = 'input' then
    perform agentrt._wake(session_id, 'message');
  elsif head.status = 'suspended' and head.suspension ->> 'reason' = 'approval' and mode = 'interrupt' then
    perform agentrt._wake(session_id, 'interrupt');
  elsif head.status = 'running' then
    perform agentrt._notify('agentrt_control', array[session_id::text]);
  elsif head.status = 'queued' and head.due then  -- a claim may have skipped the row because of our lock
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
  return seq;
end $$;

-- ---- Cancel, resume, retry, archive, release -------------------------------------------------------------------------

-- Takes a running session from its owner: the token moves on, nothing that the owner still sends is written. The next
-- owner starts no earlier than the old one's tools have stopped.
create function agentrt._take_away(head agentrt.sessions) returns void language plpgsql as $$
#variable_conflict use_column
declare
  moment timestamptz := clock_timestamp();
begin
  update agentrt.sessions s
    set fencing_token = s.fencing_token + 1, status = 'queued', lease_owner = null, lease_acquired_at = null,
        running_seconds = s.running_seconds + extract(epoch from moment - s.lease_acquired_at),
        ready_at = moment + agentrt._rest(head.lease_owner), due = false
    where s.id = head.id;
  perform agentrt._notify('agentrt_control', array[head.id::text]);
end $$;

-- Cancels at once, whoever owns it. options: reason; run (only if this run is on). Cancelling twice changes nothing.
create function agentrt.cancel_session(session_id uuid, options jsonb default '{}') returns text
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{reason,run}');
  reason jsonb := jsonb_strip_nulls(jsonb_build_object('reason', agentrt._text_option(asked, 'reason')));
  run integer := agentrt._integer_option(asked, 'run', 1, 2147483647);
  head agentrt.sessions := agentrt._lock_session(session_id);
  moment timestamptz := clock_timestamp();
  dropped jsonb;
begin
  if head.archived_at is not null or head.status in ('completed', 'failed') then
    perform agentrt._refuse_status(head, 'cancel', 'a session that is queued, running or suspended');
  end if;
  perform agentrt._check_run(head, run);
  if head.status = 'cancelled' then
    return 'cancelled';
  end if;
  select coalesce(jsonb_agg(m order by m), '[]') into dropped from agentrt._queued_messages(session_id) m;
  if head.status = 'running' then
    perform agentrt._take_away(head);
  else  -- what it was scheduled for is void; only the rest of an earlier owner is kept
    update agentrt.sessions s
      set fencing_token = s.fencing_token + 1,
          ready_at = least(s.ready_at, moment + make_interval(secs =>
            (select coalesce(max(w.heartbeat_seconds), 2) from agentrt.workers w)))
      where s.id = head.id;
  end if;
  update agentrt.sessions s set status = 'cancelled', outcome = reason, suspension = null, finished_at = moment
    where s.id = head.id;
  perform agentrt._obsolete_approvals(session_id);
  perform agentrt._append_entry(session_id, 'session_cancelled', reason || jsonb_build_object('dropped', dropped));
  return 'cancelled';
end $$;

-- Wakes a suspended session by hand. options: force (open approvals become obsolete, else they are in the way); limits
-- ({turns, tokens, cost, running_seconds}; null lifts one), merged into the session's config.
create function agentrt.resume_session(session_id uuid, options jsonb default '{}') returns text
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{force,limits}');
  force boolean := agentrt._boolean_option(asked, 'force');
  limits jsonb := coalesce(asked -> 'limits', '{}');
  head agentrt.sessions := agentrt._lock_session(session_id);
  pending integer;
begin
  perform agentrt._check_limits('limits', limits);
  if head.status <> 'suspended' then
    perform agentrt._refuse_status(head, 'resume', 'a session that is suspended');
  end if;
  select count(*) into pending from agentrt.approvals a where a.session_id = head.id and a.state = 'pending';
  if pending > 0 and not force then
    perform agentrt._refuse('AR002', format(case pending
      when 1 then 'session %s is suspended and %s approval is open: decide it, or resume with force, which makes it obsolete'
      else 'session %s is suspended and %s approvals are open: decide them, or resume with force, which makes them obsolete'
      end, head.id, pending),
      jsonb_build_object('session_id', head.id, 'status', head.status, 'open_approvals', pending));
  end if;
  perform agentrt._obsolete_approvals(session_id, journaled => true);
  if limits <> '{}' then
    update agentrt.sessions s
      set config = s.config || jsonb_build_object('limits', coalesce(s.config -> 'limits', '{}') || limits)
      where s.id = head.id;
  end if;
  perform agentrt._wake(session_id, 'resume',
    case when force then '{"force": true}'::jsonb else '{}' end
      || case when limits <> '{}' then jsonb_build_object('limits', limits) else '{}' end);
  return 'queued';
end $$;

create function agentrt._check_limits(name text, limits jsonb) returns void language plpgsql as $$
#variable_conflict use_column
begin
  if jsonb_typeof(limits) <> 'object' or exists (
      select from jsonb_each(case jsonb_typeof(limits) when 'object' then limits else '{}' end) where not case
        when key <> all ('{turns,tokens,cost,running_seconds}') then false
        when jsonb_typeof(value) = 'null' then true
        when jsonb_typeof(value) <> 'number' then false
        else value::numeric > 0 and (key not in ('turns', 'tokens') or value::numeric % 1 = 0) end) then
    perform agentrt._wrong_option(name, limits,
      'an object of positive numbers or null: turns and tokens (whole), cost, running_seconds');
  end if;
end $$;

-- Begins a new run of a failed or cancelled session without a new message. options: run (only if it was this run).
create function agentrt.retry_session(session_id uuid, options jsonb default '{}') returns text
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{run}');
  run integer := agentrt._integer_option(asked, 'run', 1, 2147483647);
  head agentrt.sessions := agentrt._lock_session(session_id);
begin
  if head.archived_at is not null or head.status not in ('failed', 'cancelled') then
    perform agentrt._refuse_status(head, 'retry', 'a session that has failed or was cancelled');
  end if;
  perform agentrt._check_run(head, run);
  perform agentrt._new_run(session_id);
  perform agentrt._append_entry(session_id, 'session_retried', '{}');
  return 'queued';
end $$;

-- Closes a session that has ended for good: from now on it can only be read (and deleted by retention).
create function agentrt.archive_session(session_id uuid, options jsonb default '{}') returns text
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{}');
  head agentrt.sessions := agentrt._lock_session(session_id);
begin
  if head.status not in ('completed', 'failed', 'cancelled') then
    perform agentrt._refuse_status(head, 'archive', 'a session that has ended');
  end if;
  update agentrt.sessions s set archived_at = clock_timestamp() where s.id = head.id and s.archived_at is null;
  return head.status;
end $$;

-- Takes a running session from its worker without charging it. options: reason, for people.
create function agentrt.release_session(session_id uuid, options jsonb default '{}') returns text
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{reason}');
  reason text := agentrt._text_option(asked, 'reason');
  head agentrt.sessions := agentrt._lock_session(session_id);
begin
  if head.status <> 'running' then
    perform agentrt._refuse_status(head, 'release', 'a session that is running');
  end if;
  perform agentrt._take_away(head);
  perform agentrt._append_entry(session_id, 'session_released',
    jsonb_strip_nulls(jsonb_build_object('reason', 'forced', 'message', reason)));
  return 'queued';
end $$;

-- ---- Reading --------------------------------------------------------------------------------------------------------

-- Entries behind after_seq, in order, at most max_entries, and fewer when they are large: no more than one behind 8 MiB.
-- Those that are there have been read when none is left.
create function agentrt.read_journal(session_id uuid, after_seq bigint default 0, max_entries integer default 500)
returns table (seq bigint, run integer, attempt integer, fencing_token bigint, worker_id uuid, type text, data jsonb,
               created_at timestamptz)
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  last_seq bigint;
begin
  perform agentrt._check_options('{}', '{}');
  if not coalesce(max_entries between 1 and 10000, false) then
    perform agentrt._refuse('AR004', format('max_entries must be from 1 to 10000, not %s', coalesce(max_entries::text, 'null')));
  end if;
  select s.last_seq into last_seq from agentrt.sessions s where s.id = read_journal.session_id;
  if not found then
    perform agentrt._refuse_unknown('session', session_id);
  end if;
  if not coalesce(after_seq between 0 and last_seq, false) then
    perform agentrt._refuse('AR004', format('after_seq must be from 0 to %s, the last seq of session %s, not %s',
      last_seq, session_id, coalesce(after_seq::text, 'null')), jsonb_build_object('last_seq', last_seq));
  end if;
  return query
    select j.seq, j.run, j.attempt, j.fencing_token, j.worker_id, j.type, j.data, j.created_at
    from (
      select e.*, sum(agentrt._about_bytes(e.data)) over (order by e.seq rows unbounded preceding) as bytes
      from agentrt.journal e
      where e.session_id = read_journal.session_id and e.seq > read_journal.after_seq
      order by e.seq limit read_journal.max_entries
    ) j
    where j.bytes - agentrt._about_bytes(j.data) < 8388608
    order by j.seq;
end $$;

-- Says that somebody follows the session for so many seconds: whoever writes notifies about its entries. Called again
-- before they are over. Returns until when.
create function agentrt.follow_session(session_id uuid, seconds integer default 30) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  -- one row for each database role: who reads does not matter, only until when somebody does
  follower uuid := md5(session_user)::uuid;
  status text;
  before timestamptz;
  until timestamptz;
begin
  perform agentrt._check_options('{}', '{}');
  if not coalesce(seconds between 1 and 3600, false) then
    perform agentrt._refuse('AR004', format('seconds must be from 1 to 3600, not %s', coalesce(seconds::text, 'null')));
  end if;
  select s.status into status from agentrt.sessions s where s.id = follow_session.session_id for key share;
  if not found then
    perform agentrt._refuse_unknown('session', session_id);
  end if;
  select max(f.expires_at) into before from agentrt.followers f where f.session_id = follow_session.session_id;
  insert into agentrt.followers as f (session_id, follower, expires_at)
    values (follow_session.session_id, follower, clock_timestamp() + make_interval(secs => seconds))
    on conflict (session_id, follower) do update set expires_at = greatest(f.expires_at, excluded.expires_at)
    returning f.expires_at into until;
  if status = 'running' and coalesce(before < clock_timestamp(), true) then
    perform agentrt._notify('agentrt_control', array[session_id::text]);
  end if;
  return until;
end $$;

revoke execute on all functions in schema agentrt from public;
