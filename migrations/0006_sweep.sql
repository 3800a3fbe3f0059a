-- What every worker does at its heartbeat for all: orphans, timers, expiries, rows that nobody needs any more.

-- One round of the sweep. Every part may be repeated by anybody at any time; more: a limit was reached, call again.
-- Nothing waits for a row that somebody else holds: the next round comes. A row that cannot be swept stops neither the
-- others nor the other parts: the server's log tells of it, and the caller once nothing else is left to do.
create function agentrt._sweep(
  judge uuid, max_rows integer,
  out requeued integer, out failed integer, out due integer, out expired integer, out pruned integer, out more boolean,
  out exhausted jsonb
) language plpgsql as $$
#variable_conflict use_column
declare
  problem text;
  of_orphans text;
  of_due text;
  of_expiries text;
  of_rows text;
begin
  select o.requeued, o.failed, o.exhausted, o.problem into requeued, failed, exhausted, of_orphans
    from agentrt._sweep_orphans(judge, max_rows) o;
  select d.swept, d.problem into due, of_due from agentrt._sweep_due(max_rows) d;
  select a.swept, a.problem into expired, of_expiries from agentrt._sweep_expiries(max_rows) a;
  select r.swept, r.problem into pruned, of_rows from agentrt._sweep_rows(max_rows) r;
  more := greatest(requeued + failed, due, expired, pruned) >= max_rows;
  problem := coalesce(of_orphans, of_due, of_expiries, of_rows);
  if problem is not null and greatest(requeued + failed, due, expired, pruned) = 0 then
    raise exception 'the sweep leaves out %', problem;
  elsif problem is not null then
    raise warning 'the sweep leaves out %', problem;
  end if;
end $$;

-- running -> queued or failed: sessions whose owner is not an alive or draining worker, a missing one included. Owners
-- first, by a loose scan of their index: there are few, and their sessions are only looked at when they are not alive.
-- A session is locked by its token as well: since the look it may have been claimed by a worker that lives. Far more are
-- looked at than swept, and only as far as needed: those that somebody holds locked do not hide the rest.
create function agentrt._sweep_orphans(
  judge uuid, max_rows integer, out requeued integer, out failed integer, out exhausted jsonb, out problem text
) language plpgsql as $$
#variable_conflict use_column
declare
  orphan record;
  charged record;
begin
  requeued := 0;
  failed := 0;
  exhausted := '[]';
  for orphan in
    with recursive owners (id) as (
      (select s.lease_owner from agentrt.sessions s where s.status = 'running' order by s.lease_owner limit 1)
      union all
      select (select s.lease_owner from agentrt.sessions s
              where s.status = 'running' and s.lease_owner > o.id order by s.lease_owner limit 1)
      from owners o where o.id is not null
    ),
    dead as materialized (
      select o.id, w.name
      from owners o left join agentrt.workers w on w.id = o.id
      where o.id is not null and coalesce(w.state not in ('alive', 'draining'), true)
    )
    select s.id, s.fencing_token, d.id as owner, d.name
    from dead d
    cross join lateral (
      select id, fencing_token from agentrt.sessions where lease_owner = d.id and status = 'running'
      limit 100 * max_rows
    ) s
  loop
    exit when requeued + failed >= max_rows;
    begin
      perform from agentrt.sessions s
        where s.id = orphan.id and s.fencing_token = orphan.fencing_token and s.status = 'running'
        for no key update skip locked;
      if found then
        charged := agentrt._charge_orphan(orphan.id,
          jsonb_build_object('worker_id', orphan.owner, 'worker', coalesce(orphan.name, '')), judge);
        if charged.status = 'failed' then
          failed := failed + 1;
        else
          requeued := requeued + 1;
        end if;
        exhausted := exhausted || coalesce(charged.exhausted, '[]');
      end if;
    exception when others then
      problem := format('session %s: %s', orphan.id, sqlerrm);
    end;
  end loop;
end $$;

-- queued, not due -> queued, due: they enter the claim indexes. At once if that is possible, else one by one.
create function agentrt._sweep_due(max_rows integer, out swept integer, out problem text) language plpgsql as $$
#variable_conflict use_column
declare
  ripe uuid[];
  one uuid;
begin
  swept := 0;
  ripe := array(
    select s.id from agentrt.sessions s
    where s.status = 'queued' and not s.due and s.ready_at <= now()
    order by s.ready_at limit max_rows
    for no key update skip locked);
  if ripe = '{}' then
    return;
  end if;
  begin
    update agentrt.sessions s set due = true where s.id = any (ripe);
    swept := cardinality(ripe);
  exception when others then
    foreach one in array ripe loop
      begin
        update agentrt.sessions s set due = true where s.id = one;
        swept := swept + 1;
      exception when others then
        problem := format('session %s: %s', one, sqlerrm);
      end;
    end loop;
  end;
  perform agentrt._notify('agentrt_ready',
    array(select distinct queue from agentrt.sessions s where s.id = any (ripe) and s.due));
end $$;

-- What waited too long: approvals, deferred calls; those of a session that somebody holds locked do not hide the rest.
create function agentrt._sweep_expiries(max_rows integer, out swept integer, out problem text) language plpgsql as $$
#variable_conflict use_column
declare
  late uuid;
begin
  swept := 0;
  for late in
    (select a.session_id from agentrt.approvals a
     where a.state = 'pending' and a.expires_at <= now() order by a.expires_at limit 100 * max_rows)
    union all
    (select s.id from agentrt.sessions s
     where s.status = 'suspended' and s.suspension ? 'expires_at'
       and (s.suspension ->> 'expires_at') collate "C" <= agentrt._moment(now())
     order by (s.suspension ->> 'expires_at') collate "C" limit 100 * max_rows)
  loop
    exit when swept >= max_rows;
    begin
      swept := swept + agentrt._expire(late);
    exception when others then
      problem := format('session %s: %s', late, sqlerrm);
    end;
  end loop;
end $$;

-- Workers that ended a day ago, followers that went away.
create function agentrt._sweep_rows(max_rows integer, out swept integer, out problem text) language plpgsql as $$
#variable_conflict use_column
declare
  gone integer;
  pruned integer;
begin
  swept := 0;
  delete from agentrt.workers w where w.id = any (array(
    select x.id from agentrt.workers x
    where x.state in ('dead', 'stopped') and x.renewed_at < now() - interval '1 day' limit max_rows
    for update skip locked));
  get diagnostics pruned = row_count;
  delete from agentrt.followers f where f.ctid = any (array(
    select x.ctid from agentrt.followers x where x.expires_at <= now() limit max_rows for update skip locked));
  get diagnostics gone = row_count;
  swept := pruned + gone;
exception when others then
  problem := format('ended workers and followers: %s', sqlerrm);
end $$;

revoke execute on all functions in schema agentrt from public;
