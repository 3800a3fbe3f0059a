-- What people look at, retention, and who may do what.

-- ---- Views ----------------------------------------------------------------------------------------------------------
-- Time is statement_timestamp(): a volatile function would keep a view from being planned as a part of its query, and the
-- newest 50 sessions would be a sort of all.

-- Every session; waiting_for says in words what a queued or suspended one waits for.
create view agentrt.session_list as
select s.id, s.agent, s.queue, s.priority, s.status, s.run, s.attempt, s.takeovers, s.max_attempts, s.ready_at, s.due,
  s.last_seq, s.suspension, s.outcome, s.config, s.labels, s.tenant, s.parent_id, s.dedup_key, s.fencing_token,
  s.lease_owner, s.turns, s.input_tokens, s.output_tokens, s.cost,
  s.running_seconds + coalesce(extract(epoch from statement_timestamp() - s.lease_acquired_at), 0) as running_seconds,
  s.created_at, s.finished_at, s.archived_at,
  case s.status
    when 'suspended' then concat_ws(', until ',
      concat_ws(': ', s.suspension ->> 'reason', nullif(s.suspension ->> 'message', '')), s.suspension ->> 'expires_at')
    when 'queued' then case
      when s.ready_at > statement_timestamp() then format('its time: not before %s', s.ready_at)
      when not coalesce(live.any_worker, false) then 'a worker: none is alive'
      when not live.serves_agent then format('a worker that serves agent %s: no live one does', s.agent)
      when not live.serves_both then format('a worker that serves agent %s in queue %s: no live one does', s.agent, s.queue)
      when not s.due then 'the next look of a worker at what has come due'
      when s.attempt >= 3 then 'a free slot of a worker that holds no other session which crashed this often'
      else 'a free slot' end
    end as waiting_for
from agentrt.sessions s
left join lateral (
  select count(*) > 0 as any_worker, bool_or(s.agent = any (w.agents)) as serves_agent,
    bool_or(s.agent = any (w.agents) and s.queue = any (w.queues)) as serves_both
  from agentrt.workers w
  where s.status = 'queued' and w.state = 'alive' and w.lease_expires_at > statement_timestamp()) live on true;

-- What waits for a decision; the hash is what a decision names.
create view agentrt.pending_approvals as
select a.id, a.session_id, s.agent, s.tenant, s.labels, s.status, a.run, a.tool_call_id, a.tool, a.arguments,
  a.arguments_hash, a.reason, a.requested_at, a.expires_at
from agentrt.approvals a join agentrt.sessions s on s.id = a.session_id
where a.state = 'pending' and (a.expires_at is null or a.expires_at > statement_timestamp());

-- Who owns what. expired: the owner has not renewed in time; it goes on until a worker declares it dead.
create view agentrt.leases as
select s.id as session_id, s.agent, s.queue, s.run, s.attempt, s.fencing_token, s.lease_owner as worker_id,
  w.name as worker, w.host, w.pid, w.state as worker_state, s.lease_acquired_at, w.renewed_at, w.lease_expires_at,
  coalesce(w.lease_expires_at < statement_timestamp(), true) as expired
from agentrt.sessions s left join agentrt.workers w on w.id = s.lease_owner
where s.status = 'running';

-- Every known worker process; busy counts the sessions that it owns.
create view agentrt.worker_list as
select w.id, w.name, w.host, w.pid, w.version, w.agents, w.queues, w.slots, coalesce(owned.busy, 0)::integer as busy,
  w.state, w.started_at, w.renewed_at, w.lease_expires_at, w.heartbeat_seconds
from agentrt.workers w
left join lateral (
  select count(*) as busy from agentrt.sessions s where s.lease_owner = w.id and s.status = 'running') owned on true;

-- ---- Retention ------------------------------------------------------------------------------------------------------

-- Deletes up to max_sessions sessions that ended longer ago than older_than, oldest first, with all that hangs on them.
-- Returns how many: call it again until that is 0. Skips those that a client holds just now.
create function agentrt.prune_sessions(older_than interval, max_sessions integer default 500) returns integer
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  pruned integer;
  until timestamptz;
begin
  perform agentrt._check_options('{}', '{}');
  if not coalesce(older_than between '0' and '1000 years', false)
     or not coalesce(max_sessions between 1 and 10000, false) then
    perform agentrt._refuse('AR004', format(
      'older_than must be from 0 to 1000 years and max_sessions from 1 to 10000, not %s and %s',
      coalesce(older_than::text, 'null'), coalesce(max_sessions::text, 'null')));
  end if;
  until := clock_timestamp() - older_than;
  delete from agentrt.sessions d using (
      select s.id from agentrt.sessions s
      where s.created_at < until and s.finished_at < until and s.status in ('completed', 'failed', 'cancelled')
      order by s.created_at, s.id limit max_sessions
      for update skip locked) old
    where d.id = old.id;
  get diagnostics pruned = row_count;
  return pruned;
end $$;

revoke execute on all functions in schema agentrt from public;

-- ---- Roles ----------------------------------------------------------------------------------------------------------

-- Rights of the four roles, as far as they exist; an administrator who creates them later calls it again.
create function agentrt._grant_to_roles() returns void language plpgsql as $$
declare
  client_functions constant text[] := '{create_session,send_message,cancel_session,resume_session,retry_session,
    archive_session,release_session,decide_approval,complete_tool_call,read_journal,follow_session}';
  role text;
  function record;
begin
  for role in select rolname from pg_catalog.pg_roles
      where rolname in ('agentrt_worker', 'agentrt_client', 'agentrt_observer', 'agentrt_retention') loop
    execute format('grant usage on schema agentrt to %I', role);
    execute format('grant select on agentrt.schema_migrations, agentrt.session_list, agentrt.pending_approvals,
      agentrt.leases, agentrt.worker_list to %I', role);
    case role
      when 'agentrt_worker' then
        grant select, insert, update on agentrt.sessions, agentrt.approvals to agentrt_worker;
        grant select, insert on agentrt.journal to agentrt_worker;
        grant select, insert, update, delete on agentrt.workers to agentrt_worker;
        grant select, update, delete on agentrt.followers to agentrt_worker;  -- update: to lock
      when 'agentrt_retention' then
        grant select, delete on agentrt.sessions to agentrt_retention;
      else null;
    end case;
    for function in select p.oid::regprocedure as signature, p.proname as name from pg_catalog.pg_proc p
        where p.pronamespace = 'agentrt'::regnamespace and p.prorettype <> 'trigger'::regtype loop
      if role = 'agentrt_worker' and (starts_with(function.name, '_') or function.name = 'uuid7')
        or role = 'agentrt_client' and function.name = any (client_functions)
        or role = 'agentrt_observer' and function.name in ('read_journal', 'follow_session')
        or role = 'agentrt_retention' and function.name = 'prune_sessions' then
        execute format('grant execute on function %s to %I', function.signature, role);
      end if;
    end loop;
  end loop;
end $$;
revoke execute on function agentrt._grant_to_roles() from public;

do $$
declare
  role text;
begin
  foreach role in array '{agentrt_worker,agentrt_client,agentrt_observer,agentrt_retention}'::text[] loop
    begin
      if not exists (select from pg_catalog.pg_roles where rolname = role) then
        execute format('create role %I nologin', role);
      end if;
    exception
      when duplicate_object or unique_violation then
        null;  -- roles belong to the whole cluster: a migration of another database made it just now
      when insufficient_privilege then
        raise warning 'role % was not created: % may not create roles; have it created, then: %',
          role, current_user, 'select agentrt._grant_to_roles()';
    end;
  end loop;
  perform agentrt._grant_to_roles();
end $$;
