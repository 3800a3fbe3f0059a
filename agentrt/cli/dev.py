"""``agentrt dev``: a database of its own, a worker, and both again whenever the agents' files change."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from agentrt.cli.border import DONE, FAILED, complain, warn
from agentrt.cli.options import agents_option
from agentrt.core.errors import ConfigurationError
from agentrt.interrupts import end_in_order, held, run
from agentrt.minder import minded

if TYPE_CHECKING:
    from agentrt.settings import Settings

LOOK_SECONDS = 0.5
DRAIN_SECONDS = "5"  # a developer does not wait for a tool that has minutes
STOP_SECONDS = 20.0
SAMPLE = "agentrt.demo.hello"
FOLDER = Path(".agentrt")


def dev(
    *,
    agents: Annotated[
        list[str] | None,
        agents_option("A scripted sample when left out."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the database's files are kept; .agentrt when left out.")
    ] = None,
) -> None:
    """Run everything on this machine: an embedded Postgres whose data is kept, and a worker that reloads your agents.

    With AGENTRT_DATABASE_URL set, that database is used instead of the embedded one.
    """
    from agentrt.settings import Settings

    settings = Settings(agents=",".join(agents)) if agents else Settings()
    names = settings.agents or (SAMPLE,)
    _refuse_missing_files(names)
    end_in_order()
    with with_database(settings, folder) as complete:
        prepare(complete)
        typer.echo("In another terminal:")
        typer.echo(f"  export AGENTRT_DATABASE_URL='{complete.database_url}'")
        typer.echo(f"  agentrt chat {_an_agent(names)}")
        environ = {**worker_environ(complete, names), "AGENTRT_HTTP_PORT": str(free_port(complete))}
        url = complete.require_database_url()
        own = _Own(url, _data_in(folder)) if _is_ours(url, _data_in(folder)) else None
        raise typer.Exit(_Supervisor(names, environ, own=own).run())


def _refuse_missing_files(names: tuple[str, ...]) -> None:
    """What is wrong in a file may be mended while we wait; a file that is not there was misspelt."""
    for name in names:
        if is_file(name) and not Path(name).is_file():
            raise ConfigurationError(f"--agents {name}: there is no such file")


def is_file(name: str) -> bool:
    """Whether this names a file of agents, and no module."""
    return name.endswith(".py") or "/" in name


def _an_agent(names: tuple[str, ...]) -> str:
    """The name of one of the agents, asked of a process of its own: what a worker imports, this one does not."""
    command = [sys.executable, "-m", "agentrt", "agents", "list", "--json"]
    environ = {**os.environ, "AGENTRT_AGENTS": ",".join(names)}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    try:
        return str(json.loads(done.stdout)["agents"][0]["name"])
    except (ValueError, LookupError):
        return "YOUR_AGENT"


def free_port(settings: Settings) -> int:
    """A port for probes and metrics; another one if it is taken, since a second `dev` is no mistake."""
    if settings.http_port == 0:
        return 0
    for port in (settings.http_port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.http_host, port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
        if found != settings.http_port:
            warn(f"port {settings.http_port} is taken: probes and metrics are on port {found}")
        return found
    return settings.http_port


@contextmanager
def with_database(settings: Settings, folder: Path | None) -> Iterator[Settings]:
    """The settings with a database: that of AGENTRT_DATABASE_URL, or a server of our own while the block runs."""
    data = _data_in(folder)
    if settings.database_url is not None and not _is_ours(settings.database_url, data):
        from agentrt.app import location

        shown = location(settings.database_url)
        if folder is not None:
            raise ConfigurationError(
                f"--folder {folder} and AGENTRT_DATABASE_URL ({shown}) name two databases: unset "
                "the variable to use the embedded server"
            )
        warn(f"using AGENTRT_DATABASE_URL ({shown}), not the embedded server; unset it to use that")
        yield settings
        return
    from agentrt.app import embedded_server

    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        (data.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise _cannot_keep(data.parent, error) from error
    with only_dev_in(data.parent):
        typer.echo(f"PostgreSQL runs in {data}; its data is kept.")
        with embedded_server(data) as url:
            _hint_of(data).write_text(url, encoding="utf-8")
            yield on_one_server(settings, url)


@contextmanager
def only_dev_in(folder: Path) -> Iterator[None]:
    """Keep every other one out while the block runs: its database would end with ours. However this process ends, the
    system takes its lock away.

    Raises:
        ConfigurationError: another one runs in the folder.
    """
    if sys.platform == "win32":  # has no such locks
        yield
        return
    import fcntl

    with _lock_file(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another agentrt dev runs in {folder}: name another folder with --folder, or use its database, "
                f"whose URL is in {folder / 'url'}, with agentrt worker"
            ) from None
        except OSError as error:
            warn(f"{folder} takes no lock ({error.strerror}): see to it that no second agentrt dev runs in it")
        yield


def _cannot_keep(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"cannot keep the database in {folder} ({error.strerror}): name another folder with --folder"
    )


def _lock_file(folder: Path) -> IO[str]:
    try:
        return (folder / "lock").open("a")
    except OSError as error:
        raise _cannot_keep(folder, error) from error


def _data_in(folder: Path | None) -> Path:
    return (folder or FOLDER).absolute() / "postgres"


def _hint_of(data: Path) -> Path:
    return data.parent / "url"


def _is_ours(url: str, data: Path) -> bool:
    """Whether the URL is that of the server in ``data``, as an earlier ``agentrt dev`` told its user to export it."""
    try:
        return url == _hint_of(data).read_text(encoding="utf-8")
    except OSError:
        return False


def on_one_server(settings: Settings, url: str) -> Settings:
    """``settings`` for a server without a pooler; a direct URL that was inherited would lead to another one."""
    return settings.model_copy(update={"database_url": url, "direct_database_url": url})


def prepare(settings: Settings) -> None:
    """Bring the schema up to this version."""
    from agentrt import app

    for name in run(app.migrate(settings.require_direct_database_url(), notice=warn)):
        typer.echo(f"applied  {name}")


def worker_environ(settings: Settings, names: tuple[str, ...]) -> Mapping[str, str]:
    """What a worker's environment has besides its inheritance."""
    return {
        "AGENTRT_DATABASE_URL": settings.require_database_url(),
        "AGENTRT_DIRECT_DATABASE_URL": settings.require_direct_database_url(),
        "AGENTRT_AGENTS": ",".join(names),
    }


class _Supervisor:
    """Keeps one worker process, and starts it anew when a watched file has changed."""

    def __init__(self, names: tuple[str, ...], settings: Mapping[str, str], *, own: _Own | None) -> None:
        self._own = own
        self._folders = watched_folders(names)
        self._environ = {"AGENTRT_DRAIN_SECONDS": DRAIN_SECONDS, "AGENTRT_DRAIN_TOOL_SECONDS": DRAIN_SECONDS}
        self._environ |= {**os.environ, **settings}

    def run(self) -> int:
        """Until Ctrl-C or SIGTERM, or until our own database has ended; the exit code."""
        try:
            while self._one_life():
                pass
        except KeyboardInterrupt:
            typer.echo("\nStopped.", err=True)
            return DONE
        return FAILED

    def _one_life(self) -> bool:
        """A worker until a file has changed; False if there is no database any more."""
        seen = state_of(self._folders)
        with ExitStack() as life:
            with held():
                process = subprocess.Popen(
                    [sys.executable, "-m", "agentrt", "worker"],
                    env=self._environ,
                    start_new_session=True,  # Ctrl-C is ours: the worker gets one SIGTERM from us
                )
                minder = life.enter_context(ExitStack())
                life.callback(_end, process)
                minder.enter_context(minded(process.pid, signal.SIGTERM))
            told = False
            while (now := state_of(self._folders)) == seen:
                if self._own is not None and self._own.ended():
                    process.kill()  # without a database it can finish nothing, only complain
                    complain(f"the PostgreSQL in {self._own.data} has ended: run agentrt dev again to start it")
                    return False
                if process.poll() is not None and not told:
                    minder.close()
                    code = process.returncode
                    warn(f"the worker has ended (exit code {code}); it starts again when a file changes")
                    told = True
                time.sleep(LOOK_SECONDS)
            typer.echo(f"{', '.join(changed(seen, now))} changed: the worker starts again", err=True)
            return True


@dataclass(frozen=True, slots=True)
class _Own:
    """A server of our own, and where its data is."""

    url: str
    data: Path

    def ended(self) -> bool:
        """Whether nobody listens any more. A server that merely recovers does, and one that is busy, too."""
        (folder,) = parse_qs(urlsplit(self.url).query)["host"]
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(LOOK_SECONDS)
            try:
                probe.connect(f"{folder}/.s.PGSQL.5432")
            except (ConnectionRefusedError, FileNotFoundError):
                return True
            except OSError:
                return False
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    try:
        with held(), suppress(subprocess.TimeoutExpired):  # it is ending already, and what it drains to ends after it
            process.terminate()
            process.wait(STOP_SECONDS)
    finally:
        if process.poll() is None:  # or whoever waits insists
            with held():
                process.kill()
                process.wait()


def watched_folders(names: tuple[str, ...]) -> tuple[Path, ...]:
    """The folders of these modules and files; a module that cannot be found is looked for here."""
    from importlib.util import find_spec

    folders = []
    sys.path.insert(0, str(Path.cwd()))
    for name in names:
        if is_file(name):
            folders.append(Path(name).absolute().parent)
            continue
        try:
            spec = find_spec(name)
        except ImportError:
            spec = None
        folders.append(Path(spec.origin).parent if spec is not None and spec.origin else Path.cwd())
    return tuple(dict.fromkeys(folders))


State = Mapping[Path, tuple[int, int]]


def state_of(folders: tuple[Path, ...]) -> State:
    """When each Python file directly in these folders, or one level below, was changed, and its size: an editor may
    empty a file and write it between two ticks of the file system's clock, and we may look in between."""
    state = {}
    for folder in folders:
        for path in (*folder.glob("*.py"), *folder.glob("*/*.py")):
            try:
                found = path.stat()
            except OSError:
                continue  # removed meanwhile
            state[path] = (found.st_mtime_ns, found.st_size)
    return state


def changed(before: State, after: State) -> list[str]:
    """Names of the files that were added, removed or written."""
    return sorted(path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path))
