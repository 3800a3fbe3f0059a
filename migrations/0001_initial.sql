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
create index sessions_wait on agentrt.sessions ((suspension ->> 'expires_at') collate "C")  -- UTC, all of one length
  where status = 'suspended' and suspension ? 'expires_at';
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

-- Somebody follows this session's entries until expires_at.
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

-- Where a reader may begin: behind what the last compaction covers.
create index journal_compactions on agentrt.journal (session_id, seq) where type = 'compaction';

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
