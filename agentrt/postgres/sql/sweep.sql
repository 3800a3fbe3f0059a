-- sweep: one round; everything in it is idempotent. Call again while more.
-- Parameters: $1 uuid the judge, $2 int at most so many of each kind.
-- Row: requeued, failed, due, expired, pruned, more, exhausted (jsonb: the runs that were failed).
-- Transitions: running -> queued or failed (owner not alive; token + 1, charged); queued -> due; approvals -> expired
-- (and then suspended -> queued when nothing else is waited for); ended workers and followers are pruned.
select requeued, failed, due, expired, pruned, more, exhausted from agentrt._sweep($1, $2)
