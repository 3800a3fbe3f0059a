"""The client: create sessions, talk to them, follow them. ``agentrt.connect(url)`` makes one.

Each method is one SQL function of the schema ``agentrt``; the rules are the database's, and so are the messages of
``ClientError``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from uuid import UUID

from agentrt.core import arguments
from agentrt.core.session import Seq, SessionId, Status, SuspendReason

if TYPE_CHECKING:
    from agentrt.core.budget import Limits
    from agentrt.core.content import Block
    from agentrt.core.journal import Entry
    from agentrt.core.session import Session
    from agentrt.ports import ClientStore, WorkerRow

WhenRunning = Literal["steer", "queue", "interrupt", "reject"]
Verdict = Literal["approved", "rejected"]

PAGE_ENTRIES = 500

_MOST_SECONDS: Final = 31_104_000_000
"""1,000 years, as ``agentrt.prune_sessions`` counts them."""


class Client:
    """Commands and questions of a client; usable by many tasks of one event loop at once.

    All methods raise ``DatabaseUnavailable`` when the database does not answer in time (a command's outcome is then
    unknown; repeat it with its ``dedup_key`` or ``request_id``), and ``ClientError`` when it refuses. An argument of a
    wrong type is refused before the database is asked: ``InvalidArgument``.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    async def create(
        self,
        agent: str,
        message: str | None = None,
        *,
        content: Sequence[Block] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        ready_at: datetime | None = None,
        dedup_key: str | None = None,
        config: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        parent_id: UUID | str | None = None,
        id: UUID | str | None = None,
        max_attempts: int | None = None,
    ) -> SessionId:
        """Create a session with its first message, and return its id.

        Args:
            agent: The agent's name; no worker needs to know it yet.
            message: The message as text; or ``content``: the message as blocks. One of the two.
            content: See ``message``.
            queue: Workers serve the queues that they name; ``default`` when left out.
            priority: Higher is claimed first, from -32768 to 32767.
            ready_at: Not claimed before this time; with a time zone.
            dedup_key: A second call with the same key and arguments returns the first one's session.
            config: Keys ``limits``, ``model``, ``instructions``, as far as the agent allows them.
            labels: For filtering in ``list``.
            tenant: The caller's word, kept with the session; part of what ``dedup_key`` is unique in.
            parent_id: The session that this one was made for.
            id: The session's id, instead of a new one.
            max_attempts: Crashes in a row without progress after which a run fails.
        """
        options = _options(
            content=content,
            queue=queue,
            priority=priority,
            ready_at=ready_at,
            dedup_key=dedup_key,
            config=config,
            labels=labels,
            tenant=tenant,
            parent_id=parent_id,
            id=id,
            max_attempts=max_attempts,
        )
        return await self._store.create_session(arguments.text("agent", agent), _message(message), options)

    async def send(
        self,
        session_id: UUID | str,
        message: str | None = None,
        *,
        content: Sequence[Block] | None = None,
        when_running: WhenRunning | None = None,
        request_id: str | None = None,
    ) -> Seq:
        """Send a message, and return the seq of its entry.

        Args:
            session_id: Whom to.
            message: The message as text; or ``content``: as blocks.
            content: See ``message``.
            when_running: ``steer`` (default): seen at the next turn. ``queue``: the next run's message.
                ``interrupt``: what is in flight is cancelled first. ``reject``: refused while a run is on.
            request_id: A second call with the same id and arguments returns the first one's seq.
        """
        options = _options(content=content, when_running=when_running, request_id=request_id)
        return await self._store.send_message(_session_id(session_id), _message(message), options)

    async def cancel(self, session_id: UUID | str, *, reason: str | None = None, run: int | None = None) -> Status:
        """Cancel at once whatever is on; with ``run`` only if that run is on."""
        return await self._store.cancel_session(_session_id(session_id), _options(reason=reason, run=run))

    async def resume(
        self, session_id: UUID | str, *, force: bool | None = None, limits: Limits | Mapping[str, Any] | None = None
    ) -> Status:
        """Wake a suspended session, with higher ``limits`` if it had used up its budget.

        ``force`` wakes it although approvals are open; they become obsolete.
        """
        options = _options(force=force, limits=limits)
        return await self._store.command("resume_session", _session_id(session_id), options)

    async def retry(self, session_id: UUID | str, *, run: int | None = None) -> Status:
        """Start a new run of a failed or cancelled session, without a new message; with ``run`` only of that run."""
        return await self._store.command("retry_session", _session_id(session_id), _options(run=run))

    async def archive(self, session_id: UUID | str) -> Status:
        """Put an ended session away: from then on it can only be read."""
        return await self._store.command("archive_session", _session_id(session_id), {})

    async def release(self, session_id: UUID | str, *, reason: str | None = None) -> Status:
        """Take a running session from its worker and queue it again; costs no attempt."""
        return await self._store.command("release_session", _session_id(session_id), _options(reason=reason))

    async def pending_approvals(
        self, session_id: UUID | str | None = None, *, limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of the view ``pending_approvals``, oldest first; of one session or of all."""
        known = None if session_id is None else _session_id(session_id)
        return await self._store.pending_approvals(known, limit=_count("limit", limit))

    async def decide(
        self,
        approval_id: UUID | str,
        verdict: Verdict,
        *,
        reviewer: str,
        arguments_hash: str | None = None,
        comment: str | None = None,
    ) -> Status:
        """Decide an approval; ``arguments_hash`` names the arguments that the reviewer saw.

        ``reviewer`` is the caller's word, kept as it is. A rejection's ``comment`` is read by the model.
        """
        options = _options(arguments_hash=arguments_hash, comment=comment)
        return await self._store.decide_approval(
            arguments.uuid("approval_id", approval_id),
            arguments.text("verdict", verdict),
            reviewer=arguments.text("reviewer", reviewer),
            options=options,
        )

    async def complete_tool_call(
        self, session_id: UUID | str, call_id: str, *, result: str, outcome: Literal["ok", "error"] | None = None
    ) -> Status:
        """Give the result of a tool call that was deferred."""
        return await self._store.complete_tool_call(
            _session_id(session_id),
            arguments.text("call_id", call_id),
            result=arguments.text("result", result),
            options=_options(outcome=outcome),
        )

    async def get(self, session_id: UUID | str) -> Session:
        """The session's head.

        Raises:
            NotFound: there is no such session.
        """
        return await self._store.get(_session_id(session_id))

    async def list(
        self,
        *,
        status: Status | str | None = None,
        agent: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        reason: SuspendReason | str | None = None,
        before: UUID | str | None = None,
        limit: int = 50,
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of the view ``session_list``, newest first, at most ``limit``. ``reason``: suspended for this reason.
        ``before``: only rows behind this session's, to read on where an earlier list ended."""
        filters = _options(
            status=status,
            agent=agent,
            queue=queue,
            tenant=tenant,
            labels=labels,
            reason=None if reason is None else arguments.one_of("reason", reason, SuspendReason),
            before=before,
        )
        return await self._store.list(filters, limit=_count("limit", limit))

    async def read(self, session_id: UUID | str, *, after_seq: int = 0) -> AsyncGenerator[Entry, None]:
        """The entries that exist behind ``after_seq``, in order; read in pages.

        Raises:
            NotFound: there is no such session.
        """
        known, after_seq = _session_id(session_id), _count("after_seq", after_seq)
        while page := await self._store.read_journal(known, after_seq, max_entries=PAGE_ENTRIES):
            for entry in page:
                yield entry
            after_seq = page[-1].seq

    def follow(self, session_id: UUID | str, *, after_seq: int = 0) -> AsyncGenerator[Entry, None]:
        """The entries behind ``after_seq`` in order, each once, as they are committed; until the loop is left.

        It goes on across takeovers and lost connections. Leave it by ``break``, inside ``contextlib.aclosing`` if the
        connection is to be given back at once.

        Raises:
            NotFound: there is no such session.
        """
        return self._store.follow(_session_id(session_id), _count("after_seq", after_seq))

    async def prune(self, older_than_seconds: float, *, max_sessions: int = 500) -> int:
        """Delete up to ``max_sessions`` sessions that ended longer ago than this; returns how many.

        Call it again until that is 0.
        """
        seconds = arguments.number("older_than_seconds", older_than_seconds, within=(0, _MOST_SECONDS))
        most = arguments.whole("max_sessions", max_sessions, within=(1, 10_000))
        return await self._store.prune_sessions(seconds, max_sessions=most)

    async def workers(self) -> Sequence[WorkerRow]:
        """The workers that are known, with what they serve."""
        return await self._store.workers()

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


_OPTIONS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "agent": arguments.text,
    "arguments_hash": arguments.text,
    "before": arguments.uuid,
    "comment": arguments.text,
    "config": arguments.config,
    "content": arguments.content,
    "dedup_key": arguments.text,
    "force": arguments.flag,
    "id": arguments.uuid_text,
    "labels": arguments.texts,
    "limits": arguments.limits,
    "max_attempts": arguments.whole,
    "outcome": arguments.text,
    "parent_id": arguments.uuid_text,
    "priority": arguments.whole,
    "queue": arguments.text,
    "ready_at": arguments.moment,
    "reason": arguments.text,
    "request_id": arguments.text,
    "run": arguments.whole,
    "status": partial(arguments.one_of, kinds=Status),
    "tenant": arguments.text,
    "when_running": arguments.text,
}
"""How each option is taken, whichever method has it."""


def _options(**given: object) -> dict[str, Any]:
    """What was given, as the SQL functions take it."""
    return {name: _OPTIONS[name](name, value) for name, value in given.items() if value is not None}


def _session_id(given: object) -> SessionId:
    return SessionId(arguments.uuid("session_id", given))


def _message(given: object) -> str | None:
    return None if given is None else arguments.text("message", given)


def _count(name: str, given: object) -> int:
    return arguments.whole(name, given, within=(0, 2**63 - 1))
