"""``agentrt sessions …`` against a real database, with and without a real worker process."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from agentrt.cli import operate
from agentrt.cli.output import printable, relative
from tests.commandline import SECONDS, assert_one_sentence, environment, run
from tests.workerprocess import worker, write_agents

pytestmark = pytest.mark.one_server

NOBODY = "00000000-0000-0000-0000-000000000000"


def create(url: str, *arguments: str) -> str:
    ran = run("sessions", "create", "greeter", "hello", *arguments, url=url)
    assert ran.code == 0, ran
    return ran.out.strip()


def journal_types(url: str, session: str) -> list[str]:
    return [entry["type"] for entry in json.loads(run("sessions", "show", session, "--json", url=url).out)["journal"]]


# --- without a worker -----------------------------------------------------------------------------------------------


def test_create_prints_the_id_alone_and_warns_that_nobody_serves_the_agent(database_url):
    ran = run("sessions", "create", "greeter", "hello", url=database_url)
    assert ran.code == 0
    UUID(ran.out.strip())
    assert "no worker is running" in ran.err
    assert journal_types(database_url, ran.out.strip()) == ["session_created", "user_message"]


def test_create_names_the_agents_that_are_known(database_url, psql):
    psql(
        "insert into agentrt.workers (id, name, host, pid, version, agents, queues, slots, heartbeat_seconds, "
        "lease_expires_at) values (gen_random_uuid(), 'w', 'h', 1, '0', '{auditor,writer}', '{default}', 1, 2, "
        "now() + interval '1 hour')"
    )
    assert "auditor, writer" in run("sessions", "create", "greter", "hello", url=database_url).err
    assert run("sessions", "create", "auditor", "hello", url=database_url).err == ""
    assert "queue slow" in run("sessions", "create", "auditor", "hello", "--queue", "slow", url=database_url).err


def test_create_reads_the_message_from_standard_input(database_url, psql):
    run("sessions", "create", "greeter", "-", url=database_url, stdin="from a pipe\nwith two lines")
    found = psql("select data -> 'content' -> 0 ->> 'text' from agentrt.journal where type = 'user_message'")
    assert found == "from a pipe\nwith two lines"


def test_create_passes_its_options_on(database_url, psql):
    options = ["--queue", "q", "--priority", "7", "--label", "team=search", "--label", "x=a=b", "--tenant", "acme"]
    options += ["--config", '{"limits": {"turns": 3}}', "--dedup-key", "k", "--max-attempts", "2"]
    first = create(database_url, *options)
    assert create(database_url, *options) == first
    row = psql(
        "select queue, priority, labels ->> 'team', labels ->> 'x', tenant, config, max_attempts from agentrt.sessions"
    )
    assert row == 'q|7|search|a=b|acme|{"limits": {"turns": 3}}|2'


def test_a_session_may_begin_at_a_time_and_under_an_id_of_ones_own(database_url, psql):
    own = "0198c0de-0000-7000-8000-000000000001"
    assert create(database_url, "--ready-at", "2130-01-31T09:00+01:00", "--id", own) == own
    assert psql("select ready_at = '2130-01-31 08:00Z', due from agentrt.sessions") == "t|f"
    assert "its time: not before 2130-01-31" in run("sessions", "list", url=database_url).out


def test_json_output_is_one_document(database_url):
    created = json.loads(run("sessions", "create", "greeter", "hello", "--json", url=database_url).out)
    session = created["session_id"]
    sent = json.loads(run("sessions", "send", session, "more", "--json", url=database_url).out)
    assert sent == {"session_id": session, "seq": 3}
    (listed,) = json.loads(run("sessions", "list", "--json", url=database_url).out)
    assert (listed["id"], listed["status"]) == (session, "queued")
    shown = json.loads(run("sessions", "show", session, "--json", url=database_url).out)
    assert [entry["seq"] for entry in shown["journal"]] == [1, 2, 3]
    cancelled = json.loads(run("sessions", "cancel", session, "--json", url=database_url).out)
    assert cancelled == {"session_id": session, "status": "cancelled"}


def test_list_filters_and_shows_ids_in_full(database_url):
    one, two = create(database_url, "--label", "team=search"), create(database_url, "--queue", "slow")
    run("sessions", "cancel", one, url=database_url)
    assert one in run("sessions", "list", url=database_url).out
    by_label = run("sessions", "list", "--label", "team=search", url=database_url).out
    assert one in by_label
    assert two not in by_label
    assert two in run("sessions", "list", "--status", "queued", "--queue", "slow", url=database_url).out
    assert "none is alive" in run("sessions", "list", "--status", "queued", url=database_url).out
    nothing = run("sessions", "list", "--agent", "nobody", url=database_url)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "There are no such sessions.\n")


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_nothing_of_a_list_is_cut_on_a_narrow_terminal(database_url, columns):
    session = create(database_url, "--label", "team=search", "--queue", "slow")
    controller, terminal = pty.openpty()
    environ = {**environment(url=database_url), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "agentrt", "sessions", "list"]
    done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, env=environ, check=True, timeout=SECONDS)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux's way to say that all was read
        while given := os.read(controller, 65_536):
            shown += given
    os.close(controller)
    lines = re.sub("\x1b\\[\\d*m", "", shown.decode()).split("\r\n")
    assert lines[0].split()[:2] == ["id", "agent"], done
    assert lines[1].startswith(f"{session}  greeter  ")
    assert "queued" in lines[1]
    assert "none is alive" in " ".join(line.strip() for line in lines[1:])
    assert max(map(len, lines)) <= columns


def test_show_tells_the_head_and_every_entry(database_url):
    session = create(database_url)
    run("sessions", "cancel", session, "--reason", "changed my mind", url=database_url)
    text = run("sessions", "show", session, url=database_url).out
    for words in (session, "greeter", "cancelled", "user_message", "hello", "changed my mind"):
        assert words in text


def test_following_an_ended_session_shows_it_and_ends_with_1_if_it_was_cancelled(database_url):
    session = create(database_url)
    run("sessions", "cancel", session, url=database_url)
    ran = run("sessions", "follow", session, "--json", url=database_url)
    assert ran.code == 1
    assert [json.loads(line)["seq"] for line in ran.out.splitlines()] == [1, 2, 3]
    assert run("sessions", "follow", session, "--after-seq", "3", url=database_url).out == ""


def test_a_cancelled_session_can_be_retried_and_archived(database_url):
    session = create(database_url)
    run("sessions", "cancel", session, url=database_url)
    assert run("sessions", "retry", session, url=database_url).out == "queued\n"
    run("sessions", "cancel", session, url=database_url)
    assert run("sessions", "archive", session, url=database_url).out == "cancelled\n"
    assert_one_sentence(run("sessions", "send", session, "hi", url=database_url), code=1, names=("archived",))


def test_entries_that_are_followed_from_the_middle_name_their_workers(database_url, psql):
    session = create(database_url)
    psql(
        "insert into agentrt.workers (id, name, host, pid, version, agents, queues, slots, heartbeat_seconds, "
        "lease_expires_at) values ('22222222-2222-2222-2222-222222222222', 'shop-7', 'h', 1, '0', '{greeter}', "
        "'{default}', 1, 2, now() + interval '1 hour');"
        "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data) "
        f"values ('{session}', 3, 1, 1, 1, '22222222-2222-2222-2222-222222222222', 'assistant_message', "
        """'{"content": [{"type": "text", "text": "hi"}], "seen_seq": 2, "model": "m"}');"""
        "update agentrt.sessions set last_seq = 3, status = 'completed', outcome = '{}', finished_at = now()"
    )
    ran = run("sessions", "follow", session, "--after-seq", "2", url=database_url)
    assert ran.out.split()[2:4] == ["shop-7", "assistant_message"], ran


def suspend(psql, session: str, reason: str) -> None:
    psql(
        "update agentrt.sessions set status = 'suspended', "
        f"""suspension = '{{"reason": "{reason}", "message": "m"}}' where id = '{session}'"""
    )


def test_all_sessions_that_wait_for_one_reason_are_resumed_together(database_url, psql):
    one, two, three = (create(database_url) for _ in range(3))
    suspend(psql, one, "blocked")
    suspend(psql, two, "blocked")
    suspend(psql, three, "budget")
    ran = run("sessions", "resume", "--reason", "blocked", "--agent", "greeter", url=database_url)
    assert ran.code == 0
    assert set(ran.out.split()) == {one, two}
    assert run("sessions", "resume", three, "--limit", "turns=200", url=database_url).out == "queued\n"
    assert psql(f"select config -> 'limits' ->> 'turns' from agentrt.sessions where id = '{three}'") == "200"


def test_a_bulk_resume_goes_on_behind_what_it_cannot_wake_however_many_there_are(database_url, psql, monkeypatch):
    monkeypatch.setattr(operate, "BATCH", 2)
    sessions = [create(database_url) for _ in range(9)]
    for number, session in enumerate(sessions):
        suspend(psql, session, "budget" if number % 3 == 0 else "blocked")
    open_approval = sessions[-1]
    psql(
        "insert into agentrt.approvals (id, session_id, run, tool_call_id, tool, arguments, arguments_hash) "
        f"values (gen_random_uuid(), '{open_approval}', 1, 'c', 't', '{{}}', 'h')"
    )
    ran = run("sessions", "resume", "--reason", "blocked", url=database_url)
    assert ran.code == 1
    assert "1 approval is open: decide it, or resume with force" in ran.err
    blocked = {session for number, session in enumerate(sessions) if number % 3}
    assert set(ran.out.split()) == blocked - {open_approval}
    left = psql("select string_agg(suspension ->> 'reason', ' ') from agentrt.sessions where status = 'suspended'")
    assert sorted(left.split()) == ["blocked", *["budget"] * 3]


def test_old_sessions_are_pruned_and_others_stay(database_url, psql):
    old, young = create(database_url), create(database_url)
    for session in (old, young):
        run("sessions", "cancel", session, url=database_url)
    psql(f"update agentrt.sessions set created_at = created_at - interval '91 days', "
         f"finished_at = finished_at - interval '91 days' where id = '{old}'")  # fmt: skip
    assert run("prune", "--older-than", "90d", "--yes", url=database_url).out == "1 sessions deleted\n"
    assert psql("select id from agentrt.sessions") == young


def test_a_decision_is_taken_and_a_second_other_one_refused(database_url, psql):
    session = create(database_url)
    suspend(psql, session, "approval")
    approval = "11111111-1111-1111-1111-111111111111"
    psql(f"insert into agentrt.approvals (id, session_id, run, tool_call_id, tool, arguments, arguments_hash, reason) "
         f"values ('{approval}', '{session}', 1, '000003000', 'pay', '{{\"sum\": 7}}', 'abc', 'required')")  # fmt: skip
    listed = run("sessions", "approvals", url=database_url).out
    assert f"agentrt sessions approve {approval} --arguments-hash abc" in listed
    assert '{"sum": 7}' in listed
    assert "required" in listed
    assert_one_sentence(
        run("sessions", "approve", approval, "--arguments-hash", "xyz", url=database_url), code=1, names=("abc",)
    )
    assert run("sessions", "approve", approval, "--reviewer", "ann", url=database_url).out == "queued\n"
    assert_one_sentence(run("sessions", "reject", approval, url=database_url), code=1, names=("approved", "ann"))
    assert run("sessions", "approvals", url=database_url).err == "Nothing waits for a decision.\n"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "follow", "cancel", "retry", "archive", "release", "resume"])
def test_an_id_that_is_no_uuid_is_wrong_use(database_url, command):
    assert_one_sentence(run("sessions", command, "42", url=database_url), code=2, names=("'42'", "UUID"))


def test_who_decides_on_a_session_is_told_where_its_approvals_are(database_url):
    session = create(database_url)
    ran = run("sessions", "approve", session, url=database_url)
    assert_one_sentence(ran, code=2, names=(f"{session} is a session", f"agentrt sessions approvals {session}"))
    assert_one_sentence(run("sessions", "approve", NOBODY, url=database_url), code=1, names=(f"no approval {NOBODY}",))


def test_what_waits_in_a_session_that_does_not_exist_is_not_nothing(database_url):
    ran = run("sessions", "approvals", NOBODY, url=database_url)
    assert_one_sentence(ran, code=1, names=(NOBODY, "agentrt sessions list"))


@pytest.mark.parametrize("command", ["show", "follow", "cancel", "retry", "archive", "release", "resume"])
def test_a_session_that_does_not_exist_is_named(database_url, command):
    assert_one_sentence(run("sessions", command, NOBODY, url=database_url), code=1, names=(NOBODY,))


@pytest.mark.parametrize("message", ["", " \n\t"])
def test_an_empty_message_is_refused_and_nothing_is_written(database_url, psql, message):
    assert_one_sentence(run("sessions", "create", "greeter", message, url=database_url), code=2, names=("empty",))
    assert psql("select count(*) from agentrt.sessions") == "0"


def test_a_message_of_ten_megabytes_is_refused_with_its_size_and_nothing_is_written(database_url, psql):
    ran = run("sessions", "create", "greeter", "-", url=database_url, stdin="x" * 10_000_000)
    assert_one_sentence(ran, code=2, names=("10000000",))
    assert psql("select count(*) from agentrt.sessions") == "0"


def test_settings_bound_what_the_command_line_creates(database_url, psql):
    settings = {"max_attempts": "3", "message_max_bytes": "1024"}
    run("sessions", "create", "greeter", "hello", url=database_url, **settings)
    run("sessions", "create", "greeter", "hello", "--max-attempts", "4", url=database_url, **settings)
    ran = run("sessions", "create", "greeter", "-", url=database_url, stdin="ä" * 600, **settings)
    assert_one_sentence(ran, code=2, names=("1200", "AGENTRT_MESSAGE_MAX_BYTES"))
    assert psql("select string_agg(max_attempts::text, ' ' order by max_attempts) from agentrt.sessions") == "3 4"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--config", "{"), "--config"),
        (("--config", "[1]"), "--config"),
        (("--label", "team"), "--label team"),
        (("--priority", "99999"), "--priority 99999"),
        (("--max-attempts", "0"), "--max-attempts 0"),
        (("--ready-at", "tomorrow"), "--ready-at tomorrow is not a time in ISO 8601"),
        (("--ready-at", "2030-01-31T09:00"), "--ready-at 2030-01-31T09:00 is not a time with its zone"),
        (("--id", "42"), "--id 42 is not a UUID"),
    ],
)
def test_an_option_that_cannot_be_taken_is_named(database_url, arguments, named):
    ran = run("sessions", "create", "greeter", "hello", *arguments, url=database_url)
    assert_one_sentence(ran, code=2, names=(named,))


def test_resuming_needs_a_session_or_a_reason(database_url):
    assert run("sessions", "resume", url=database_url).code == 2
    assert run("sessions", "resume", NOBODY, "--reason", "blocked", url=database_url).code == 2


def test_what_others_wrote_cannot_steer_the_terminal(database_url):
    session = create(database_url)
    run("sessions", "send", session, "\x1b[2Jgone [bold]", url=database_url)
    shown = run("sessions", "show", session, url=database_url).out
    assert "\x1b[2J" not in shown
    assert "gone [bold]" in shown
    assert printable("a\x1bb\x00c\n") == "a\ufffdb\ufffdc\n"


def test_a_reader_that_has_seen_enough_is_no_error(database_url):
    session = create(database_url)
    command = f"{sys.executable} -m agentrt sessions show {session} --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment(url=database_url), capture_output=True, text=True,
        check=False, timeout=SECONDS,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "now"), (5, "5 s ago"), (-90, "in 90 s"), (150, "2 min ago"), (3 * 3600, "3 h ago"), (-200_000, "in 2 d")],
)
def test_times_are_told_as_people_do(seconds, words):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert relative(now - timedelta(seconds=seconds), now=now) == words


# --- with a worker --------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_session_is_created_run_and_followed_to_its_end_from_a_shell(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path)):
        ran = run("sessions", "create", "greeter", "hello", "--follow", "--json", url=database_url)
        assert ran.code == 0, ran
        created, *entries = [json.loads(line) for line in ran.out.splitlines()]
        types = [entry["type"] for entry in entries]
        assert types[0] == "session_created"
        assert types[-1] == "session_completed"
        assert entries[-1]["data"]["outcome"]["text"] == "It is sunny."
        again = run("sessions", "send", created["session_id"], "and now?", "--follow", url=database_url)
        assert again.code == 0
        assert "and now?" in again.out
        assert again.out.rstrip().endswith("It is sunny.")
        (listed,) = json.loads(run("workers", "list", "--json", url=database_url).out)
        assert (listed["agents"], listed["state"]) == (["greeter"], "alive")
    assert "No worker" in run("workers", "list", url=database_url).err
