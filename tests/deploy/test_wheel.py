"""The wheel that the image's build stage makes works away from the checkout, and without a network."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import asyncpg
import pytest

from tests.databases import CHECKOUT
from tests.deploy import dockerfile
from tests.system.fleet import until

pytestmark = [pytest.mark.system]

BUILD = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment in which the wheel is installed; its dependencies are this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    dockerfile.context(folder / "src")
    subprocess.run([*BUILD, "--wheel-dir", folder / "dist", folder / "src"], check=True, cwd=folder)
    [wheel] = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    # The packages of the running environment, without the editable checkout: .pth files there are not read from here.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--ignore-installed", str(wheel)], check=True, cwd=folder)
    return folder / "venv" / "bin"


def environment(programs: Path, url: str) -> dict[str, str]:
    """As in a container: no variable of the caller's but the path."""
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "AGENTRT_DATABASE_URL": url,
        "AGENTRT_HTTP_PORT": "0",
    }


def run(command: list[str], environ: dict[str, str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(command: list[str], environ: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


async def test_a_wheel_installed_elsewhere_migrates_a_database(programs: Path, empty_database_url: str, tmp_path: Path):
    environ = environment(programs, empty_database_url)
    place = run([str(programs / "python"), "-c", "import agentrt; print(agentrt.__file__)"], environ, tmp_path)
    assert Path(place.strip()).is_relative_to(programs.parent)
    run(["agentrt", "migrate"], environ, tmp_path)
    connection = await asyncpg.connect(empty_database_url)
    try:
        applied = await connection.fetch("select name from agentrt.schema_migrations order by name")
    finally:
        await connection.close()
    files = sorted((CHECKOUT / "migrations").glob("*.sql"))
    assert [row["name"].removesuffix(".sql") for row in applied] == [file.stem for file in files]


async def test_the_images_command_serves_an_agent_and_drains(
    programs: Path, database_url: str, connection: asyncpg.Connection, tmp_path: Path
):
    [command] = dockerfile.stages()[-1].named("CMD")
    environ = environment(programs, database_url) | {"AGENTRT_AGENTS": "agentrt.demo.hello"}
    with start(json.loads(command.text), environ, tmp_path) as worker:
        try:
            session = await connection.fetchval("select agentrt.create_session('hello', 'good morning')")
            await until(connection, "select status from agentrt.sessions where id = $1", session, want="completed")
        finally:
            worker.send_signal(signal.SIGTERM)
            told, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0, told
