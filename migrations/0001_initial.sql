-- The schema of agentrt: sessions, their journal, the workers that run them, and what clients call.
-- PostgreSQL 15 or newer. Forward only; recorded in agentrt.schema_migrations by `agentrt migrate`.

create schema if not exists agentrt;

-- The head of a session: who owns it, where it stands. fillfactor leaves room for HOT updates: no index and no index
-- predicate may name a column that each owner write changes (last_seq, owner_writes, the counters).
create table agentrt.sessions (
  id                uuid primary key,
  agent             text not null,
  queue             text not null default 'default',
  priority          smallint not null default 0,
  status            text not null default 'queued'
                    check (status in ('queued', 'running', 'suspended', 'completed', 'failed', 'cancelled')),
  run               integer not null default 1 check (run >= 1),
  attempt           integer not null default 0 check (attempt >= 0),
  takeovers         integer not null default 0 check (takeovers >= 0),
  max_attempts      integer not null default 5 check (max_attempts >= 1),
  fencing_token     bigint not null default 0,
  owner_writes      bigint not null default 0,
  lease_owner       uuid,                                -- a worker; no foreign key: its row may be pruned at any time
  lease_acquired_at timestamptz,
  ready_at          timestamptz not null default now(),
  due               boolean not null default true,      -- may be claimed now; the sweep sets it once ready_at has passed
  last_seq          bigint not null default 0,
  suspension        jsonb,
  outcome           jsonb,
  config            jsonb not null default '{}',
  labels            jsonb not null default '{}',
  tenant            text,
  parent_id         uuid,
  dedup_key         text,
  request_hash      text,                               -- of the create call's arguments: same key, other arguments is a conflict
  turns             integer not null default 0,         -- this and the next four: of this run
  input_tokens      bigint not null default 0,
  output_tokens     bigint not null default 0,
  cost              numeric(20, 10) not null default 0,
  running_seconds   double precision not null default 0, -- of earlier ownerships; the present one counts from lease_acquired_at
  created_at        timestamptz not null default now(),
  finished_at       timestamptz,
  archived_at       timestamptz,
  check ((status = 'running') = (lease_owner is not null)),
  check ((lease_owner is null) = (lease_acquired_at is null)),
  check ((status = 'suspended') = (suspension is not null)),
  check ((status in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
  check (archived_at is null or finished_at is not null)
) with (fillfactor = 70);

create unique index sessions_dedup on agentrt.sessions (tenant, agent, dedup_key) nulls not distinct
  where dedup_key is not null;
create index sessions_claim on agentrt.sessions (queue, agent, priority desc, ready_at, id)
  where status = 'queued' and due and attempt < 3;
create index sessions_claim_fragile on agentrt.sessions (queue, agent, priority desc, ready_at, id)
  where status = 'queued' and due and attempt >= 3;
create index sessions_timer on agentrt.sessions (ready_at) where status = 'queued' and not due;
create index sessions_owner on agentrt.sessions (lease_owner) where status = 'running';
create index sessions_created on agentrt.sessions (created_at, id);

-- The append-only record of everything that happened to a session; seq is gapless from 1.
create table agentrt.journal (
  session_id    uuid not null,
  seq           bigint not null check (seq >= 1),
  run           integer not null,
  attempt       integer not null,
  fencing_token bigint not null,
  worker_id     uuid,                                   -- null: written for a client
  type          text not null,
  data          jsonb not null default '{}',
  dedup_key     text,                                   -- 'c:…' clients, 'w:…' workers
  created_at    timestamptz not null default clock_timestamp(),
  primary key (session_id, seq)
);
create unique index journal_dedup on agentrt.journal (session_id, dedup_key) where dedup_key is not null;

-- One row per process incarnation.
create table agentrt.workers (
  id                uuid primary key,
  name              text not null,
  host              text not null,
  pid               integer not null,
  version           text not null,
  agents            text[] not null default '{}',
  queues            text[] not null default '{}',
  slots             integer not null,
  state             text not null default 'alive' check (state in ('alive', 'draining', 'dead', 'stopped')),
  started_at        timestamptz not null default clock_timestamp(),
  renewed_at        timestamptz not null default clock_timestamp(),
  renewing_since    timestamptz not null default clock_timestamp(),  -- start of the gapless series of heartbeats
  heartbeat_seconds double precision not null,
  lease_expires_at  timestamptz not null,
  liveness_key      bigint                              -- session-level advisory lock of the keeper's connection; null: no fast path
) with (fillfactor = 50);

create table agentrt.approvals (
  id             uuid primary key,
  session_id     uuid not null,
  run            integer not null,
  tool_call_id   text not null,
  tool           text not null,
  arguments      text not null,                         -- as received: jsonb would not keep them byte for byte
  arguments_hash text not null,                         -- sha256 of arguments, hex
  reason         text,
  state          text not null default 'pending' check (state in ('pending', 'approved', 'rejected', 'expired', 'obsolete')),
  requested_at   timestamptz not null default clock_timestamp(),
  expires_at     timestamptz,
  decided_at     timestamptz,
  decided_by     text,
  comment        text,
  unique (session_id, tool_call_id)
);
create index approvals_expiry on agentrt.approvals (expires_at) where state = 'pending';

-- Somebody follows this session's entries (and text deltas) until expires_at.
create table agentrt.followers (
  session_id uuid not null,
  follower   uuid not null,
  expires_at timestamptz not null,
  primary key (session_id, follower)
);
create index followers_expiry on agentrt.followers (expires_at);

create table if not exists agentrt.schema_migrations (
  name          text primary key,
  checksum      text not null,                          -- sha256 of the file, hex
  applied_at    timestamptz not null default clock_timestamp(),
  breaks_before text                                    -- workers older than this version must not start
);

-- What a new message must look at: queued messages, and the cancels that dropped them. Both are rare.
create index journal_queued on agentrt.journal (session_id, seq) where type in ('message_queued', 'session_cancelled');

-- ---- Guards -------------------------------------------------------------------------------------------------------

create function agentrt._refuse_journal_change() returns trigger language plpgsql as $$
#variable_conflict use_column
begin
  if tg_op = 'TRUNCATE' then
    raise exception using errcode = 'AR002',
      message = format('agentrt.%s is not truncated: delete terminal sessions instead', tg_table_name);
  end if;
  if tg_op = 'UPDATE' then
    raise exception using errcode = 'AR002', message = 'journal entries are append-only: they are never changed';
  end if;
  if exists (select from changed c join agentrt.sessions s on s.id = c.session_id) then
    raise exception using errcode = 'AR002',
      message = 'journal entries are append-only: they go when their terminal session is deleted, not before';
  end if;
  return null;
end $$;

create trigger journal_no_update before update on agentrt.journal
  for each statement execute function agentrt._refuse_journal_change();
create trigger journal_no_delete after delete on agentrt.journal referencing old table as changed
  for each statement execute function agentrt._refuse_journal_change();
create trigger journal_no_truncate before truncate on agentrt.journal
  for each statement execute function agentrt._refuse_journal_change();
create trigger sessions_no_truncate before truncate on agentrt.sessions
  for each statement execute function agentrt._refuse_journal_change();

create function agentrt._refuse_live_delete() returns trigger language plpgsql as $$
#variable_conflict use_column
begin
  if old.status not in ('completed', 'failed', 'cancelled') then
    raise exception using errcode = 'AR002',
      message = format('session %s is %s: only terminal sessions are deleted, cancel it first', old.id, old.status),
      detail = jsonb_build_object('session_id', old.id, 'status', old.status)::text;
  end if;
  return old;
end $$;

create trigger sessions_no_live_delete before delete on agentrt.sessions
  for each row execute function agentrt._refuse_live_delete();

-- The one way by which entries go: retention may delete sessions, this removes what hangs on them.
create function agentrt._delete_children() returns trigger
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
begin
  delete from agentrt.journal j using gone g where j.session_id = g.id;
  delete from agentrt.approvals a using gone g where a.session_id = g.id;
  delete from agentrt.followers f using gone g where f.session_id = g.id;
  return null;
end $$;

create trigger sessions_delete_children after delete on agentrt.sessions referencing old table as gone
  for each statement execute function agentrt._delete_children();

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

-- A crash is charged when it is seen: running -> queued with a back-off, or failed when the attempts are used up (then
-- perhaps queued again, by a queued message). entry_type tells how it was seen: session_orphaned (a reap, new_token) or
-- session_released (a crash release). Returns the status afterwards.
create function agentrt._charge(
  session_id uuid, entry_type text, entry_data jsonb, new_token boolean,
  dedup_key text default null, worker_id uuid default null
) returns text language plpgsql as $$
#variable_conflict use_column
declare
  moment timestamptz := clock_timestamp();
  head agentrt.sessions;
  ending jsonb;
begin
  update agentrt.sessions s
    set fencing_token = s.fencing_token + _charge.new_token::integer, status = 'queued', lease_owner = null,
        lease_acquired_at = null,
        running_seconds = s.running_seconds + extract(epoch from moment - s.lease_acquired_at)
    where s.id = _charge.session_id and s.status = 'running'
    returning s.* into strict head;
  perform agentrt._append_entry(session_id, entry_type, entry_data, dedup_key, worker_id);
  if head.attempt >= head.max_attempts or head.takeovers + 1 >= 20 then
    ending := jsonb_build_object('code', 'attempts_exhausted', 'message',
      format('crashed %s times without a committed step, %s times in this run; last seen by %s',
             head.attempt, head.takeovers + 1, entry_type));
    update agentrt.sessions s set status = 'failed', outcome = ending, finished_at = moment
      where s.id = _charge.session_id;
    perform agentrt._obsolete_approvals(session_id);
    perform agentrt._append_entry(session_id, 'session_failed', jsonb_build_object('outcome', ending),
                                  worker_id => worker_id);
    return case when agentrt._promote(session_id, worker_id) then 'queued' else 'failed' end;
  end if;
  update agentrt.sessions s
    set attempt = s.attempt + 1, takeovers = s.takeovers + 1,
        ready_at = moment + agentrt._crash_delay(head.attempt), due = head.attempt < 2
    where s.id = _charge.session_id;
  if head.attempt < 2 then
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
  return 'queued';
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
