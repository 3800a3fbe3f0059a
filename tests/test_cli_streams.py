"""The command line with streams that are closed, full, without Unicode, or read no further."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import SECONDS, environment, run
from tests.test_cli_following import A_WORKER

pytestmark = pytest.mark.one_server


def shell(command: str, url: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    program = f'agentrt() {{ "{sys.executable}" -m agentrt "$@"; }}; {command}'
    environ = environment(url=url) | more
    return subprocess.run(["bash", "-c", program], env=environ, capture_output=True, check=False, timeout=SECONDS)


def created(url: str, message: str = "hello") -> str:
    return run("sessions", "create", "greeter", message, url=url).out.strip()


@pytest.mark.parametrize(
    "environ",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["ascii", "C locale"],
)
def test_where_the_terminal_has_no_unicode_text_is_shown_as_far_as_it_can_be(database_url, environ):
    session = created(database_url, "h\u00e9llo")
    shown = shell(f"agentrt sessions show {session}", database_url, **environ)
    assert shown.returncode == 0, shown.stderr
    assert b"h?llo" in shown.stdout
    as_json = shell(f"agentrt sessions show {session} --json", database_url, **environ)
    assert "h\u00e9llo" in str(json.loads(as_json.stdout))
    assert shell("agentrt --help", database_url, **environ).returncode == 0


def test_a_message_from_a_pipe_is_utf8_where_the_locale_says_nothing(database_url):
    environ = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    sent = shell("printf 'h\\303\\251llo' | agentrt sessions create greeter -", database_url, **environ)
    assert sent.returncode == 0, sent.stderr
    assert "h\u00e9llo" in run("sessions", "show", sent.stdout.decode().strip(), url=database_url).out


def test_bytes_that_are_no_text_are_refused_in_words(database_url):
    sent = shell("printf '\\377' | agentrt sessions create greeter -", database_url)
    assert sent.returncode == 2
    assert b"standard input is no text" in sent.stderr


@pytest.mark.parametrize("command", ["sessions send SESSION -", "chat greeter"])
def test_a_closed_standard_input_is_an_empty_one(database_url, command):
    session = created(database_url)
    done = shell(f"agentrt {command.replace('SESSION', session)} <&-", database_url)
    assert done.returncode in (0, 2), done.stderr
    assert b"defect" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("command", ["sessions list --json", "sessions show SESSION"])
def test_a_full_disk_is_named(database_url, command):
    session = created(database_url)
    done = shell(f"agentrt {command.replace('SESSION', session)} > /dev/full", database_url)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: the output cannot be written: "), done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.parametrize("command", ["export SESSION", "show SESSION", "list"])
def test_a_reader_that_has_seen_enough_is_no_failure(database_url, command):
    reading, writing = os.pipe()
    os.close(reading)
    arguments = [
        sys.executable,
        "-m",
        "agentrt",
        "sessions",
        *command.replace("SESSION", created(database_url)).split(),
    ]
    done = subprocess.run(
        arguments,
        env=environment(url=database_url),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=SECONDS,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that nobody reads a pipe")
def test_who_follows_for_a_reader_that_has_seen_enough_does_not_wait_for_more(database_url, psql):
    psql(A_WORKER)  # nothing is to be warned about, however late the reader ends
    session = created(database_url)
    done = shell(f"agentrt sessions follow {session} | head -n 2; echo ${{PIPESTATUS[0]}}", database_url)
    *lines, code = done.stdout.decode().splitlines()
    assert [line.split()[3] for line in lines] == ["session_created", "user_message"]
    assert (code, done.stderr) == ("0", b"")


def test_json_holds_no_character_that_steers_a_terminal(database_url):
    message = "x \x9b31m \x7f \u202e \u2028 \U000e0001 y"
    ran = run("sessions", "show", created(database_url, message), "--json", url=database_url)
    assert ran.out.replace("\n", "").isprintable()
    assert json.loads(ran.out)["journal"][1]["data"]["content"] == [{"type": "text", "text": message}]
