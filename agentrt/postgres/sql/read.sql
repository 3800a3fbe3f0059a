-- read: entries of one session in order; from 0: from the first that no compaction covers, and that compaction.
-- Parameters: $1 uuid session, $2 bigint after_seq, $3 int at most so many, $4 bigint about so many bytes: the entry that
--   exceeds them is the last one.
-- Rows: as in the journal, and bytes, the sum so far.
with cover as materialized (
  select case                                              -- an imported entry may say anything; it never covers itself
      when data ->> 'covers_to' ~ '^[0-9]{1,18}$' then least((data ->> 'covers_to')::bigint, seq - 1) else 0
    end as covers_to
  from agentrt.journal
  where session_id = $1 and type = 'compaction' and $2 = 0
  order by seq desc
  limit 1
)
select seq, run, attempt, fencing_token, worker_id, type, data, dedup_key, created_at, bytes
from (
  select *, sum(agentrt._about_bytes(data)) over (order by seq rows unbounded preceding) as bytes
  from agentrt.journal
  where session_id = $1 and seq > greatest($2, coalesce((select covers_to from cover), 0))
  order by seq
  limit $3
) j
where bytes - agentrt._about_bytes(data) < $4
order by seq
