-- stop_worker: a worker that has ended in order. What it still owned would be swept.
-- Parameters: $1 uuid worker.
-- Transition: alive, draining -> stopped.
update agentrt.workers
set state = 'stopped', renewed_at = clock_timestamp(), liveness_key = null
where id = $1 and state in ('alive', 'draining')
