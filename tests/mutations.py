"""The guards of the database side and of the worker's writing, each with the tests that claim to cover it.

A mutation takes one guard away by a change of text. tests/test_mutations.py makes it in a copy of the checkout, runs
the tests there, and wants them to fail. tests/core/test_mutations.py does the same for the pure core.
"""

from __future__ import annotations

from dataclasses import dataclass

CLAIM = "agentrt/postgres/sql/claim.sql"
APPEND = "agentrt/postgres/sql/append.sql"
END = "agentrt/postgres/sql/end.sql"
MARK = "agentrt/postgres/sql/mark.sql"
RENEW = "agentrt/postgres/sql/renew.sql"
WITHDRAW = "agentrt/postgres/sql/withdraw_agent.sql"
SCHEMA = "migrations/0001_initial.sql"
FUNCTIONS = "migrations/0002_functions.sql"
CREATE = "migrations/0003_create.sql"
COMMANDS = "migrations/0004_commands.sql"
APPROVALS = "migrations/0005_approvals.sql"
SWEEP = "migrations/0006_sweep.sql"
COMMITTER = "agentrt/worker/committer.py"

_LOCK = "for no key update skip locked                       -- the fence"


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old``, which stands exactly once in ``file``, becomes ``new``; then each of ``tests`` must fail.

    ``tests`` are node ids below ``tests/``, without ``.py``.
    """

    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(f"tests/{test.replace('::', '.py::')}" for test in self.tests)


def _guard(guard: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(guard, file, old, new, tests)


MUTATIONS = (
    # --- the fence ---
    _guard(
        "an append locks the row", APPEND, _LOCK, "-- the fence",
        "postgres/test_worker_fence::test_a_locked_session_is_busy_and_the_other_ninety_nine_do_not_wait",
        "postgres/test_worker_fence::test_an_append_that_waits_for_a_reap_writes_nothing",
    ),
    _guard(
        "an append skips what is locked", APPEND, _LOCK, "for no key update -- the fence",
        "postgres/test_worker_fence::test_a_locked_session_is_busy_and_the_other_ninety_nine_do_not_wait",
    ),
    _guard(
        "an append needs the token", APPEND, "when h.fencing_token <> h.token or h.lease", "when h.lease",
        "postgres/test_worker_guards::test_an_earlier_claim_of_the_same_worker_writes_nothing",
    ),
    _guard(
        "an append needs the owner", APPEND, "or h.lease_owner is distinct from $5::uuid or", "or",
        "postgres/test_worker_fence::test_who_does_not_own_writes_nothing",
    ),
    _guard(
        "an append counts the owner's writes", APPEND,
        """\
      when h.fencing_token = h.token and h.owner_writes = h.writes + 1 then 'already'
      when h.fencing_token <> h.token or h.lease_owner is distinct from $5::uuid or h.status <> 'running'
        or h.owner_writes <> h.writes then 'lost'
""",
        """\
      when h.fencing_token <> h.token or h.lease_owner is distinct from $5::uuid or h.status <> 'running' then 'lost'
""",
        "postgres/test_worker_lost_answers::test_a_repeated_write_is_told_that_it_is_there_already_and_where",
        "postgres/test_worker_lost_answers::test_a_write_whose_answer_is_lost_is_repeated_without_harm",
        "worker/test_committer::test_an_append_with_an_unknown_outcome_is_repeated_byte_for_byte_and_written_once",
    ),
    _guard(
        "an ending locks the row", END, _LOCK, "-- the fence",
        "postgres/test_worker_guards::test_a_write_that_meets_a_locked_session_is_busy",
    ),
    _guard(
        "an ending skips what is locked", END, _LOCK, "for no key update -- the fence",
        "postgres/test_worker_guards::test_a_write_that_meets_a_locked_session_is_busy",
    ),
    _guard(
        "an ending needs the token", END, "when h.fencing_token <> h.token or h.lease", "when h.lease",
        "postgres/test_worker_guards::test_an_earlier_claim_of_the_same_worker_writes_nothing",
    ),
    _guard(
        "an ending needs the owner", END, "or h.lease_owner is distinct from $5::uuid or", "or",
        "postgres/test_worker_end::test_nobody_ends_what_another_worker_owns",
    ),
    _guard(
        "an ending names the last_seq that it was planned from", END,
        "when h.kind in ('suspend', 'complete') and h.last_seq <> h.planned_from then 'stale'", "",
        "postgres/test_worker_end::test_an_ending_planned_before_a_message_is_stale_and_the_message_is_answered_once",
        "postgres/test_worker_end::test_a_suspension_planned_before_the_last_decision_is_stale",
        "postgres/test_clients_messages::test_a_message_committed_before_the_ending_makes_it_stale",
        "postgres/test_clients_approvals::test_decisions_make_a_suspension_stale",
    ),
    # --- endings, charging, promotion ---
    _guard(
        "a failure promotes a queued message", END, "case when c.ours and c.terminal then",
        "case when c.ours and c.kind = 'complete' then",
        "postgres/test_worker_charging::"
        "test_a_queued_message_begins_the_next_run_in_the_transaction_that_ends_this_one",
    ),
    _guard(
        "a promotion looks after the lock", FUNCTIONS, "language plpgsql strict volatile rows 1 as",
        "language plpgsql strict stable rows 1 as",
        "postgres/test_worker_charging::test_a_message_queued_while_the_ending_waits_for_the_row_begins_the_next_run",
    ),
    _guard(
        "an ending makes open approvals obsolete", END, "where e.ours and a.id", "where false and a.id",
        "postgres/test_worker_end::test_a_completion_makes_open_approvals_obsolete_in_the_same_transaction",
    ),
    _guard(
        "a decision is not overwritten by the end of its call", APPEND,
        "<> 'ok' and a.id = o.id and a.state = 'pending'", "<> 'ok' and a.id = o.id",
        "postgres/test_worker_closed_calls::"
        "test_a_decision_that_is_committed_while_the_result_waits_for_the_row_stays_as_it_was_told",
    ),
    _guard(
        "a crash counts attempts", FUNCTIONS, "select attempt >= max_attempts or ", "select ",
        "postgres/test_worker_guards::test_crash_releases_exhaust_the_attempts",
        "postgres/test_worker_charging::"
        "test_the_fifth_crash_in_a_row_fails_the_session_and_a_new_message_begins_at_zero",
    ),
    _guard(
        "a crash counts takeovers", FUNCTIONS, " or takeovers + 1 >= 20 $$", " $$",
        "postgres/test_worker_charging::"
        "test_committed_progress_keeps_the_attempt_at_two_but_twenty_takeovers_are_enough",
    ),
    _guard(
        "progress sets the attempt back", APPEND, "attempt = case when d.progress then 1 else d.attempt end",
        "attempt = d.attempt",
        "postgres/test_worker_append::test_an_answer_or_a_result_ends_the_row_of_crashes_and_nothing_else_does",
    ),
    _guard(
        "nothing but progress sets the attempt back", APPEND, "type in ('assistant_message', 'tool_result')), false)",
        "type is not null), false)",
        "postgres/test_worker_append::test_an_answer_or_a_result_ends_the_row_of_crashes_and_nothing_else_does",
    ),
    # --- claim, renew, mark, sweep ---
    _guard(
        "a claim holds its worker's row", CLAIM, "  where id = $1 and state = 'alive'\n  for key share",
        "  where id = $1 and state = 'alive'",
        "postgres/test_worker_claim::test_a_claim_in_flight_cannot_be_overtaken_by_the_reap_of_its_worker",
    ),
    _guard(
        "a claim needs a worker that is alive", CLAIM, "where id = $1 and state = 'alive'", "where id = $1",
        "postgres/test_worker_claim::"
        "test_a_claim_that_waits_for_the_reap_of_its_worker_takes_nothing_and_says_so",
        "worker/test_claimer::test_a_worker_that_was_declared_dead_does_not_take_silence_for_an_empty_queue",
    ),
    _guard(
        "a claim skips what is locked", CLAIM,
        "-- no attempt here: it would invite a claim index\n    for no key update skip locked",
        "\n    for no key update",
        "postgres/test_worker_claim::test_a_session_that_somebody_holds_locked_is_skipped_at_once",
    ),
    _guard(
        "a renewal computes times after the lock", RENEW, "lease_expires_at = clock_timestamp() +",
        "lease_expires_at = now() +",
        "postgres/test_worker_lease::test_a_renewal_that_waited_for_its_row_reaches_as_far_ahead_as_any_other",
    ),
    _guard(
        "a lock of another connection's is none", RENEW, "case when pg_backend_pid() = $6 then",
        "case when $6::int is not null then",
        "worker/test_keeper::"
        "test_a_lock_that_is_found_to_be_another_connections_is_given_up_and_that_is_said_once",
    ),
    _guard(
        "a judge renews without a gap", MARK, "and renewed_at - renewing_since >= make_interval",
        "and now() - now() <= make_interval",
        "postgres/test_worker_lease::test_a_gap_between_renewals_begins_the_judges_probation_anew",
    ),
    _guard(
        "a silent worker's lock is tried", MARK, "else pg_try_advisory_xact_lock_shared(s.liveness_key) end",
        "else true end",
        "postgres/test_worker_lease::"
        "test_a_worker_whose_connection_died_is_dead_after_two_silent_heartbeats_and_no_sooner",
    ),
    _guard(
        "judges share the lock that they try", MARK, "pg_try_advisory_xact_lock_shared", "pg_try_advisory_xact_lock",
        "postgres/test_worker_lease::test_two_judges_who_try_the_same_lock_do_not_take_each_other_for_the_worker",
    ),
    _guard(
        "a mark waits for nobody", MARK, "for update of w skip locked", "for update of w",
        "postgres/test_worker_claim::test_a_claim_in_flight_cannot_be_overtaken_by_the_reap_of_its_worker",
    ),
    _guard(
        "a sweep locks by token", SWEEP, "s.fencing_token = orphan.fencing_token and", "s.fencing_token > 0 and",
        "postgres/test_worker_lease::test_a_session_that_found_a_living_owner_since_the_look_is_not_reaped",
    ),
    _guard(
        "a sweep looks again under the lock", SWEEP, "orphan.fencing_token and s.status = 'running'",
        "orphan.fencing_token",
        "postgres/test_worker_guards::test_a_session_that_its_owner_ended_since_the_look_is_not_reaped",
    ),
    _guard(
        "a sweep spares the living", SWEEP, "coalesce(w.state not in ('alive', 'draining'), true)", "true",
        "postgres/test_worker_lease::test_a_draining_worker_keeps_what_it_has",
    ),
    _guard(
        "workers that withdraw an agent wait for each other", WITHDRAW, "  order by id\n  for no key update\n",
        "  order by id\n",
        "postgres/test_worker_offering::test_of_two_workers_that_withdraw_at_the_same_time_the_last_one_finds_nobody",
    ),
    _guard(
        "a renewal brings back no agent that was withdrawn after it was sent", RENEW,
        "case when w.agents = $7 then $5::text[] else w.agents end",
        "case when w.agents = $7 then $5::text[] else $5 end",
        "postgres/test_worker_offering::"
        "test_a_renewal_that_was_on_its_way_does_not_offer_again_what_was_withdrawn_meanwhile",
    ),
    # --- clients ---
    _guard(
        "a command locks the session", CREATE, "where s.id = _lock_session.session_id for no key update",
        "where s.id = _lock_session.session_id",
        "postgres/test_clients_messages::"
        "test_a_message_waits_for_an_ending_that_holds_the_row_and_begins_a_new_run",
        "postgres/test_clients_cancel::test_a_cancel_that_waited_for_the_ending_is_refused",
    ),
    _guard(
        "the dedup key of a session is unique", SCHEMA, "create unique index sessions_dedup",
        "create index sessions_dedup",
        "postgres/test_clients_create::test_the_same_dedup_key_gives_the_same_session",
        "postgres/test_clients_create::test_eight_connections_with_one_dedup_key_create_one_session",
    ),
    _guard(
        "a request id is looked up", COMMANDS, "if dedup_key is not null then", "if false then",
        "postgres/test_clients_messages::test_one_request_id_is_one_message",
    ),
    _guard(
        "a cancel takes the token", COMMANDS,
        "set fencing_token = s.fencing_token + 1, status = 'queued', lease_owner = null",
        "set status = 'queued', lease_owner = null",
        "postgres/test_clients_cancel::test_cancel_ends_a_session_at_once_in_every_active_status",
        "postgres/test_clients_commands::test_a_forced_release_takes_the_session_from_its_owner_uncharged",
    ),
    _guard(
        "a cancel makes open approvals obsolete", COMMANDS,
        "  perform agentrt._obsolete_approvals(session_id);\n  perform agentrt._append_entry(session_id, 'session_can",
        "  perform agentrt._append_entry(session_id, 'session_can",
        "postgres/test_clients_approvals::test_a_cancel_makes_approvals_obsolete_for_good",
    ),
    _guard(
        "a cancel drops queued messages", FUNCTIONS,
        "c.session_id = _queued_messages.session_id and c.type = 'session_cancelled'", "false",
        "postgres/test_clients_messages::test_a_cancel_drops_queued_messages_and_lists_them",
    ),
    _guard(
        "a new run keeps the rest of the old owner", FUNCTIONS,
        "lease_acquired_at = null, ready_at = greatest(moment, s.ready_at), due = s.ready_at <= moment",
        "lease_acquired_at = null, ready_at = moment, due = true",
        "postgres/test_clients_messages::"
        "test_after_cancelling_a_running_session_a_new_run_waits_for_one_heartbeat_of_the_old_owner",
    ),
    _guard(
        "another isolation level is refused", CREATE, "if isolation not in (", "if false and isolation not in (",
        "postgres/test_clients_create::test_another_isolation_level_is_refused",
    ),
    _guard(
        "an unknown option is refused", CREATE, "  if unknown is not null then", "  if false then",
        "postgres/test_clients_create::test_every_client_function_names_an_option_that_it_does_not_know",
    ),
    _guard(
        "a decision names the arguments that were seen", APPROVALS, "if arguments_hash <> approval.arguments_hash then",
        "if false then",
        "postgres/test_clients_approvals::test_a_decision_for_other_arguments_is_refused_and_the_approval_stays_open",
    ),
    _guard(
        "an approval expires", APPROVALS, "or approval.expires_at <= clock_timestamp() then", "then",
        "postgres/test_clients_approvals::test_an_approval_whose_time_is_over_can_no_longer_be_decided",
    ),
    _guard(
        "a session wakes when it waits for nothing more", APPROVALS,
        "if not exists (select from agentrt._missing(head)) then", "if true then",
        "postgres/test_clients_approvals::test_a_session_wakes_when_the_last_of_its_approvals_is_decided",
    ),
    _guard(
        "the journal is append-only", SCHEMA,
        """\
create trigger journal_no_update before update on agentrt.journal
  for each statement execute function agentrt._refuse_journal_change();
""",
        "",
        "postgres/test_guards::test_the_journal_is_append_only_even_for_its_owner",
    ),
    _guard(
        "entries go with their session only", SCHEMA,
        "if exists (select from changed c join agentrt.sessions s on s.id = c.session_id) then", "if false then",
        "postgres/test_guards::test_an_entry_of_an_ended_session_cannot_be_deleted_alone",
    ),
    # --- the worker ---
    _guard(
        "a write holds one answer of the model", "agentrt/worker/commitline.py", " or answers > 1:", ":",
        "worker/test_committer::test_a_write_holds_at_most_one_answer_of_a_model",
    ),
    _guard(
        "an ending with an unknown outcome is looked for", COMMITTER,
        "if sending.unknown and sending.write.ending is not None:", "if False:",
        "worker/test_committer::test_an_ending_whose_answer_was_lost_is_found_although_another_run_has_begun",
    ),
    _guard(
        "a refused batch is written session by session", COMMITTER, "if len(batch) > 1:", "if False:",
        "worker/test_committer::test_only_the_session_whose_entry_cannot_be_stored_is_told",
    ),
    _guard(
        "a write with an unknown outcome is not merged", COMMITTER,
        "                sending.unknown |= not isinstance(error, StatementTimeout)\n"
        "                sending.line.in_flight = False",
        "                sending.line.dissolve()",
        "worker/test_committer::test_an_append_with_an_unknown_outcome_is_repeated_byte_for_byte_and_written_once",
    ),
    _guard(
        "a commit is bounded in bytes", COMMITTER, " or line.least_size() > room", "",
        "worker/test_committer_bounds::test_a_commit_is_bounded_in_bytes_and_one_session_goes_however_large_it_is",
    ),
    _guard(
        "a commit that failed is split", COMMITTER, "                backlog.bounds.failed(batch)\n", "",
        "worker/test_committer_bounds::test_a_commit_that_the_server_gives_up_is_split_until_it_fits",
    ),
    _guard(
        "a write that is too slow alone goes to the side", COMMITTER,
        "if isinstance(error, StatementTimeout) and len(batch) == 1:", "if False:",
        "worker/test_committer_bounds::test_nobody_waits_for_a_session_whose_write_alone_is_too_slow",
    ),
    _guard(
        "the fence counts from the renewal's sending", "agentrt/worker/keeper.py",
        "renewed_at=sent, locked=renewal.locked",
        "renewed_at=self._clock(), locked=renewal.locked",
        "worker/test_keeper::test_the_fence_counts_from_when_the_renewal_was_sent_not_from_its_answer",
    ),
    _guard(
        "a claim on its way is no stray", "agentrt/worker/reconciler.py",
        "elif before[lease] is not None and before[lease] == self._pending_claim():", "elif False:",
        "worker/test_reconciler::test_a_claim_that_is_still_on_its_way_is_not_given_back_however_often_it_is_renewed",
    ),
    _guard(
        "commits are durable whatever the database's default", "agentrt/postgres/pool.py",
        '"synchronous_commit": "on",', "",
        "postgres/test_worker_connections::test_the_databases_defaults_do_not_decide_about_durability_and_limits",
    ),
    _guard(
        "what a tool's commit is asked by is no commit", COMMITTER,
        "if written.answer is Answer.ALREADY and not await self._store.wrote(holding.session.id, key):", "if False:",
        "worker/test_committer_tools::test_a_tools_commit_without_an_answer_is_settled_for_good",
    ),
    _guard(
        "a tool gets no connection without a transaction", "agentrt/postgres/tooltransaction.py",
        "if self._broken:  # perhaps", "if False:  # perhaps",
        "postgres/test_worker_tool_transaction::"
        "test_a_connection_on_which_no_transaction_could_be_begun_is_given_to_nobody",
    ),
    _guard(
        "a tool's transaction is the one that commits", "agentrt/postgres/tooltransaction.py",
        "if present != self._transaction_id or not connection.is_in_transaction():", "if False:",
        "postgres/test_worker_tool_transaction::test_a_tool_that_ends_the_transaction_itself_is_told",
    ),
)  # fmt: skip
