-- The small functions that worker statements (agentrt/postgres/sql) and client functions are made of.

-- ---- What workers and clients share. All of them expect the session row locked by the caller. -----------------------

-- Version 7 (RFC 9562): 48 bits of milliseconds, then random; PostgreSQL has its own only from 18 on.
create function agentrt.uuid7() returns uuid language sql volatile parallel safe as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;

-- The id of the tool call at position (index in content, from 0) of the answer at seq: 9 characters of [0-9a-f].
create function agentrt._call_id(seq bigint, "position" integer) returns text
language sql immutable strict parallel safe as $$
  select lpad(to_hex(seq % 16777216), 6, '0') || lpad(to_hex("position" % 4096), 3, '0')
$$;

-- One payload holds at most 7,900 bytes: more are split, one item that is longer alone becomes '*' (look at all).
-- Nothing is sent when the queue is half full: a notification is a hint, and a full queue makes commits fail.
create function agentrt._notify(channel text, items text[]) returns void language plpgsql as $$
#variable_conflict use_column
declare
  item text;
  batch text := null;
begin
  if pg_notification_queue_usage() > 0.5 then
    return;
  end if;
  for item in select distinct to_jsonb(i)::text from unnest(items) i where i is not null loop
    if octet_length(item) + 2 > 7900 then
      perform pg_notify(channel, '*');
      return;
    end if;
    if octet_length(batch) + octet_length(item) + 3 > 7900 then
      perform pg_notify(channel, '[' || batch || ']');
      batch := null;
    end if;
    batch := concat_ws(',', batch, item);
  end loop;
  if batch is not null then
    perform pg_notify(channel, '[' || batch || ']');
  end if;
end $$;

-- Writes one entry at last_seq + 1, with run, attempt and token as the row has them now; tells followers.
create function agentrt._append_entry(
  session_id uuid, type text, data jsonb, dedup_key text default null, worker_id uuid default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  head record;
begin
  update agentrt.sessions s set last_seq = s.last_seq + 1 where s.id = _append_entry.session_id
    returning s.last_seq, s.run, s.attempt, s.fencing_token into strict head;
  insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data, dedup_key)
    values (_append_entry.session_id, head.last_seq, head.run, head.attempt, head.fencing_token,
            _append_entry.worker_id, _append_entry.type, _append_entry.data, _append_entry.dedup_key);
  if exists (select from agentrt.followers f
             where f.session_id = _append_entry.session_id and f.expires_at > clock_timestamp()) then
    perform agentrt._notify('agentrt_journal', array[_append_entry.session_id::text]);
  end if;
  return head.last_seq;
end $$;

-- Any status -> queued, as a new run without a message yet. The rest that a cancel left to the old owner is kept.
create function agentrt._new_run(session_id uuid) returns void language plpgsql as $$
#variable_conflict use_column
declare
  moment timestamptz := clock_timestamp();
  head record;
begin
  update agentrt.sessions s
    set status = 'queued', run = s.run + 1, attempt = 0, takeovers = 0, turns = 0, input_tokens = 0, output_tokens = 0,
        cost = 0, running_seconds = 0, outcome = null, suspension = null, finished_at = null, lease_owner = null,
        lease_acquired_at = null, ready_at = greatest(moment, s.ready_at), due = s.ready_at <= moment
    where s.id = _new_run.session_id
    returning s.queue, s.due into strict head;
  if head.due then
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
  perform agentrt._notify('agentrt_control', array[session_id::text]);
end $$;

-- Seqs of the queued messages that neither became a user message nor were dropped by a cancel, oldest first.
create function agentrt._queued_messages(session_id uuid) returns setof bigint language sql stable as $$
  select q.seq from agentrt.journal q
  where q.session_id = _queued_messages.session_id and q.type = 'message_queued'
    and q.seq > coalesce((select max(c.seq) from agentrt.journal c
                          where c.session_id = _queued_messages.session_id and c.type = 'session_cancelled'), 0)
    and not exists (select from agentrt.journal d
                    where d.session_id = q.session_id and d.dedup_key = 'w:message:' || q.seq)
  order by q.seq
$$;

-- completed, failed -> queued when a queued message is left: the oldest begins a new run. After the terminal entry.
create function agentrt._promote(session_id uuid, worker_id uuid default null) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
  message_seq bigint := (select min(m) from agentrt._queued_messages(_promote.session_id) m);
  content jsonb;
begin
  if message_seq is null then
    return false;
  end if;
  select j.data -> 'content' into strict content from agentrt.journal j
    where j.session_id = _promote.session_id and j.seq = message_seq;
  perform agentrt._new_run(session_id);
  perform agentrt._append_entry(session_id, 'user_message',
    jsonb_build_object('content', content, 'message_seq', message_seq), 'w:message:' || message_seq, worker_id);
  return true;
end $$;

-- suspended -> queued. by: message, interrupt, decision, result, expiry, resume.
create function agentrt._wake(session_id uuid, by text, details jsonb default '{}') returns void language plpgsql as $$
#variable_conflict use_column
declare
  moment timestamptz := clock_timestamp();
  head record;
begin
  update agentrt.sessions s
    set status = 'queued', suspension = null, ready_at = greatest(moment, s.ready_at), due = s.ready_at <= moment
    where s.id = _wake.session_id and s.status = 'suspended'
    returning s.queue, s.due into strict head;
  perform agentrt._append_entry(session_id, 'session_woken', jsonb_build_object('by', by) || details);
  if head.due then
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
end $$;

-- Pending approvals of the session -> obsolete. Journaled where the session goes on; a terminal entry says it by itself.
create function agentrt._obsolete_approvals(session_id uuid, journaled boolean default false) returns integer
language plpgsql as $$
#variable_conflict use_column
declare
  approval record;
  closed integer := 0;
begin
  for approval in
    update agentrt.approvals a set state = 'obsolete', decided_at = clock_timestamp()
      where a.session_id = _obsolete_approvals.session_id and a.state = 'pending'
      returning a.id, a.tool_call_id
  loop
    closed := closed + 1;
    if journaled then
      perform agentrt._append_entry(session_id, 'approval_decided',
        jsonb_build_object('approval_id', approval.id, 'call_id', approval.tool_call_id, 'verdict', 'obsolete'));
    end if;
  end loop;
  return closed;
end $$;

-- Whether one more crash of a session is one too many.
create function agentrt._exhausted(attempt integer, max_attempts integer, takeovers integer) returns boolean
language sql immutable as $$ select attempt >= max_attempts or takeovers + 1 >= 20 $$;

-- The outcome of a run that has crashed too often; the entry of last_type tells of the last time.
create function agentrt._exhausted_outcome(attempt integer, takeovers integer, last_type text) returns jsonb
language sql stable as $$
  select jsonb_build_object('code', 'attempts_exhausted', 'message', format(
    'its workers crashed without a committed step in between: %s in a row, %s in this run; the last time is told by '
    'the entry %s', attempt, takeovers + 1, last_type))
$$;

-- A reap charges the crash: running -> queued with a back-off and a new token, or failed when the attempts are used up
-- (then perhaps queued again, by a queued message). Returns the status afterwards, and the run if it failed. A crash
-- release is charged by end.sql in the same way.
create function agentrt._charge_orphan(
  session_id uuid, entry_data jsonb, judge uuid, out status text, out exhausted jsonb
) language plpgsql as $$
#variable_conflict use_column
declare
  moment timestamptz := clock_timestamp();
  head agentrt.sessions;
  ending jsonb;
begin
  update agentrt.sessions s
    set fencing_token = s.fencing_token + 1, status = 'queued', lease_owner = null, lease_acquired_at = null,
        running_seconds = s.running_seconds + extract(epoch from moment - s.lease_acquired_at)
    where s.id = _charge_orphan.session_id and s.status = 'running'
    returning s.* into strict head;
  perform agentrt._append_entry(session_id, 'session_orphaned', entry_data, worker_id => judge);
  if agentrt._exhausted(head.attempt, head.max_attempts, head.takeovers) then
    ending := agentrt._exhausted_outcome(head.attempt, head.takeovers, 'session_orphaned');
    update agentrt.sessions s set status = 'failed', outcome = ending, finished_at = moment
      where s.id = _charge_orphan.session_id;
    perform agentrt._obsolete_approvals(session_id);
    perform agentrt._append_entry(session_id, 'session_failed', jsonb_build_object('outcome', ending),
                                  worker_id => judge);
    exhausted := jsonb_build_object('session_id', head.id, 'agent', head.agent, 'queue', head.queue, 'run', head.run,
                                    'attempt', head.attempt, 'fencing_token', head.fencing_token);
    status := case when agentrt._promote(session_id, judge) then 'queued' else 'failed' end;
    return;
  end if;
  update agentrt.sessions s
    set attempt = s.attempt + 1, takeovers = s.takeovers + 1,
        ready_at = moment + agentrt._crash_delay(head.attempt), due = head.attempt < 2
    where s.id = _charge_orphan.session_id;
  if head.attempt < 2 then
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
  status := 'queued';
end $$;

-- Nothing after the first crash in a row, then 2, 4, 8 … 60 s, each between half and all of it.
create function agentrt._crash_delay(attempt integer) returns interval language sql volatile as $$
  select make_interval(secs => case when attempt < 2 then 0
    else least(60, 2 ^ (least(attempt, 10) - 1)) * (0.5 + random() / 2) end)
$$;

-- How long the tools of a running session's owner may need to stop after it lost the session: one of its heartbeats.
create function agentrt._rest(lease_owner uuid) returns interval language sql stable as $$
  select make_interval(secs => coalesce(
    (select w.heartbeat_seconds from agentrt.workers w where w.id = _rest.lease_owner), 2))
$$;

-- ---- What workers call (their statements are agentrt/postgres/sql) -------------------------------------------------

-- The data of the answer at seq, each of its tool calls with its id: an owner cannot know seq before the commit.
create function agentrt._with_call_ids(data jsonb, seq bigint) returns jsonb language sql immutable as $$
  select case when not jsonb_path_exists(data, 'strict $.content[*] ? (@.type == "tool_call")', silent => true) then data
    else jsonb_set(data, '{content}', (
      select jsonb_agg(
        case when block ->> 'type' = 'tool_call'
          then block || jsonb_build_object('call_id', agentrt._call_id(seq, (n - 1)::integer)) else block end
        order by n)
      from jsonb_array_elements(data -> 'content') with ordinality as b(block, n)))
    end
$$;

-- The data of an approval_requested; the one that came with its answer has the call's position instead of its id.
create function agentrt._with_call_id(data jsonb, answer_seq bigint) returns jsonb language sql immutable as $$
  select case when data ? 'position' and answer_seq is not null
    then data - 'position' || jsonb_build_object('call_id',
      agentrt._call_id(answer_seq, (data ->> 'position')::integer))
    else data end
$$;

-- For end.sql: the next run's message, if any. VOLATILE on purpose: it sees what was committed before the caller had
-- the row lock, while the caller's own snapshot may be older.
create function agentrt._oldest_queued(session_id uuid, out seq bigint, out content jsonb) returns setof record
language plpgsql strict volatile rows 1 as $$
#variable_conflict use_column
begin
  return query
    select j.seq, j.data -> 'content'
    from agentrt.journal j
    where j.session_id = _oldest_queued.session_id
      and j.seq = (select min(m) from agentrt._queued_messages(_oldest_queued.session_id) m);
end $$;

-- For pages: about how large data is, without fetching it. What is compressed is taken for eight times as large.
create function agentrt._about_bytes(data jsonb) returns bigint language sql stable as $$
  select pg_column_size(data)::bigint * case when pg_column_compression(data) is null then 1 else 8 end
$$;

-- For append.sql: where the entry with this key stands. VOLATILE for the same reason.
create function agentrt._seq_of(session_id uuid, dedup_key text) returns bigint language plpgsql strict volatile as $$
#variable_conflict use_column
begin
  return (select j.seq from agentrt.journal j
          where j.session_id = _seq_of.session_id and j.dedup_key = _seq_of.dedup_key);
end $$;
