"""``agentrt chat`` and questions on a terminal: Ctrl-D and Ctrl-C whenever somebody may type them, and the way back."""

import json
import re

import pytest

from tests.commandline import environment, run
from tests.terminal import CTRL_C, CTRL_D, on_terminal
from tests.test_cli_chat import SLOW
from tests.workerprocess import worker, write_agents

pytestmark = [pytest.mark.one_server, pytest.mark.system]


def session_in(shown: str) -> str:
    found = re.search(r"session ([0-9a-f-]{36})", shown)
    assert found is not None, shown
    return found[1]


def status_of(session: str, url: str) -> str:
    return str(json.loads(run("sessions", "show", session, "--json", url=url).out)["status"])


def test_ctrl_d_leaves_a_session_that_nobody_serves_and_tells_the_way_back(database_url):
    with on_terminal("chat", "nobody", environ=environment(url=database_url)) as chat:
        chat.wait_for("you> ")
        chat.type("hello\n")
        chat.wait_for("Ctrl-D leaves")
        chat.type(CTRL_D)
        assert chat.wait() == 0, chat.shown
    session = session_in(chat.shown)
    assert f"session {session} goes on: come back with agentrt chat nobody --session {session}" in chat.shown
    assert "Traceback" not in chat.shown
    assert status_of(session, database_url) == "queued"


def test_ctrl_d_in_the_middle_of_a_run_leaves_it_running_and_one_can_come_back_to_it(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path, SLOW), drain_tool_seconds="0", drain_seconds="0"):
        with on_terminal("chat", "slow", environ=environment(url=database_url)) as chat:
            chat.wait_for("you> ")
            chat.type("dawdle\n")
            chat.wait_for("dawdle({})")
            chat.type(CTRL_D)
            assert chat.wait() == 0, chat.shown
        session = session_in(chat.shown)
        assert f"{session} goes on: come back with" in chat.shown
        assert status_of(session, database_url) == "running"
        with on_terminal("chat", "slow", "--session", session, environ=environment(url=database_url)) as again:
            again.wait_for("dawdle({})")  # what was said since the last message
            again.type(CTRL_C)
            again.wait_for("cancelled\nyou> ")
            again.type(CTRL_D)
            assert again.wait() == 0, again.shown
        assert status_of(session, database_url) == "cancelled"


def test_at_an_approval_ctrl_d_leaves_it_open_and_ctrl_c_cancels_the_run(database_url, tmp_path):
    with worker(database_url, agents=write_agents(tmp_path, SLOW)):
        with on_terminal("chat", "slow", environ=environment(url=database_url)) as chat:
            chat.wait_for("you> ")
            chat.type("pay\n")
            chat.wait_for("[y/N] ")
            chat.type(CTRL_D)
            assert chat.wait() == 0, chat.shown
        session = session_in(chat.shown)
        assert status_of(session, database_url) == "suspended"
        with on_terminal("chat", "slow", "--session", session, environ=environment(url=database_url)) as again:
            again.wait_for("[y/N] ")
            again.type(CTRL_C)
            again.wait_for("cancelled\nyou> ")
            again.type(CTRL_C)  # nothing is left to cancel
            assert again.wait() == 0, again.shown
        assert status_of(session, database_url) == "cancelled"


def test_whoever_rejects_a_call_may_say_why_and_the_model_reads_it(database_url, tmp_path):
    with (
        worker(database_url, agents=write_agents(tmp_path, SLOW)),
        on_terminal("chat", "slow", environ=environment(url=database_url)) as chat,
    ):
        chat.wait_for("you> ")
        chat.type("pay\n")
        chat.wait_for("[y/N] ")
        chat.type("n\n")
        chat.wait_for("no comment)? ")
        chat.type("too much\n")
        chat.wait_for("agent> Then: ")
        assert "too much" in chat.wait_for("you> ")
        chat.type(CTRL_D)
        assert chat.wait() == 0, chat.shown


def test_an_approval_that_another_decided_meanwhile_does_not_end_the_conversation(database_url, tmp_path):
    with (
        worker(database_url, agents=write_agents(tmp_path, SLOW)),
        on_terminal("chat", "slow", environ=environment(url=database_url)) as chat,
    ):
        chat.wait_for("you> ")
        chat.type("pay\n")
        chat.wait_for("[y/N] ")
        (approval,) = json.loads(run("sessions", "approvals", "--json", url=database_url).out)
        assert run("sessions", "reject", approval["id"], url=database_url).code == 0
        chat.type("y\n")
        chat.wait_for("error: ")
        chat.wait_for("you> ")
        chat.type("still there?\n")
        chat.wait_for("You said still there?.")
        chat.wait_for("you> ")
        chat.type(CTRL_D)
        assert chat.wait() == 0, chat.shown
    assert f"--session {approval['session_id']}" in chat.shown
    assert len(json.loads(run("sessions", "list", "--json", url=database_url).out)) == 1


def test_a_line_that_was_typed_ahead_and_never_sent_is_named(database_url):
    with on_terminal("chat", "nobody", environ=environment(url=database_url)) as chat:
        chat.wait_for("you> ")
        chat.type("hello\n")
        chat.wait_for("Ctrl-D leaves")
        chat.type(f"and another thing\n{CTRL_D}")
        assert chat.wait() == 0, chat.shown
    assert "not sent: and another thing" in chat.shown


def test_lines_that_were_typed_ahead_are_sent_one_after_the_other(database_url, tmp_path):
    with (
        worker(database_url, agents=write_agents(tmp_path, SLOW)),
        on_terminal("chat", "slow", environ=environment(url=database_url)) as chat,
    ):
        chat.wait_for("you> ")
        chat.type("one\ntwo\n")
        chat.wait_for("You said two.")
        chat.wait_for("you> ")
        chat.type(CTRL_D)
        assert chat.wait() == 0, chat.shown
    assert "You said one." in chat.shown


def test_ctrl_c_before_anything_was_said_ends_the_chat(database_url):
    with on_terminal("chat", "nobody", environ=environment(url=database_url)) as chat:
        chat.wait_for("you> ")
        chat.type(CTRL_C)
        assert chat.wait() == 0, chat.shown
    assert "Traceback" not in chat.shown
    assert json.loads(run("sessions", "list", "--json", url=database_url).out) == []


def test_ctrl_c_at_a_question_ends_the_command_and_changes_nothing(database_url):
    with on_terminal("prune", "--older-than", "90d", environ=environment(url=database_url)) as prune:
        prune.wait_for("[y/N]: ")
        assert prune.end_by(CTRL_C) == 130, prune.shown
    assert "Traceback" not in prune.shown
