-- read: entries of one session in order; from 0: from the first that no compaction covers, and that compaction.
-- Parameters: $1 uuid session, $2 bigint after_seq, $3 int at most so many.
-- Rows: as in the journal.
with cover as materialized (
  select seq, (data ->> 'covers_to')::bigint as covers_to
  from agentrt.journal
  where session_id = $1 and type = 'compaction' and $2 = 0
  order by seq desc
  limit 1
)
select seq, run, attempt, fencing_token, worker_id, type, data, dedup_key, created_at
from agentrt.journal
where session_id = $1 and seq > greatest($2, coalesce((select covers_to from cover), 0))
order by seq
limit $3
