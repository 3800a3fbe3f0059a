"""The README's code blocks work: each is run, in order, as a reader would.

A fence's first word is its language: ``python`` and ``bash`` are run as programs of their own, ``sql`` by psql; blocks
in other languages are text. All see one migrated database, named by AGENTRT_DATABASE_URL, and one fresh folder to work
in; somebody else has the port of probes, as `agentrt dev` does for who reads from the top. After the language,
``file=NAME`` writes the block to a file in that folder instead of running it, and ``no-run`` keeps it from being run;
there are as many of those as the test says.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrt.settings import Settings
from tests.databases import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
NOT_RUN = 11  # two commands that .ci/run runs, outputs, and what needs a terminal, a cluster, root or a server of yours
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    language: str
    words: tuple[str, ...]
    code: str

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


def blocks(text: str) -> list[Block]:
    found = []
    fenced = r"^(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=fence)[ ]*$"
    for match in re.finditer(fenced, text, re.MULTILINE | re.DOTALL):
        language, *words = match["info"].split() or [""]
        found.append(Block(text.count("\n", 0, match.start()) + 1, language, tuple(words), match["code"]))
    return found


def run_blocks(text: str, *, psql: Path, database_url: str, folder: Path) -> None:
    """Run the blocks of a text, in order; fails on the first that fails, and names its line."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(psql.parent), os.environ["PATH"]])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRT_")}
    environment = inherited | {"AGENTRT_DATABASE_URL": database_url, "PATH": programs}
    commands = {
        "bash": ["bash", "-euo", "pipefail", "-c"],
        "python": [sys.executable, "-W", "error", "-c"],
        "sql": [str(psql), "-X", "-v", "ON_ERROR_STOP=1", "-d", database_url, "-c"],
    }
    for block in blocks(text):
        if "no-run" in block.words or block.language not in commands:
            continue
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")
            continue
        code, output = run_program([*commands[block.language], block.code], folder=folder, environment=environment)
        assert code == 0, f"line {block.line}\n{block.code}\n{output}"


def run_program(command: list[str], *, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output; what the program leaves in the background ends with it."""
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


@pytest.mark.one_server
@pytest.mark.timeout(900)
def test_every_code_block_of_the_readme_runs(server, database_url, tmp_path):
    with probes_port_taken():
        run_blocks(README, psql=server.program("psql"), database_url=database_url, folder=tmp_path)


@contextmanager
def probes_port_taken() -> Iterator[None]:
    """The default port of probes is somebody else's for the length of the block."""
    with socket.socket() as taken:
        with suppress(OSError):  # then it is already
            taken.bind(("127.0.0.1", Settings().http_port))
            taken.listen()
        yield


@pytest.mark.one_server
def test_blocks_share_a_folder_and_a_database(server, database_url, tmp_path):
    text = """
```python file=greeting.py
WORD = "hello"
```
```sql
create table greetings as select 'hello' as word;
```
```bash
python -c 'import greeting; print(greeting.WORD)' > said
psql "$AGENTRT_DATABASE_URL" -XqAtc 'select word from greetings' | diff - said
```
"""
    run_blocks(text, psql=server.program("psql"), database_url=database_url, folder=tmp_path)


@pytest.mark.one_server
@pytest.mark.parametrize(
    "code", ["```sql\nselect nothing;\n```", "```bash\nfalse | true\n```", "```python\nraise SystemExit(1)\n```"]
)
def test_a_block_that_fails_is_named_by_its_line(server, database_url, tmp_path, code):
    with pytest.raises(AssertionError, match="line 3"):
        run_blocks(f"text\n\n{code}\n", psql=server.program("psql"), database_url=database_url, folder=tmp_path)


def test_blocks_that_are_not_run_are_counted():
    assert [block.words for block in blocks(README) if "no-run" in block.words] == [("no-run",)] * NOT_RUN


def test_every_fence_is_a_block_with_a_language():
    assert len(re.findall(r"^`{3,}", README, re.MULTILINE)) == 2 * len(blocks(README))
    assert [block.line for block in blocks(README) if not block.language] == []


def test_the_readme_names_only_files_that_exist():
    named = re.findall(r"`((?:agentrt|deploy|migrations|tests)/[\w./-]*)`", README)
    assert named
    assert [name for name in named if not (CHECKOUT / name).exists()] == []
