-- wrote: whether an owner's write with an unknown outcome was committed after all.
-- Parameters: $1 uuid session, $2 text dedup key of the write's first entry.
select exists (select from agentrt.journal where session_id = $1 and dedup_key = $2) as wrote
