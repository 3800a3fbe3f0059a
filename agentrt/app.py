"""The composition root: the only file that names concrete adapters. Each is imported when it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentrt.core.errors import AgentrtError, ConfigurationError

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from agentrt.agents import Agent, Registry
    from agentrt.client import Client
    from agentrt.core.events import Event
    from agentrt.core.finding import Finding
    from agentrt.core.journal import Entry
    from agentrt.core.session import SessionId, WorkerId
    from agentrt.models.factory import ProviderModels
    from agentrt.ports import EventSink, QueueDepth, SessionStore, StoreFactory
    from agentrt.postgres.pool import DatabaseOptions
    from agentrt.settings import Settings
    from agentrt.telemetry.logs import Logs
    from agentrt.telemetry.metrics import Metrics
    from agentrt.worker.committer import Committer
    from agentrt.worker.daemon import Daemon, MakeRunner, RunSession
    from agentrt.worker.threads import ToolThreads


class Connecting:
    """What ``connect`` returns: await it, or use it as an asynchronous context manager."""

    def __init__(self, url: str, direct_url: str, *, outage: Callable[[str | None], object]) -> None:
        self._url = url
        self._direct_url = direct_url
        self._outage = outage
        self._client: Client | None = None

    def __await__(self) -> Generator[object, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _open(self) -> Client:
        from agentrt.client import Client
        from agentrt.postgres.client import PostgresClientStore

        store = await PostgresClientStore.connect(self._url, direct_url=self._direct_url, outage=self._outage)
        return Client(store)


def connect(url: str, *, direct_url: str = "", outage: Callable[[str | None], object] = lambda _: None) -> Connecting:
    """A ``Client`` for the database at ``url``, as ``asyncpg.create_pool`` gives a pool.

    ``async with connect(url) as client:`` closes it at the end of the block; ``client = await connect(url)`` leaves
    that to you (``await client.close()``). A client belongs to the event loop that it was made in. ``direct_url`` is
    for LISTEN when ``url`` goes through a transaction pooler. ``outage`` is called while something is followed: with
    what is wrong when the database answers no longer, and with None when it answers again.

    Raises:
        DatabaseUnavailable: nobody answers there.
        ConfigurationError: the URL, the user or the database is wrong.
    """
    return Connecting(url, direct_url, outage=outage)


async def migrate(url: str, *, notice: Callable[[str], None] | None = None) -> list[str]:
    """Apply the pending migrations to the server at ``url``, which is no pooler's, and return their names."""
    from agentrt.postgres.migrate import migrate

    return await migrate(url, notice=notice)


async def pending_migrations(url: str) -> list[str]:
    """The names of the migrations that ``migrate`` would apply."""
    from agentrt.postgres.migrate import pending

    return await pending(url)


async def import_session(
    settings: Settings, head: Mapping[str, Any], entries: Sequence[Entry], *, keep_id: bool
) -> SessionId:
    """Store an exported session; ``head`` as ``sessions export`` prints it.

    Raises:
        InvalidArgument: the head is not usable.
        Conflict: there is a session with this id.
    """
    from agentrt.postgres.importing import import_session, imported_of

    session_id, imported = imported_of(head, entries)
    return await import_session(database_options(settings), imported, session_id=session_id if keep_id else None)


def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Look at the database as a worker with these settings would use it, one finding after the other."""
    from agentrt.postgres.doctor import examine

    return examine(database_options(settings))


def embedded_server(folder: Path | None = None) -> AbstractContextManager[str]:
    """The URL of a PostgreSQL server of our own, which runs for the length of a block.

    Its data is kept in ``folder``, or is temporary. Raises ``ConfigurationError``: not installed, or it cannot start.
    """
    from agentrt.postgres import embedded

    return embedded.running(folder)


def location(url: str) -> str:
    """A database's URL for people: no password."""
    from agentrt.postgres.faults import location

    return location(url)


async def query(url: str, statement: str) -> Sequence[Sequence[Any]]:
    """The rows of one statement about tables that are not agentrt's. Raises ``DatabaseUnavailable``."""
    from agentrt.postgres.pool import DatabaseOptions, Role, RoleConnection

    connection = RoleConnection(DatabaseOptions(url=url), Role.CLIENT)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


def store_factory(settings: Settings) -> StoreFactory:
    """What opens the stores of a worker."""
    from agentrt.postgres.store import PostgresStores

    return PostgresStores(database_options(settings))


def database_options(settings: Settings) -> DatabaseOptions:
    """How a worker connects.

    Raises:
        ConfigurationError: there is no database URL.
    """
    from agentrt.postgres.pool import DatabaseOptions

    return DatabaseOptions(
        url=settings.require_database_url(),
        direct_url=settings.require_direct_database_url(),
        statement_seconds=settings.db_statement_seconds,
        lock_seconds=settings.db_lock_seconds,
        idle_transaction_seconds=settings.db_idle_transaction_seconds,
        transactional_connections=settings.transactional_connections,
        transactional_seconds=settings.transactional_seconds,
    )


# --- agents ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedAgents:
    """Agents of this process; ``unavailable`` says, by name, why one cannot be offered here."""

    registry: Registry
    models: ProviderModels
    unavailable: Mapping[str, str]

    @property
    def offered(self) -> Mapping[str, Agent]:
        """The agents that a worker here would serve."""
        return {name: agent for name, agent in self.registry.agents.items() if name not in self.unavailable}


def load_agents(settings: Settings) -> LoadedAgents:
    """Import the modules and files of AGENTRT_AGENTS, and see whether each agent's model can be used.

    Raises:
        AgentDefinitionError: two agents have one name.
    """
    from agentrt.agents import Registry
    from agentrt.models.factory import ProviderModels

    registry = Registry.load(settings.agents)
    models, unavailable = ProviderModels(), {}
    for agent in registry.agents.values():
        try:
            models.check(agent.model)
        except ConfigurationError as error:
            unavailable[agent.name] = str(error)
    return LoadedAgents(registry, models, unavailable)


def _check_offer(loaded: LoadedAgents) -> None:
    if loaded.offered:
        return
    reasons = [*loaded.registry.problems, *(f"agent {name}: {why}" for name, why in loaded.unavailable.items())]
    if not reasons:
        raise ConfigurationError(
            "there is no agent to serve: name modules or files that hold some in AGENTRT_AGENTS, such as "
            "AGENTRT_AGENTS=shop.agents,./more.py"
        )
    raise ConfigurationError(f"no agent can be served: {'; '.join(reasons)}")


# --- the worker -----------------------------------------------------------------------------------------------------


def run_worker(settings: Settings) -> int:
    """Run a worker in this process until it was drained, and return the exit code.

    Raises:
        AgentrtError: it could not start.
    """
    settings.require_database_url()

    import atexit
    import os

    from agentrt.telemetry.logs import Logs
    from agentrt.telemetry.metrics import Metrics

    logs = Logs(settings.log_level, settings.log_format)
    atexit.register(logs.writer.close)  # behind what agents and tools register: what keeps us from ending is told
    loaded = load_agents(settings)
    _check_offer(loaded)
    logs.adopt()
    try:
        metrics = Metrics(version := _version())

        def leave(code: int) -> None:
            logs.writer.flush(0.5)  # why it leaves is among the last lines
            os._exit(code)

        _Worker(settings, loaded, metrics, version=version, emit=_sink(logs, metrics), leave=leave).run()
    finally:
        logs.give_back()
        logs.writer.flush(2.0)
    return 0


def _version() -> str:
    from importlib.metadata import version

    return version("agentrt")


def _sink(logs: Logs, metrics: Metrics) -> EventSink:
    import os

    from agentrt.telemetry.sink import Telemetry
    from agentrt.telemetry.systemd import SystemdNotifier

    telemetry, systemd = Telemetry(logs, metrics), SystemdNotifier(os.environ)

    def emit(event: Event) -> None:
        telemetry(event)
        systemd(event)

    return emit


@dataclass(frozen=True, slots=True)
class _Worker:
    """The parts of a worker process, put together."""

    settings: Settings
    loaded: LoadedAgents
    metrics: Metrics
    version: str
    emit: EventSink
    leave: Callable[[int], object]

    def run(self) -> None:
        """Serve probes, say what is not offered, work until drained."""
        import asyncio

        self._tell_what_is_wrong()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._work())

    def _tell_what_is_wrong(self) -> None:
        from agentrt.core.events import AgentUnavailable, WarningRaised
        from agentrt.settings import unknown_variables

        for warning in (*unknown_variables(), *self.loaded.registry.problems, *self.loaded.registry.warnings()):
            self.emit(WarningRaised(message=warning))
        for name, why in self.loaded.unavailable.items():
            self.emit(AgentUnavailable(agent=name, error=why))

    async def _work(self) -> None:
        self.loaded.models.warm()
        try:
            await self._serve()
        finally:
            await self.loaded.models.close()

    async def _serve(self) -> None:
        import asyncio

        from agentrt.telemetry.queues import QueueDepths
        from agentrt.worker.daemon import Daemon, WorkerParts
        from agentrt.worker.threads import ToolThreads

        threads = ToolThreads()
        daemon = Daemon(
            WorkerParts(
                stores=store_factory(self.settings),
                settings=self.settings,
                agents={name: agent.version for name, agent in self.loaded.offered.items()},
                make_runner=self._make_runner(threads),
                emit=self.emit,
                version=self.version,
                threads_running=lambda: threads.running,
                owns_process=True,
                leave=self.leave,
            )
        )
        depths = QueueDepths(self._fetch_depths)
        self.metrics.watch_queues(depths.read)
        failure = None
        with self._probes(daemon):
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(depths.run(), name="queue depths")
                try:
                    await daemon.run()
                except AgentrtError as error:  # a group would hide it
                    failure = error
                watching.cancel()
        if failure is not None:
            raise failure

    async def _fetch_depths(self) -> Sequence[QueueDepth]:
        """On a connection for the moment: this is rare, and a worker's own connections have other work."""
        from agentrt.postgres.client import PostgresClientStore

        store = await PostgresClientStore.connect(self.settings.require_database_url())
        try:
            return await store.queue_depths()
        finally:
            await store.close()

    def _make_runner(self, threads: ToolThreads) -> MakeRunner:
        from agentrt.worker.ownership import RunnerDeps
        from agentrt.worker.runner import run_session

        def make(
            store: SessionStore,
            committer: Committer,
            *,
            worker_id: WorkerId,
            agent_unavailable: Callable[[str, str], None],
        ) -> RunSession:
            deps = RunnerDeps(
                store=store,
                committer=committer,
                registry=self.loaded.registry,
                models=self.loaded.models,
                events=self.emit,
                settings=self.settings,
                worker_id=worker_id,
                threads=threads,
                agent_unavailable=agent_unavailable,
                secrets=self.settings.passwords(),
            )
            return lambda holding: run_session(holding, deps)

        return make

    def _probes(self, daemon: Daemon) -> AbstractContextManager[object]:
        from agentrt.http import Health, ProbeServer

        if self.settings.http_port == 0:
            return nullcontext()
        return ProbeServer(
            self.settings.http_host,
            self.settings.http_port,
            metrics=self.metrics.application(),
            live=lambda: Health(daemon.live_problems(), daemon.facts()),
            ready=lambda: Health(daemon.ready_problems(), daemon.facts()),
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no such platform: the standard loop does
        return None
    return uvloop.new_event_loop
