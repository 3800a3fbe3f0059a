"""Who follows a session sees what happens, who did it, and whether anybody is there to go on with it."""

import asyncio
import re
import signal
import subprocess
import sys
from uuid import UUID

import pytest

from agentrt import connect
from agentrt.cli import following
from agentrt.cli.entries import EntryLines
from agentrt.core.journal import (
    ApprovalDecided,
    Effect,
    Entry,
    EntryData,
    SessionWoken,
    ToolOutcome,
    ToolResult,
    ToolStarted,
)
from agentrt.core.session import Seq
from tests.commandline import SECONDS, environment, run

pytestmark = pytest.mark.one_server

JUDGE = "22222222-2222-2222-2222-222222222222"
A_WORKER = (
    "insert into agentrt.workers (id, name, host, pid, version, agents, queues, slots, heartbeat_seconds, "
    f"lease_expires_at) values ('{JUDGE}', 'shop-7', 'h', 1, '0', '{{greeter}}', '{{default}}', 1, 2, "
    "now() + interval '1 hour')"
)
ORPHANED = (
    "insert into agentrt.journal (session_id, seq, run, attempt, fencing_token, worker_id, type, data) "
    "select id, 3, 1, 1, 2, '{judge}', 'session_orphaned', '{{\"worker\": \"shop-1\"}}' from agentrt.sessions;"
    "update agentrt.sessions set last_seq = 3, status = 'completed', outcome = '{{}}', finished_at = now()"
)


def created(url: str) -> str:
    return run("sessions", "create", "greeter", "hello", url=url).out.strip()


@pytest.mark.parametrize("after_seq", ["0", "2"])
def test_who_follows_a_session_that_nobody_serves_is_told(database_url, after_seq):
    following = subprocess.Popen(
        [sys.executable, "-m", "agentrt", "sessions", "follow", created(database_url), "--after-seq", after_seq],
        env=environment(url=database_url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with following:
        try:
            assert following.stderr is not None
            assert "no worker is running, so the session waits" in following.stderr.readline()
        finally:
            following.kill()


def interrupted(url: str, *arguments: str, told: str) -> tuple[int, str]:
    """Ctrl-C as soon as the command has told these words; its exit code, and what else stands on standard error."""
    following = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "sessions", *arguments],
        env=environment(url=url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with following:
        try:
            stream = following.stderr if told.startswith("no ") else following.stdout
            assert stream is not None
            assert any(told in line for line in stream)
            following.send_signal(signal.SIGINT)
            _, err = following.communicate(timeout=SECONDS)
        finally:
            following.kill()
    return following.returncode, err


@pytest.mark.parametrize("command", ["create", "follow", "send"])
def test_who_no_longer_follows_is_told_that_the_session_goes_on_and_how_to_come_back(database_url, command):
    arguments = {
        "create": ("create", "greeter", "hello", "--follow"),
        "follow": ("follow", created(database_url)),
        "send": ("send", created(database_url), "more", "--follow"),
    }[command]
    code, err = interrupted(database_url, *arguments, told="no worker is running")
    assert code == 130
    assert re.fullmatch("the session goes on; agentrt sessions follow [0-9a-f-]{36} shows it\n", err)


async def test_who_leaves_in_the_middle_of_what_has_ended_is_told_nothing(database_url, capsys, monkeypatch):
    def interrupt(_):
        raise asyncio.CancelledError

    monkeypatch.setattr(following, "printer", lambda **_: interrupt)
    async with connect(database_url) as client:
        session_id = await client.create("greeter", "hello")
        await client.cancel(session_id)
        with pytest.raises(asyncio.CancelledError):
            await following.follow_entries(client, session_id, after_seq=0, as_json=False)
    assert capsys.readouterr().err == ""


def test_of_a_session_that_has_ended_nobody_is_told_that_it_goes_on(database_url):
    session = created(database_url)
    run("sessions", "cancel", session, url=database_url)
    assert interrupted(database_url, "follow", session, "--stay", told="session_cancelled") == (130, "")


def test_a_worker_that_was_killed_and_that_nobody_has_missed_yet_serves_nobody(database_url, psql):
    psql(A_WORKER.replace("now() + ", "now() - "))
    assert "no worker is running" in run("sessions", "create", "greeter", "hello", url=database_url).err
    assert "alive, but gone" in run("workers", "list", url=database_url).out


async def test_a_worker_that_is_about_to_start_is_not_missed(database_url, psql, monkeypatch, capsys):
    async with connect(database_url) as client:
        looked, workers = asyncio.Event(), client.workers

        async def looked_for():
            rows = await workers()
            looked.set()
            return rows

        monkeypatch.setattr(client, "workers", looked_for)
        warned = asyncio.ensure_future(following.warn_if_unserved(client, "greeter", "default", patience_seconds=20))
        await looked.wait()
        await asyncio.to_thread(psql, A_WORKER)
        assert await warned is False
        assert capsys.readouterr().err == ""
        assert await following.warn_if_unserved(client, "nobody", "default") is True


@pytest.mark.parametrize("command", ["show", "follow"])
def test_the_worker_that_found_another_one_dead_is_shown_by_its_name(database_url, psql, command):
    session = created(database_url)
    psql(f"{A_WORKER};{ORPHANED.format(judge=JUDGE)}")
    *_, last = run("sessions", command, session, url=database_url).out.splitlines()
    assert last.split()[2:4] == ["shop-7", "session_orphaned"]


def test_a_worker_that_is_no_longer_known_is_shown_by_the_beginning_of_its_id(database_url, psql):
    session = created(database_url)
    psql(ORPHANED.format(judge=JUDGE))
    *_, last = run("sessions", "follow", session, url=database_url).out.splitlines()
    assert last.split()[2:4] == ["22222222", "session_orphaned"]


def told(data: EntryData) -> list[str]:
    line, _ = EntryLines().line(Entry(seq=Seq(4), run=1, data=data))
    return line.split(maxsplit=4)[2:]


def test_what_only_time_did_was_no_client():
    assert told(SessionWoken(by="expiry"))[0] == "sweep"
    assert told(ApprovalDecided(approval_id=UUID(JUDGE), verdict="expired"))[0] == "sweep"
    assert told(SessionWoken(by="message"))[0] == "client"
    for outcome, author in {"timeout": "sweep", "unknown": "sweep", "ok": "client", "error": "client"}.items():
        assert told(ToolResult(tool="inspect", outcome=ToolOutcome(outcome)))[0] == author
    assert told(ApprovalDecided(approval_id=UUID(JUDGE), verdict="approved", reviewer="ann"))[0] == "client"


@pytest.mark.parametrize(
    ("deferred", "seconds", "words"),
    [(None, None, ""), (True, None, " is deferred, no limit"), (True, 3600.0, " is deferred, for 3600 s at most")],
)
def test_a_call_that_is_deferred_says_so_and_for_how_long_at_most(deferred, seconds, words):
    call = ToolStarted(tool="inspect", effect=Effect.IDEMPOTENT, deferred=deferred, expires_seconds=seconds)
    assert told(call)[-1] == f"inspect (idempotent){words}"
