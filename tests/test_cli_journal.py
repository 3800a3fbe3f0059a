"""``agentrt plan``, ``lint``, ``sessions export`` and ``import``."""

import json
from pathlib import Path

import pytest

from tests.commandline import assert_one_sentence, run
from tests.workerprocess import worker, write_agents

pytestmark = pytest.mark.one_server

WORKER = "22222222-2222-2222-2222-222222222222"


def entry(seq: int, type: str, data: dict[str, object], **row: object) -> dict[str, object]:
    worker_id = WORKER if type in ("assistant_message", "tool_started", "tool_result", "session_claimed") else None
    return {"seq": seq, "run": 1, "attempt": 1, "fencing_token": 1, "worker_id": worker_id, "type": type, "data": data,
            "created_at": "2026-01-02T03:04:05+00:00", **row}  # fmt: skip


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


CALL = {"type": "tool_call", "tool": "weather", "arguments": "{}", "call_id": "000004000"}
BEGUN = [
    entry(1, "session_created", {"agent": "greeter"}),
    entry(2, "user_message", {"content": text("hello")}),
    entry(3, "session_claimed", {"worker": "w", "agent_version": "v"}),
    entry(4, "assistant_message", {"content": [CALL], "stop_reason": "tool_calls", "seen_seq": 2, "model": "m"}),
]
RESULT = entry(5, "tool_result", {"call_id": "000004000", "tool": "weather", "content": "sunny", "outcome": "ok"})
ANSWER = entry(6, "assistant_message", {"content": text("Sunny."), "seen_seq": 2, "model": "m"})
END = entry(7, "session_completed", {"outcome": {"text": "Sunny."}})
HEAD = {"id": "33333333-3333-3333-3333-333333333333", "agent": "greeter", "queue": "q", "priority": 3,
        "config": {"limits": {"turns": 9}}, "labels": {"team": "search"}, "tenant": "acme"}  # fmt: skip


def write(path: Path, *entries: dict[str, object]) -> str:
    lines = [{"agentrt_journal": 1, "session": HEAD}, *entries]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


# --- lint -----------------------------------------------------------------------------------------------------------


def test_a_lawful_journal_breaks_no_rule(tmp_path):
    ran = run("lint", "--file", write(tmp_path / "j", *BEGUN, RESULT, ANSWER, END))
    assert (ran.code, ran.out) == (0, "7 entries, no rule is broken\n")
    assert run("lint", "--file", write(tmp_path / "j", *BEGUN)).code == 0


@pytest.mark.parametrize(
    ("entries", "seq", "rule"),
    [
        ([BEGUN[0], *BEGUN[2:]], 3, "gapless"),
        (BEGUN[1:], 2, "gapless"),
        ([*BEGUN, entry(5, "session_created", {})], 5, "created_first"),
        ([*BEGUN, entry(5, "user_message", {"content": text("x")}, fencing_token=0)], 5, "token_grows"),
        ([*BEGUN, entry(5, "user_message", {"content": text("x")}, fencing_token=2**62 + 1)], 5, "token_range"),
        ([*BEGUN, entry(5, "user_message", {"content": text("x")}, run=4)], 5, "run_grows"),
        ([*BEGUN, entry(5, "from_the_future", {})], 5, "known_type"),
        ([*BEGUN, entry(5, "user_message", {"content": []})], 5, "content"),
        ([*BEGUN, entry(5, "user_message", {"content": [{"type": "hologram"}]})], 5, "known_block"),
        ([*BEGUN, RESULT, {**RESULT, "seq": 6}], 6, "one_result"),
        ([*BEGUN, entry(5, "tool_result", {"call_id": "000009000", "tool": "t", "content": ""})], 5, "call_exists"),
        ([*BEGUN, entry(5, "tool_started", {"call_id": "000009000", "tool": "t"})], 5, "call_exists"),
        ([*BEGUN, RESULT, {**ANSWER, "worker_id": None}], 6, "owner"),
        ([*BEGUN, RESULT, entry(6, "assistant_message", {"content": text("x"), "seen_seq": 6})], 6, "seen_seq"),
        ([*BEGUN, RESULT, entry(6, "assistant_message", {"content": text("x"), "seen_seq": 1})], 6, "seen_seq"),
        ([*BEGUN, RESULT, entry(6, "assistant_message", {"content": [CALL], "seen_seq": 2})], 6, "call_id"),
        ([], 0, "not_empty"),
    ],
)
def test_a_broken_rule_is_named_with_its_seq(tmp_path, entries, seq, rule):
    ran = run("lint", "--json", "--file", write(tmp_path / "j", *entries))
    assert ran.code == 1
    assert (seq, rule) in [(breach["seq"], breach["rule"]) for breach in json.loads(ran.out)]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", 1),
        ("no json\n", 1),
        ("[]\n", 1),
        ('{"a": 1}\n', 1),
        ('{"agentrt_journal": 2, "session": {}}\n', 1),
        ('{"agentrt_journal": 1, "session": {}}\n{"seq": 1}\n', 2),
        ('{"agentrt_journal": 1, "session": {}}\n{"seq": "x"}\n{"\n', 3),
    ],
)
def test_a_file_that_is_no_journal_is_named_by_line(tmp_path, content, line):
    (tmp_path / "j").write_text(content)
    names = (f"{tmp_path / 'j'}, line {line}:",)
    assert_one_sentence(run("lint", "--file", str(tmp_path / "j")), code=2, names=names)


def test_a_file_that_does_not_exist_or_is_no_text_is_named(tmp_path):
    assert_one_sentence(run("lint", "--file", "/no/such"), code=2, names=("/no/such", "No such file"))
    (tmp_path / "j").write_bytes(b"\xff\xfe\x00")
    assert_one_sentence(run("lint", "--file", str(tmp_path / "j")), code=2, names=(str(tmp_path / "j"),))


# --- import and export ----------------------------------------------------------------------------------------------


def test_an_imported_session_is_exported_as_it_was(database_url, tmp_path):
    file = write(tmp_path / "j", *BEGUN, RESULT, ANSWER, END)
    assert run("sessions", "import", file, "--keep-id", url=database_url).out.strip() == HEAD["id"]
    head, *entries = [
        json.loads(line) for line in run("sessions", "export", str(HEAD["id"]), url=database_url).out.splitlines()
    ]
    assert {name: head["session"][name] for name in HEAD} == HEAD
    assert head["session"]["status"] == "completed"
    assert head["session"]["outcome"] == {"text": "Sunny."}
    assert [(e["seq"], e["type"], e["worker_id"], e["created_at"]) for e in entries] == [
        (e["seq"], e["type"], e["worker_id"], e["created_at"]) for e in [*BEGUN, RESULT, ANSWER, END]
    ]
    assert entries[1]["data"]["content"] == text("hello")
    again = run("sessions", "import", file, "--keep-id", url=database_url)
    assert_one_sentence(again, code=1, names=(str(HEAD["id"]),))
    assert run("sessions", "import", file, url=database_url).out.strip() != HEAD["id"]


def test_a_run_that_was_on_counts_as_cancelled_and_can_be_retried(database_url, tmp_path):
    session = run("sessions", "import", write(tmp_path / "j", *BEGUN), url=database_url).out.strip()
    shown = json.loads(run("sessions", "show", session, "--json", url=database_url).out)
    assert (shown["status"], shown["journal"][-1]["data"]["reason"]) == ("cancelled", "imported")
    assert run("sessions", "retry", session, url=database_url).out == "queued\n"


def test_unknown_entries_are_kept(database_url, tmp_path):
    strange = entry(5, "from_the_future", {"schema_version": 7, "x": [1]})
    session = run("sessions", "import", write(tmp_path / "j", *BEGUN, strange), url=database_url).out.strip()
    exported = run("sessions", "export", session, url=database_url).out.splitlines()
    kept = json.loads(exported[5])
    assert (kept["type"], kept["data"]) == ("from_the_future", {"schema_version": 7, "x": [1]})


def test_a_gap_in_an_import_is_named_by_line_and_nothing_is_stored(database_url, tmp_path, psql):
    ran = run("sessions", "import", write(tmp_path / "j", *BEGUN[:2], BEGUN[3]), url=database_url)
    assert_one_sentence(ran, code=2, names=("line 4", "gap"))
    assert psql("select count(*) from agentrt.sessions") == "0"


def test_a_token_that_leaves_no_room_for_claims_is_not_imported(database_url, tmp_path, psql):
    late = {**END, "fencing_token": 2**63 - 2}
    ran = run("sessions", "import", write(tmp_path / "j", *BEGUN, RESULT, ANSWER, late), url=database_url)
    assert_one_sentence(ran, code=2, names=("line 8", "token", str(2**62)))
    assert psql("select count(*) from agentrt.sessions") == "0"


def test_an_imported_message_that_was_delivered_or_sent_before_is_not_taken_again(database_url, tmp_path, psql):
    sent: dict[str, object] = {"content": text("more"), "request_id": "r-1"}
    entries = [*BEGUN, RESULT, ANSWER, entry(7, "message_queued", sent), entry(8, "session_completed", {}),
               entry(9, "user_message", {"content": text("more"), "message_seq": 7}, run=2),
               entry(10, "session_completed", {}, run=2)]  # fmt: skip
    session = run("sessions", "import", write(tmp_path / "j", *entries), url=database_url).out.strip()
    keys = "select seq || ' ' || dedup_key from agentrt.journal where dedup_key is not null order by seq"
    assert psql(keys).splitlines() == ["5 w:result:000004000", "7 c:r-1", "9 w:message:7"]
    assert psql(f"select * from agentrt._queued_messages('{session}')") == ""
    again = """'{"request_id": "r-1", "when_running": "queue"}'"""
    assert psql(f"select agentrt.send_message('{session}', 'more', {again})") == "7"


def test_foreign_call_ids_become_those_of_the_places_where_the_calls_stand(database_url, tmp_path, psql):
    foreign = {**CALL, "call_id": "00000a000"}
    asked = entry(4, "assistant_message", {"content": [foreign, {**foreign, "call_id": "toolu_1"}], "seen_seq": 2})
    told = [
        entry(5, "tool_started", {"call_id": "toolu_1", "tool": "weather"}),
        entry(6, "tool_result", {"call_id": "toolu_1", "tool": "weather", "content": "sunny"}),
        entry(7, "tool_result", {"call_id": "00000b000", "tool": "weather", "content": "of no call"}),
    ]
    run("sessions", "import", write(tmp_path / "j", *BEGUN[:3], asked, *told), url=database_url)
    named = "select jsonb_path_query_array(data, 'strict $.**.call_id') from agentrt.journal where seq between 4 and 7"
    assert psql(named + " order by seq").splitlines() == [
        '["000004000", "000004001"]', '["000004001"]', '["000004001"]', '["00000b000"]'
    ]  # fmt: skip
    keys = "select dedup_key from agentrt.journal where dedup_key is not null"
    assert psql(keys) == "w:result:000004001"


# --- plan -----------------------------------------------------------------------------------------------------------


def test_plan_tells_what_a_takeover_would_do(database_url, tmp_path):
    agents = write_agents(tmp_path)
    session = run("sessions", "create", "greeter", "hello", url=database_url).out.strip()
    fresh = json.loads(run("plan", session, "--json", url=database_url, agents=agents).out)
    assert (fresh["resume"]["kind"], fresh["next_step"]) == ("start", "AskModel")
    ended = run("sessions", "import", write(tmp_path / "j", *BEGUN, RESULT, ANSWER, END), url=database_url).out.strip()
    planned = run("plan", ended, url=database_url, agents=agents).out
    assert planned == "it has ended (completed): no worker claims it before a message begins a new run\n"


def test_plan_tells_which_calls_would_run_again_and_which_are_closed(database_url, tmp_path, psql):
    agents = write_agents(tmp_path)
    session = run("sessions", "import", write(tmp_path / "j", *BEGUN, RESULT), url=database_url).out.strip()
    again = run("plan", session, url=database_url, agents=agents).out
    assert "then: ask the model" in again
    open_call = run("sessions", "import", write(tmp_path / "j", *BEGUN), url=database_url).out.strip()
    closed = json.loads(run("plan", open_call, "--json", url=database_url, agents=agents).out)
    assert [result["outcome"] for result in closed["resume"]["close"]] == ["interrupted"]
    told = run("plan", open_call, url=database_url, agents=agents).out
    assert "  answer call 000004000 (weather) as interrupted\n" in told
    assert "(cancelled): this is what a worker would do after agentrt sessions retry" in told
    psql("alter table agentrt.sessions disable trigger all; alter table agentrt.journal disable trigger all;"
         f"delete from agentrt.journal where session_id = '{open_call}' and seq = 5")  # fmt: skip
    rerun = run("plan", open_call, url=database_url, agents=agents).out
    assert "  run call 000004000 (weather)\n" in rerun
    assert "then: run weather" in rerun


def test_plan_of_a_session_that_runs_says_that_it_does_and_where(database_url, tmp_path, psql):
    session = run("sessions", "create", "greeter", "hello", url=database_url).out.strip()
    psql(
        "insert into agentrt.workers (id, name, host, pid, version, agents, queues, slots, heartbeat_seconds, "
        f"lease_expires_at) values ('{WORKER}', 'shop-7', 'h', 1, '0', '{{greeter}}', '{{default}}', 1, 2, "
        "now() + interval '1 hour');"
        "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data, created_at) "
        f"values ('{session}', 3, 1, 1, 1, '{WORKER}', 'session_claimed', "
        """'{"worker": "shop-7", "agent_version": "1"}', now() - interval '3 hours');"""
        f"update agentrt.sessions set last_seq = 3, status = 'running', attempt = 1, lease_owner = '{WORKER}', "
        "lease_acquired_at = now(), fencing_token = 1"
    )
    agents = write_agents(tmp_path)
    told = run("plan", session, url=database_url, agents=agents).out
    assert told.startswith("it runs now, on worker shop-7, claimed 3 h ago: this is what a successor would do"), told
    facts = run("sessions", "show", session, url=database_url).out.splitlines()
    assert next(line.split() for line in facts if line.startswith("worker")) == ["worker", "shop-7"]
    as_json = json.loads(run("plan", session, "--json", url=database_url, agents=agents).out)
    assert (as_json["status"], as_json["worker"]) == ("running", "shop-7")


def test_plan_of_a_session_that_waits_says_for_what(database_url, tmp_path, psql):
    later = run(
        "sessions", "create", "greeter", "hello", "--ready-at", "2130-01-01T00:00Z", url=database_url
    ).out.strip()
    agents = write_agents(tmp_path)
    assert "it is queued, to be claimed in " in run("plan", later, url=database_url, agents=agents).out
    psql("update agentrt.sessions set status = 'suspended', "
         """suspension = '{"reason": "budget", "message": "20 turns are used up"}'""")  # fmt: skip
    told = run("plan", later, url=database_url, agents=agents).out
    assert told.startswith("it is suspended (budget: 20 turns are used up): no worker claims it"), told


def test_plan_without_the_agent_says_so(database_url):
    session = run("sessions", "create", "greeter", "hello", url=database_url).out.strip()
    ran = run("plan", session, url=database_url)
    assert ran.code == 0
    assert "greeter is not in AGENTRT_AGENTS" in ran.err


@pytest.mark.system
def test_an_imported_session_goes_on_with_a_message(database_url, tmp_path):
    session = run("sessions", "import", write(tmp_path / "j", *BEGUN), url=database_url).out.strip()
    with worker(database_url, agents=write_agents(tmp_path), queues="q"):
        ran = run("sessions", "send", session, "go on", "--follow", url=database_url)
        assert ran.code == 0
        assert "It is sunny." in ran.out
    assert run("lint", session, url=database_url).code == 0
