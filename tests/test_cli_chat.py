"""``agentrt chat`` and ``agentrt dev`` with real workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrt import Client
from agentrt.cli.chat import _show
from agentrt.cli.dev import changed, free_port, prepare, state_of, watched_folders, with_database, worker_environ
from agentrt.core.journal import Entry, SessionOrphaned, SessionReleased
from agentrt.core.session import Seq
from agentrt.settings import Settings
from tests.commandline import SECONDS, Ran, assert_one_sentence, environment, run
from tests.ports import reserved_port
from tests.servers import new_folder
from tests.workerprocess import AGENTS, worker, write_agents

pytestmark = [pytest.mark.one_server]

SLOW = '''
import asyncio
from agentrt import Agent, tool
from agentrt.testing import Call, Reply, ScriptedModel


@tool(effect="read")
async def dawdle() -> str:
    """Never comes back."""
    await asyncio.sleep(3600)


@tool(effect="once", requires_approval=True)
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def script(conversation):
    said = conversation.last_user_text
    if said not in ("dawdle", "pay"):
        return Reply(text=f"You said {said}.")
    if conversation.last_results:
        return Reply(text=f"Then: {conversation.last_results[0].content}")
    if said == "dawdle":
        return Reply(calls=[Call("dawdle", {})])
    return Reply(calls=[Call("pay", {"amount": 7})])


slow = Agent("slow", model=ScriptedModel(script), tools=[dawdle, pay])
'''


@pytest.mark.system
def test_a_conversation_goes_through_the_database_and_can_be_gone_on_with(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path)):
        first = run("chat", "greeter", url=database_url, stdin="hello\n\n")
        assert first.code == 0
        assert "weather" in first.out
        assert "It is sunny." in first.out
        session = json.loads(run("sessions", "list", "--json", url=database_url).out)[0]["id"]
        assert session in first.err
        second = run("chat", "greeter", "--session", session, url=database_url, stdin="more\n")
        assert second.out.count("It is sunny.") == 1
        assert len(json.loads(run("sessions", "list", "--json", url=database_url).out)) == 1


@pytest.mark.system
def test_an_approval_is_asked_for_in_the_chat(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path, SLOW)):
        approved = run("chat", "slow", url=database_url, stdin="pay\ny\n")
        assert "Then: paid 7" in approved.out
        rejected = run("chat", "slow", url=database_url, stdin="pay\nn\n")
        assert "paid 7" not in rejected.out
        assert "Then:" in rejected.out
        unclear = run("chat", "slow", url=database_url, stdin="pay\nyeah, do it\nyes\n")
        assert "Then: paid 7" in unclear.out
        assert "'yeah, do it' is no answer" in unclear.err
        default = run("chat", "slow", url=database_url, stdin="pay\n\n")
        assert "paid 7" not in default.out
        assert "Then:" in default.out


@pytest.mark.system
def test_an_approval_that_another_decided_before_it_could_be_asked_about_is_no_end_of_the_run(
    database_url, tmp_path, monkeypatch
):
    pending = Client.pending_approvals

    async def decided_meanwhile(client, session_id):
        for row in await pending(client, session_id):
            await client.decide(row["id"], "approved", reviewer="ann", arguments_hash=row["arguments_hash"])
        return []

    monkeypatch.setattr(Client, "pending_approvals", decided_meanwhile)
    with worker(database_url, agents=write_agents(tmp_path, SLOW)):
        ran = run("chat", "slow", url=database_url, stdin="pay\nstill there?\n")
    assert [line for line in ran.out.splitlines() if line.startswith("agent>")] == [
        "agent> Then: paid 7",
        "agent> You said still there?.",
    ]


@pytest.mark.system
def test_ctrl_c_cancels_the_run_and_the_chat_goes_on(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path, SLOW)):
        chat = subprocess.Popen(
            [sys.executable, "-u", "-m", "agentrt", "chat", "slow"],
            env=environment(url=database_url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            assert chat.stdin is not None
            assert chat.stdout is not None
            chat.stdin.write("dawdle\n")
            chat.stdin.flush()
            assert "dawdle" in chat.stdout.readline()
            chat.send_signal(signal.SIGINT)
            out, err = chat.communicate("still there?\n", timeout=SECONDS)
        finally:
            chat.kill()
            chat.wait()
    assert "cancelled" in out
    assert "You said still there?." in out
    assert chat.returncode == 0, err


def test_an_interrupt_in_the_instant_in_which_a_wait_begins_cancels_too(database_url, monkeypatch):
    interrupt_as_runs_begin(monkeypatch, number=3)  # behind those that connect and send
    ran = run("chat", "nobody", url=database_url, stdin="hello\n")
    assert (ran.code, "cancelled" in ran.out) == (0, True), ran


def test_an_interrupt_in_the_instant_in_which_a_command_begins_ends_it_quietly(database_url, monkeypatch):
    interrupt_as_runs_begin(monkeypatch, number=1)
    assert run("sessions", "list", url=database_url) == Ran(130, "", "")


def interrupt_as_runs_begin(monkeypatch, *, number):
    """A Ctrl-C when the ``number``-th run has just set its handler for it, and nothing has begun yet."""
    set_handler, begun = signal.signal, []

    def interrupted(which, handler):
        before = set_handler(which, handler)
        if which == signal.SIGINT and handler is not signal.default_int_handler:
            begun.append(handler)
            if len(begun) == number:
                signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr("signal.signal", interrupted)


def test_who_waits_for_an_agent_that_nobody_serves_is_told_how_to_leave(database_url):
    chat = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "chat", "nobody"],
        env=environment(url=database_url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert chat.stdin is not None
        assert chat.stderr is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        assert any("Ctrl-C gives up waiting" in line for line in chat.stderr)
        chat.send_signal(signal.SIGINT)
        out, _ = chat.communicate(timeout=SECONDS)
    finally:
        chat.kill()
        chat.wait()
    assert "cancelled" in out
    assert chat.returncode == 0


def test_whoever_waits_in_a_chat_is_told_of_crashes_and_takeovers(capsys):
    _show(Entry(seq=Seq(4), run=1, data=SessionReleased(reason="crash", message="RuntimeError: boom")))
    _show(Entry(seq=Seq(6), run=1, data=SessionOrphaned(worker="shop-1")))
    crashed, gone = capsys.readouterr().out.splitlines()
    assert "the run crashed: RuntimeError: boom" in crashed
    assert "worker shop-1 is gone; the session is free for another one" in gone


def test_a_chat_with_a_session_that_does_not_exist_is_refused(database_url):
    ran = run("chat", "greeter", "--session", "00000000-0000-0000-0000-000000000000", url=database_url, stdin="hi\n")
    assert ran.code == 1
    assert "00000000-0000-0000-0000-000000000000" in ran.err


def test_a_chat_with_a_session_of_another_agent_is_refused_and_nothing_is_sent(database_url):
    session = run("sessions", "create", "greeter", "hello", url=database_url).out.strip()
    ran = run("chat", "clerk", "--session", session, url=database_url, stdin="hi\n")
    assert_one_sentence(
        ran, code=2, names=(session, "agent greeter, not of clerk", f"chat greeter --session {session}")
    )
    assert len(json.loads(run("sessions", "show", session, "--json", url=database_url).out)["journal"]) == 2


# --- dev ------------------------------------------------------------------------------------------------------------


def test_changes_of_the_agents_files_and_of_what_lies_beside_them_are_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agents = Path(write_agents(tmp_path))
    (tmp_path / "parts").mkdir()
    folders = watched_folders((str(agents), "no_module_of_this_name"))
    assert folders == (tmp_path,)
    before = state_of(folders)
    assert state_of(folders) == before
    os.utime(agents, (1, 1))
    (tmp_path / "parts" / "more.py").write_text("")
    assert changed(before, state_of(folders)) == ["greeting.py", "more.py"]


def test_a_file_that_was_written_behind_a_glance_in_the_same_instant_is_seen(tmp_path):
    emptied = tmp_path / "greeting.py"
    emptied.touch()
    glance = state_of((tmp_path,))
    time = emptied.stat().st_mtime_ns
    emptied.write_text("agent = 1\n")
    os.utime(emptied, ns=(time, time))
    assert changed(glance, state_of((tmp_path,))) == ["greeting.py"]


def test_the_folder_of_a_module_is_found_without_importing_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "agentrt.demo.agent", raising=False)  # another test may have imported it
    (folder,) = watched_folders(("agentrt.demo.agent",))
    assert folder.name == "demo"
    assert "agentrt.demo.agent" not in sys.modules


def test_dev_goes_round_the_pooler_to_migrate_and_shows_the_worker_the_way(empty_database_url, capsys):
    pooler = "postgresql://127.0.0.1:1/pooler"
    settings = Settings(database_url=pooler, direct_database_url=empty_database_url)
    prepare(settings)
    assert "applied  0001_initial" in capsys.readouterr().out
    environ = worker_environ(settings, ("a", "b.py"))
    assert environ == {
        "AGENTRT_DATABASE_URL": pooler,
        "AGENTRT_DIRECT_DATABASE_URL": empty_database_url,
        "AGENTRT_AGENTS": "a,b.py",
    }


def test_dev_refuses_a_folder_beside_the_url_of_another_database(tmp_path):
    ran = run("dev", "--folder", str(tmp_path), url="postgresql://me:secret@127.0.0.1:1/other")
    assert_one_sentence(ran, code=2, names=("--folder", "AGENTRT_DATABASE_URL", "postgresql://127.0.0.1:1/other"))
    assert "secret" not in ran.err


def test_dev_says_that_the_url_of_the_environment_wins():
    ran = run("dev", url="postgresql://127.0.0.1:1/other")
    assert ran.code == 1
    assert "using AGENTRT_DATABASE_URL (postgresql://127.0.0.1:1/other), not the embedded server; unset it" in ran.err


def test_dev_takes_another_port_when_its_own_is_taken(capsys):
    with reserved_port() as (reserved, number):
        assert free_port(Settings(http_port=number)) == number
        assert capsys.readouterr().err == ""
        reserved.listen()
        other = free_port(Settings(http_port=number))
        assert other not in (0, number)
        assert f"port {number} is taken" in capsys.readouterr().err
    assert free_port(Settings(http_port=0)) == 0


@pytest.mark.system
def test_dev_with_a_server_of_its_own_does_not_follow_an_inherited_direct_url(tmp_path):
    folder = new_folder()
    dev = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "dev", "--agents", write_agents(tmp_path), "--folder", folder],
        env=environment(direct_database_url="postgresql://127.0.0.1:1/nowhere", http_port="0", log_format="json"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert dev.stderr is not None
        lines = []
        for line in dev.stderr:
            lines.append(line)
            if "worker.started" in line:
                break
        assert lines, "nothing was logged"
        assert "worker.started" in lines[-1], lines
        dev.send_signal(signal.SIGINT)
        _, err = dev.communicate(timeout=SECONDS)
        assert dev.returncode == 0, err
        assert (folder / ".gitignore").read_text() == "*\n"
        told = (folder / "url").read_text()
        with with_database(Settings(database_url=told), folder) as again:  # the variable is left over
            assert run("migrate", "--check", url=again.database_url).code == 0
    finally:
        dev.kill()
        dev.communicate()
        shutil.rmtree(folder)


@pytest.mark.system
def test_dev_serves_the_agents_and_starts_the_worker_again_when_they_change(database_url, tmp_path):
    agents = write_agents(tmp_path)
    dev = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrt", "dev", "--agents", agents],
        env=environment(url=database_url, http_port="0", log_format="json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def wait_for(words: str) -> None:
        assert dev.stderr is not None
        for line in dev.stderr:
            if words in line:
                return
        raise AssertionError(f"dev ended before {words}")

    try:
        wait_for("worker.started")
        assert "It is sunny." in run("chat", "greeter", url=database_url, stdin="hello\n").out
        write_agents(tmp_path, "def broken(:\n")
        wait_for("greeting.py changed")
        wait_for("it starts again when a file changes")
        write_agents(tmp_path, AGENTS.replace("It is sunny.", "It rains."))
        wait_for("worker.started")
        assert "It rains." in run("chat", "greeter", url=database_url, stdin="hello\n").out
        dev.send_signal(signal.SIGINT)
        out, err = dev.communicate(timeout=SECONDS)
        assert dev.returncode == 0, err
        assert database_url in out
        assert "agentrt chat greeter" in out
        assert "worker.stopped" in err
    finally:
        dev.kill()
        dev.wait()
        dev.communicate()
