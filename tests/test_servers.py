"""The fixtures that every other test stands on."""

import subprocess
import sys

import asyncpg
import psutil
import pytest

from tests import servers
from tests.databases import CHECKOUT


async def test_each_database_is_fresh_and_its_own(connection, empty_database_url):
    assert await connection.fetchval("select to_regclass('agentrt.sessions') is not null")
    other = await asyncpg.connect(empty_database_url)
    assert await other.fetchval("select to_regclass('agentrt.sessions') is null")
    assert await other.fetchval("select current_database()") != await connection.fetchval("select current_database()")
    await other.close()


async def test_a_server_is_of_the_version_that_its_name_says(server, empty_database_url):
    connection = await asyncpg.connect(empty_database_url)
    number = await connection.fetchval("show server_version_num")
    await connection.close()
    assert server.name in ("given", f"pg{number[:2]}")


def test_psql_runs_in_the_tests_own_database(psql, database_url):
    assert psql("select current_database()") in database_url


@pytest.mark.system
@pytest.mark.parametrize("name", sorted(servers.available()))
def test_servers_end_with_a_test_run_that_was_killed(name):
    folder = servers.new_folder()
    with subprocess.Popen(
        [sys.executable, "-c", _A_TEST_RUN, str(folder), name],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        postmaster = psutil.Process(int(run.stdout.readline()))
        run.kill()
        assert run.stderr.read() == ""  # the owner inherited it: the end of the file is the owner's end
    assert servers.ended(postmaster)
    assert not folder.exists()


_A_TEST_RUN = """
import pathlib, signal, subprocess, sys
from tests import servers
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
command = [sys.executable, "-m", "tests.servers", folder]
owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
owner.stdout.readline()
servers.ask(folder, name)
print((folder / name / "data" / "postmaster.pid").read_text().split()[0], flush=True)
signal.pause()
"""
