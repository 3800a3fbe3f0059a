"""Real servers for the whole run, and a database of its own for every test that asks for one.

``server`` runs a test once per available server: PostgreSQL 18 from the wheel, and 15 where the machine has it;
tests marked ``system`` or ``one_server`` run on the newest only. AGENTRT_TEST_DATABASE_URL uses another server instead.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from tests import servers
from tests.databases import CHECKOUT, fresh_database
from tests.servers import Server

GIVEN_URL = "AGENTRT_TEST_DATABASE_URL"
RUN_FOLDER = "AGENTRT_TEST_RUN_FOLDER"
SYSTEM_TIMEOUT_SECONDS = 300

for name, examples in {"quick": 30, "ci": 100, "soak": 2_500}.items():
    settings.register_profile(  # those marked ``many`` get twenty times as many
        name,
        max_examples=examples,
        deadline=None,  # two cores are shared by many tests
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_owner = pytest.StashKey[subprocess.Popen[str]]()


# --- the servers' owner: one per run, started by the process that the user started ----------------------------------


def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if name.startswith("AGENTRT_") and name not in (GIVEN_URL, RUN_FOLDER)]:
        del os.environ[name]  # a developer's own settings decide no test
    if hasattr(config, "workerinput") or GIVEN_URL in os.environ:
        return
    folder = os.environ[RUN_FOLDER] = str(servers.new_folder())
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", folder],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for pytest; the owner notices that pytest has gone
    )
    config.stash[_owner] = owner
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n", f"tests/servers.py ended with {owner.wait()}"


def pytest_unconfigure(config: pytest.Config) -> None:
    owner = config.stash.get(_owner, None)
    if owner is None:
        return
    owner.communicate()  # closes its standard input and waits for its end
    shutil.rmtree(os.environ.pop(RUN_FOLDER), ignore_errors=True)


def pytest_report_header() -> list[str]:
    if url := os.environ.get(GIVEN_URL):
        return [f"PostgreSQL: {asyncio.run(_version_of(url))} at {urlsplit(url).hostname or 'a local socket'}"]
    found = [f"{servers.version(programs)} ({name}: {programs})" for name, programs in servers.available().items()]
    return [f"PostgreSQL: {', '.join(found) or 'none'}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures of long runs, whether they passed or not."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in reports:
        for line in [value for name, value in report.user_properties if name == "figures" and report.when == "call"]:
            terminalreporter.write_line(f"{report.nodeid}: {line}")


async def _version_of(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("show server_version"))
    finally:
        await connection.close()


# --- which tests run where ------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" not in metafunc.fixturenames:
        return
    names = ["given"] if GIVEN_URL in os.environ else sorted(servers.available())
    if not names:
        raise pytest.UsageError(f"no PostgreSQL: run pip install -e '.[dev]', or set {GIVEN_URL}")
    markers = {marker.name for marker in metafunc.definition.iter_markers()}
    if markers & {"system", "one_server"}:
        names = names[-1:]
    metafunc.parametrize("server", names, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("system") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SYSTEM_TIMEOUT_SECONDS))


# --- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running PostgreSQL server, shared by the whole run."""
    if request.param == "given":
        yield Server("given", os.environ[GIVEN_URL], None)
    else:
        yield servers.ask(Path(os.environ[RUN_FOLDER]), request.param)


@pytest.fixture
async def database_url(server: Server) -> AsyncIterator[str]:
    """The URL of a migrated database that only this test uses."""
    async with fresh_database(server.url, migrated=True) as url:
        yield url


@pytest.fixture
async def empty_database_url(server: Server) -> AsyncIterator[str]:
    """The URL of an empty database that only this test uses."""
    async with fresh_database(server.url, migrated=False) as url:
        yield url


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's own database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close(timeout=60)


@pytest.fixture
def before_a_terminal() -> Iterator[None]:
    """Signals as a program in the foreground of a terminal has them, wherever the tests were started from."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def psql(server: Server, database_url: str) -> Callable[[str], str]:
    """A function that runs SQL by psql in the test's own database, and returns its rows, unaligned."""

    def run(sql: str) -> str:
        command = [str(server.program("psql")), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database_url]
        done = subprocess.run(command, input=sql, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    return run
