-- Creating a session, and the checks that every client function shares. Each refuses what it cannot take with an
-- SQLSTATE of class AR and changes nothing then.

-- ---- Checks ---------------------------------------------------------------------------------------------------------

create function agentrt._refuse(code text, message text, detail jsonb default null) returns void
language plpgsql as $$
begin
  if detail is null then
    raise exception using errcode = code, message = message;
  end if;
  raise exception using errcode = code, message = message, detail = detail::text;
end $$;

-- What Python could not read back: more than 100 levels, numbers beyond a double, more bytes than max_bytes.
create function agentrt._check_storable(name text, value jsonb, max_bytes integer) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  if jsonb_path_exists(value, 'strict $.**{100 to last} ? (@.type() == "array" || @.type() == "object")') then
    perform agentrt._refuse('AR004', format('%s is nested deeper than 100 levels: flatten it', name));
  end if;
  if jsonb_path_exists(value, 'strict $.** ? (@.type() == "number"
      && (@.abs() > 1.7976931348623157e308 || @ != 0 && @.abs() < 4.9e-324))') then
    perform agentrt._refuse('AR004',
      format('%s holds a number that no double can hold: send it as text', name));
  end if;
  if octet_length(value::text) > max_bytes then
    perform agentrt._refuse('AR004', format('%s has %s bytes, at most %s are kept: store it elsewhere and send a link',
      name, octet_length(value::text), max_bytes));
  end if;
end $$;

-- First statement of each client function: isolation level, options is an object of known keys. null options mean none.
create function agentrt._check_options(options jsonb, known text[]) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  isolation text := current_setting('transaction_isolation');
  unknown text;
  result jsonb;
begin
  if isolation not in ('read committed', 'read uncommitted') then
    perform agentrt._refuse('AR004', format(
      'agentrt functions need READ COMMITTED, this transaction is %s: begin it at READ COMMITTED', upper(isolation)));
  end if;
  if options is null or options = '{}' then
    return '{}';
  end if;
  if jsonb_typeof(options) <> 'object' then
    perform agentrt._refuse('AR004', format('options must be a JSON object, not %s', jsonb_typeof(options)));
  end if;
  select string_agg(format('"%s"', left(k, 100)), ', ' order by k) into unknown
    from jsonb_object_keys(options) k where k <> all (known);
  if unknown is not null then
    perform agentrt._refuse('AR004', format('unknown option %s: known are %s', unknown,
      coalesce(nullif(array_to_string(known, ', '), ''), 'none')));
  end if;
  select coalesce(jsonb_object_agg(key, value), '{}') into result from jsonb_each(options) where value <> 'null';
  perform agentrt._check_storable('options', result - 'content', 1048576);
  return result;
end $$;

create function agentrt._wrong_option(key text, value jsonb, wanted text) returns void language plpgsql as $$
begin
  perform agentrt._refuse('AR004', format('option %s must be %s, not %s', key, wanted, left(value::text, 200)));
end $$;

create function agentrt._text_option(options jsonb, key text) returns text language plpgsql as $$
begin
  if options ? key and (jsonb_typeof(options -> key) <> 'string' or options ->> key = '') then
    perform agentrt._wrong_option(key, options -> key, 'text that is not empty');
  end if;
  return options ->> key;
end $$;

create function agentrt._integer_option(options jsonb, key text, low integer, high integer) returns integer
language plpgsql as $$
declare
  value jsonb := options -> key;
begin
  if value is not null and not coalesce(
      jsonb_typeof(value) = 'number' and value::numeric % 1 = 0 and value::numeric between low and high,
      false) then
    perform agentrt._wrong_option(key, value, format('a whole number from %s to %s', low, high));
  end if;
  return value::numeric;
end $$;

create function agentrt._boolean_option(options jsonb, key text) returns boolean language plpgsql as $$
begin
  if options ? key and jsonb_typeof(options -> key) <> 'boolean' then
    perform agentrt._wrong_option(key, options -> key, 'true or false');
  end if;
  return coalesce((options -> key)::boolean, false);
end $$;

create function agentrt._uuid_option(options jsonb, key text) returns uuid language plpgsql as $$
begin
  if options ? key and (options ->> key) !~* '^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$' then
    perform agentrt._wrong_option(key, options -> key, 'a UUID');
  end if;
  return (options ->> key)::uuid;
end $$;

create function agentrt._object_option(options jsonb, key text) returns jsonb language plpgsql as $$
begin
  if options ? key and jsonb_typeof(options -> key) <> 'object' then
    perform agentrt._wrong_option(key, options -> key, 'an object');
  end if;
  return coalesce(options -> key, '{}');
end $$;

-- A time without a zone counts as UTC. The bound is what Python's datetime can hold.
create function agentrt._time_option(options jsonb, key text) returns timestamptz
language plpgsql set timezone = 'UTC' as $$
declare
  moment timestamptz;
begin
  if not options ? key then
    return null;
  end if;
  begin
    moment := agentrt._text_option(options, key)::timestamptz;
  exception when data_exception then
    moment := 'infinity';
  end;
  if moment not between '0001-01-02' and '9999-12-30' then
    perform agentrt._wrong_option(key, options -> key, 'a time in ISO 8601');
  end if;
  return moment;
end $$;

-- ---- Message content ------------------------------------------------------------------------------------------------

create function agentrt._is_base64(value text) returns boolean language plpgsql immutable as $$
begin
  return length(decode(value, 'base64')) > 0;
exception when data_exception then
  return false;
end $$;

-- What is wrong with one block of a user message; null when nothing is.
create function agentrt._block_problem(block jsonb) returns text language plpgsql as $$
#variable_conflict use_column
declare
  type text := block ->> 'type';
  known text[];
  strange text;
begin
  if jsonb_typeof(block) <> 'object' then
    return format('must be an object, not %s', left(block::text, 100));
  end if;
  known := case when type = 'text' then '{type,text}'::text[]
    when type in ('image', 'file') then '{type,url,base64,media_type}'::text[] end;
  if known is null then
    return format('has type %s: text, image and file are taken', left(coalesce((block -> 'type')::text, 'none'), 100));
  end if;
  select k into strange from jsonb_each(block) e (k, v)
    where k <> all (known) or jsonb_typeof(v) <> 'string' or v = '""' limit 1;
  if strange is not null then
    return format('has "%s": a block of type %s has %s, texts that are not empty',
      left(strange, 100), type, array_to_string(known, ', '));
  end if;
  if type = 'text' then
    return case when not block ? 'text' then 'has no text' end;
  end if;
  return case
    when (block ? 'url') = (block ? 'base64') then 'needs either url or base64'
    when not block ? 'media_type' then 'has no media_type'
    when block ->> 'media_type' !~ '^[[:alnum:]_.+-]+/[[:alnum:]_.+-]+' then format('has the media_type %s', left(block ->> 'media_type', 100))
    when block ? 'url' and block ->> 'url' !~* '^[a-z][a-z0-9+.-]*:.' then format('has the url %s', left(block ->> 'url', 100))
    when block ? 'base64' and not agentrt._is_base64(block ->> 'base64') then 'has base64 that cannot be decoded' end;
end $$;

-- The blocks of a user message: from message (plain text) or from the option content, exactly one of them.
create function agentrt._content(message text, options jsonb) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  content jsonb := options -> 'content';
  max_bytes constant integer := 8388608;
  problem text;
begin
  if (message is null) = (content is null) then
    perform agentrt._refuse('AR004', case when message is null
      then 'the message is missing: pass a text, or blocks in the option content'
      else 'message and the option content exclude each other: give one of them, and null in place of the other' end);
  end if;
  if content is null then
    if octet_length(message) > max_bytes then
      perform agentrt._refuse('AR004', format('the message has %s bytes, at most %s are kept: store it elsewhere and send a link',
        octet_length(message), max_bytes));
    end if;
    content := jsonb_build_array(jsonb_build_object('type', 'text', 'text', message));
  else
    if jsonb_typeof(content) <> 'array' or content = '[]' then
      perform agentrt._wrong_option('content', content, 'an array of blocks that is not empty');
    end if;
    perform agentrt._check_storable('option content', content, max_bytes);
    select format('block %s of content %s', ordinality - 1, p) into problem
      from jsonb_array_elements(content) with ordinality b (block, ordinality), agentrt._block_problem(block) p
      where p is not null order by ordinality limit 1;
    if problem is not null then
      perform agentrt._refuse('AR004', problem);
    end if;
  end if;
  if not exists (
      select from jsonb_array_elements(content) b where b ->> 'type' <> 'text' or not agentrt._is_blank(b ->> 'text')) then
    perform agentrt._refuse('AR004', 'the message is empty: it needs at least one character that is not blank');
  end if;
  return content;
end $$;

-- Whether a text has nothing to read: white space as Python's str.isspace has it, which decides what a model is sent. By
-- name, since a regular expression's [:space:] is another one in every locale.
create function agentrt._is_blank(value text) returns boolean language sql immutable strict as $$
  select btrim(value, E' \t\n\x0b\f\r\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006'
    || E'\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000') = ''
$$;

-- ---- Commands -------------------------------------------------------------------------------------------------------

create function agentrt._refuse_unknown(what text, id uuid) returns void language plpgsql as $$
begin
  perform agentrt._refuse('AR001', format('no %s %s: it never was, or was deleted', what, coalesce(id::text, 'null')));
end $$;

-- Locks the session row for the rest of the transaction; every command begins with it.
create function agentrt._lock_session(session_id uuid) returns agentrt.sessions language plpgsql as $$
#variable_conflict use_column
declare
  head agentrt.sessions;
begin
  select * into head from agentrt.sessions s where s.id = _lock_session.session_id for no key update;
  if not found then
    perform agentrt._refuse_unknown('session', session_id);
  end if;
  return head;
end $$;

create function agentrt._refuse_status(head agentrt.sessions, command text, wanted text) returns void
language plpgsql as $$
begin
  if head.archived_at is not null then
    perform agentrt._refuse('AR006', format('session %s is archived since %s: it can only be read', head.id, head.archived_at),
      jsonb_build_object('session_id', head.id, 'status', head.status, 'archived_at', head.archived_at));
  end if;
  perform agentrt._refuse('AR002', format('session %s is %s: %s needs %s', head.id, head.status, command, wanted),
    jsonb_build_object('session_id', head.id, 'status', head.status, 'run', head.run));
end $$;

create function agentrt._check_run(head agentrt.sessions, run integer) returns void language plpgsql as $$
begin
  if run is not null and run <> head.run then
    perform agentrt._refuse('AR002', format('run %s was meant, session %s is at run %s (%s)', run, head.id, head.run, head.status),
      jsonb_build_object('session_id', head.id, 'status', head.status, 'run', head.run));
  end if;
end $$;

-- Stores a new head. Only keys that are long (the limit is after compression, about 2,700 bytes) can fail the indexes.
create function agentrt._insert_session(head agentrt.sessions) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  if octet_length(concat(head.agent, head.queue, head.tenant, head.dedup_key)) > 1000
     and agentrt._too_long_to_index(head) then
    perform agentrt._refuse('AR004', 'agent, queue, tenant and dedup_key are too long to be indexed: shorten them');
  end if;
  insert into agentrt.sessions select (head).* on conflict do nothing;
  return found;
end $$;

create function agentrt._too_long_to_index(head agentrt.sessions) returns boolean language plpgsql as $$
begin
  head.due := true;  -- a scheduled session enters the claim index later: in a sweep, which it would stop for all others
  insert into agentrt.sessions select (head).* on conflict do nothing;
  raise exception using errcode = 'AR000';
exception
  when sqlstate 'AR000' then
    return false;
  when program_limit_exceeded then
    return true;
end $$;

-- Creates a session with its first message: queued, run 1. Returns its id. The same dedup_key (or id) with the same
-- arguments returns the session that exists, with others it is refused.
create function agentrt.create_session(agent text, message text, options jsonb default '{}') returns uuid
language plpgsql security definer set search_path = pg_catalog, agentrt, pg_temp as $$
#variable_conflict use_column
declare
  asked jsonb := agentrt._check_options(options, '{config,content,dedup_key,id,labels,max_attempts,parent_id,priority,queue,ready_at,tenant}');
  content jsonb := agentrt._content(message, asked);
  moment timestamptz := clock_timestamp();
  head agentrt.sessions;
  other record;
begin
  if coalesce(agent, '') = '' then
    perform agentrt._refuse('AR004', 'agent is empty: name the agent that the session is for');
  elsif agent !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$' then
    perform agentrt._refuse('AR004', format('no agent can be named %s: up to 100 letters, digits, _ . and -, a letter or digit first',
      to_jsonb(left(agent, 120))));
  end if;
  head := agentrt._new_head(agent, asked, moment);
  head.request_hash := encode(sha256(convert_to(jsonb_build_array(agent, content, asked - 'content')::text, 'UTF8')), 'hex');
  while not agentrt._insert_session(head) loop
    select s.id, s.request_hash into other from agentrt.sessions s
      where s.id = head.id
         or s.dedup_key = head.dedup_key and s.agent = head.agent and s.tenant is not distinct from head.tenant
      order by s.id = head.id desc limit 1;
    if other.request_hash = head.request_hash then
      return other.id;
    elsif found then
      perform agentrt._refuse('AR003', format(
        'session %s was created with the same id or dedup_key and other arguments: use another key', other.id),
        jsonb_build_object('session_id', other.id, 'dedup_key', head.dedup_key));
    end if;  -- deleted meanwhile: insert again
  end loop;
  insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, type, data)
    values (head.id, 1, 1, 0, 0, 'session_created', jsonb_build_object('agent', agent)),
           (head.id, 2, 1, 0, 0, 'user_message', jsonb_build_object('content', content));
  if head.due then
    perform agentrt._notify('agentrt_ready', array[head.queue]);
  end if;
  return head.id;
end $$;

create function agentrt._new_head(agent text, asked jsonb, moment timestamptz) returns agentrt.sessions
language plpgsql as $$
declare
  head agentrt.sessions;
  unknown text;
begin
  head.id := coalesce(agentrt._uuid_option(asked, 'id'), agentrt.uuid7());
  head.agent := agent;
  head.queue := coalesce(agentrt._text_option(asked, 'queue'), 'default');
  head.priority := coalesce(agentrt._integer_option(asked, 'priority', -32768, 32767), 0);
  head.status := 'queued';
  head.run := 1;
  head.attempt := 0;
  head.takeovers := 0;
  head.max_attempts := coalesce(agentrt._integer_option(asked, 'max_attempts', 1, 1000), 5);
  head.fencing_token := 0;
  head.owner_writes := 0;
  head.ready_at := coalesce(agentrt._time_option(asked, 'ready_at'), moment);
  head.due := head.ready_at <= moment;
  head.last_seq := 2;
  head.config := agentrt._object_option(asked, 'config');
  select key into unknown from jsonb_object_keys(head.config) key
    where key <> all ('{limits,model,instructions}') order by key limit 1;
  if found then
    perform agentrt._refuse('AR004', format('option config has an unknown key %s: known are limits, model, instructions',
      to_jsonb(left(unknown, 100))));
  end if;
  if head.config ? 'model' and (jsonb_typeof(head.config -> 'model') <> 'string' or head.config ->> 'model' = '') then
    perform agentrt._wrong_option('config.model', head.config -> 'model', 'text that is not empty');
  end if;
  if head.config ? 'instructions' and jsonb_typeof(head.config -> 'instructions') <> 'string' then
    perform agentrt._wrong_option('config.instructions', head.config -> 'instructions', 'text');
  end if;
  perform agentrt._check_limits('config.limits', head.config -> 'limits');
  head.labels := agentrt._object_option(asked, 'labels');
  if exists (select from jsonb_each(head.labels) where jsonb_typeof(value) <> 'string') then
    perform agentrt._wrong_option('labels', head.labels, 'an object of texts');
  end if;
  head.tenant := agentrt._text_option(asked, 'tenant');
  head.parent_id := agentrt._uuid_option(asked, 'parent_id');
  head.dedup_key := agentrt._text_option(asked, 'dedup_key');
  head.turns := 0;
  head.input_tokens := 0;
  head.output_tokens := 0;
  head.cost := 0;
  head.running_seconds := 0;
  head.created_at := moment;
  return head;
end $$;

revoke execute on all functions in schema agentrt from public;
