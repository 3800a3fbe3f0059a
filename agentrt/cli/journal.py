"""``agentrt plan`` and ``agentrt lint``: what a worker would make of a journal; and journals as files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from agentrt.cli.border import DONE, FAILED, warn
from agentrt.cli.output import print_json, printable, relative
from agentrt.cli.sessions import Json, SessionArgument, database, worker_name
from agentrt.core.errors import InvalidArgument
from agentrt.core.session import Status
from agentrt.interrupts import run

if TYPE_CHECKING:
    from agentrt.core.budget import Limits
    from agentrt.core.journal import Entry
    from agentrt.core.plan import Step, ToolTraits
    from agentrt.core.resume import ResumePlan
    from agentrt.core.session import Completed, Failed, Session

FORMAT = "agentrt_journal"


async def _read(session: str) -> tuple[Session, list[Entry]]:
    async with database() as client:
        head = await client.get(session)
        return head, [entry async for entry in client.read(session)]


# --- plan -----------------------------------------------------------------------------------------------------------


def plan(session: SessionArgument, *, as_json: Json = False) -> None:
    """Say what a worker would do with a session now: the dry run of a takeover.

    Tools are those of the agent as AGENTRT_AGENTS has it here; without it, each counts as undeclared.
    """
    head, entries, worker = run(_read_with_worker(session))
    resume, step = _planned(head, entries)
    if as_json:
        state = {"status": head.status, "worker": worker}
        print_json({**state, "resume": resume, "next_step": type(step).__name__, "details": step})
        return
    typer.echo(printable(_state(head, entries, worker)))
    if head.status == Status.COMPLETED:
        return
    typer.echo(f"a claim would {_KINDS[resume.kind]}")
    for result in resume.close:
        typer.echo(printable(f"  answer call {_named(result.call_id, result.tool)} as {result.outcome}"))
    for call in resume.reconcile:
        typer.echo(printable(f"  ask the tool what became of call {_named(call.call.call_id, call.call.tool)}"))
    for call in resume.rerun:
        again = " again" if call.started or call.orphaned else ""
        typer.echo(printable(f"  run call {_named(call.call.call_id, call.call.tool)}{again}"))
    typer.echo(f"then: {printable(_in_words(step))}")


_KINDS = {"start": "start the run", "continue": "continue the run", "already_complete": "only write the end"}


def _named(call_id: str, tool: str) -> str:
    return f"{call_id} ({tool})"


async def _read_with_worker(session: str) -> tuple[Session, list[Entry], str | None]:
    """The session, and the name of the worker that it runs on now."""
    async with database() as client:
        head = await client.get(session)
        entries = [entry async for entry in client.read(session)]
        return head, entries, await worker_name(client, head)


def _state(head: Session, entries: Sequence[Entry], worker: str | None) -> str:
    """How the session stands, so that nobody takes the plan for what is being done."""
    from agentrt.core.journal import SessionClaimed

    match head.status:
        case Status.RUNNING:
            claims = [entry.created_at for entry in entries if isinstance(entry.data, SessionClaimed)]
            since = f", claimed {relative(claims[-1])}" if claims else ""
            return f"it runs now, on worker {worker}{since}: this is what a successor would do if that worker died now"
        case Status.QUEUED:
            wait = relative(head.ready_at)
            return f"it is queued, to be claimed {f'{wait} at the earliest' if wait.startswith('in ') else 'now'}"
        case Status.SUSPENDED:
            suspension = head.suspension or {}
            why = f"{suspension.get('reason')}: {suspension.get('message') or 'waits for a message'}"
            return f"it is suspended ({why}): no worker claims it before that is over"
        case Status.COMPLETED:
            return "it has ended (completed): no worker claims it before a message begins a new run"
        case Status.FAILED | Status.CANCELLED:
            return f"it has ended ({head.status}): this is what a worker would do after agentrt sessions retry"
        case _:
            assert_never(head.status)


def _planned(head: Session, entries: Sequence[Entry]) -> tuple[ResumePlan, Step]:
    from agentrt.core.budget import Spent
    from agentrt.core.journal import Entry
    from agentrt.core.plan import next_step
    from agentrt.core.resume import plan_resume
    from agentrt.core.session import Seq
    from agentrt.core.transcript import fold

    traits, limits = _agent(head)
    transcript = fold(entries)
    resume = plan_resume(transcript, traits)
    closed = [
        Entry(seq=Seq(transcript.last_seq + number), run=transcript.run, data=result)
        for number, result in enumerate(resume.close, start=1)
    ]
    spent = Spent(
        turns=head.turns,
        tokens=head.input_tokens + head.output_tokens,
        cost=float(head.cost),
        running_seconds=head.running_seconds,
    )
    step = next_step(fold([*entries, *closed]), limits, traits, spent=spent)
    return resume, step


def _agent(head: Session) -> tuple[Mapping[str, ToolTraits], Limits]:
    from agentrt.agents import Registry
    from agentrt.core.budget import Limits
    from agentrt.settings import Settings

    agent = Registry.load(Settings().agents).agents.get(head.agent)
    if agent is None:
        warn(f"agent {head.agent} is not in AGENTRT_AGENTS here, so its calls are judged as of unknown tools")
        return {}, Limits()
    return agent.traits(), agent.limits_for(head.config)


def _in_words(step: Step) -> str:
    from agentrt.core.plan import AskApproval, AskModel, CloseCalls, Finish, RunTools, Wait

    match step:
        case AskModel():
            return "ask the model"
        case RunTools(calls=calls, reconcile=reconcile):
            return f"run {', '.join(call.call.tool for call in (*calls, *reconcile))}"
        case CloseCalls(results=results):
            return f"answer {', '.join(f'call {_named(each.call_id, each.tool)}' for each in results)}"
        case AskApproval(calls=calls):
            return f"ask a person about {', '.join(call.call.tool for call in calls)}"
        case Wait(reason=reason, message=message):
            return f"suspend ({reason}): {message}"
        case Finish(outcome=end):
            return _in_words_of_end(end)
        case _:
            assert_never(step)


def _in_words_of_end(end: Completed | Failed) -> str:
    from agentrt.core.session import Failed

    return (
        f"fail ({end.code}): {end.message}" if isinstance(end, Failed) else f"complete: {end.outcome.get('text', '')}"
    )


# --- lint -----------------------------------------------------------------------------------------------------------


def lint(
    session: Annotated[str | None, typer.Argument(metavar="SESSION", help="The session's id.")] = None,
    *,
    file: Annotated[Path | None, typer.Option(help="A file of `sessions export` instead.")] = None,
    as_json: Json = False,
) -> None:
    """Check a journal and its view against the rules; exit code 1 if one is broken."""
    from agentrt.core.lint import lint

    if (session is None) == (file is None):
        raise InvalidArgument("name either a session, or a file: agentrt lint --file journal.jsonl")
    entries = run(_read(session))[1] if session is not None else read_file(file or Path())[1]
    breaches = lint(entries)
    if as_json:
        print_json(breaches)
    else:
        for breach in breaches:
            where = f"seq {breach.seq}" if breach.seq else "the view"
            typer.echo(f"{where:<10} {breach.rule:<14} {printable(breach.text)}")
        if not breaches:
            typer.echo(f"{len(entries)} entries, no rule is broken")
    raise typer.Exit(FAILED if breaches else DONE)


# --- files ----------------------------------------------------------------------------------------------------------


def export(session: SessionArgument) -> None:
    """Print a session as JSON lines: its head, then one entry per line."""
    from agentrt.cli.entries import as_json

    head, entries = run(_read(session))
    print_json({FORMAT: 1, "session": asdict(head)}, indent=None)
    for entry in entries:
        print_json(as_json(entry), indent=None)


def import_(
    file: Annotated[Path, typer.Argument(help="A file of `sessions export`.")],
    *,
    keep_id: Annotated[bool, typer.Option("--keep-id", help="Keep the session's id instead of a new one.")] = False,
    as_json: Json = False,
) -> None:
    """Bring an exported session into this database, and print its id.

    It does not go on by itself: a run that was on counts as cancelled. Send a message, or retry it.
    """
    from agentrt import app
    from agentrt.core.lint import lint
    from agentrt.settings import Settings

    head, entries = read_file(file)
    if serious := [breach for breach in lint(entries) if breach.rule in SERIOUS]:
        first = serious[0]
        raise InvalidArgument(
            f"{file}, line {_line_of(entries, first.seq)}: entry {first.seq} {first.text} ({first.rule})"
        )
    session_id = run(app.import_session(Settings(), head, entries, keep_id=keep_id))
    if as_json:
        print_json({"session_id": session_id}, indent=None)
    else:
        typer.echo(str(session_id))


SERIOUS = ("not_empty", "gapless", "created_first", "token_grows", "token_range", "run_grows")


def _line_of(entries: Sequence[Entry], seq: int) -> int:
    return next((line for line, entry in enumerate(entries, start=2) if entry.seq == seq), 1)


def read_file(path: Path) -> tuple[Mapping[str, Any], list[Entry]]:
    """The head and the entries of an exported file.

    Raises:
        InvalidArgument: the file cannot be read, or is no journal; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    lines = list(_objects(path, text))
    if not lines or lines[0].get(FORMAT) != 1 or not isinstance(lines[0].get("session"), dict):
        raise InvalidArgument(f'{path}, line 1: this is no export of a session; it begins with {{"{FORMAT}": 1, …}}')
    return lines[0]["session"], [_entry(path, number, line) for number, line in enumerate(lines[1:], start=2)]


def _objects(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{path}, line {number}: this is no JSON ({error})") from None
        if not isinstance(value, dict):
            raise InvalidArgument(f"{path}, line {number}: a JSON object is expected")
        yield value


def _entry(path: Path, number: int, line: dict[str, Any]) -> Entry:
    from datetime import UTC, datetime
    from uuid import UUID

    from agentrt.core.codec import decode
    from agentrt.core.journal import Entry
    from agentrt.core.session import FencingToken, Seq, WorkerId

    try:
        worker_id, created_at = line.get("worker_id"), line.get("created_at")
        return Entry(
            seq=Seq(_whole(line, "seq", 2**63 - 1)),
            run=_whole(line, "run", 2**31 - 1),
            attempt=_whole(line, "attempt", 2**31 - 1),
            fencing_token=FencingToken(_whole(line, "fencing_token", 2**63 - 1)),
            worker_id=None if worker_id is None else WorkerId(UUID(worker_id)),
            data=decode(str(line["type"]), line["data"], seq=int(line["seq"])),
            created_at=None if created_at is None else datetime.fromisoformat(created_at).astimezone(UTC),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidArgument(f"{path}, line {number}: this is no entry of a journal ({error!r:.200})") from None


def _whole(line: dict[str, Any], name: str, most: int) -> int:
    value = int(line[name])
    if not 0 <= value <= most:
        raise ValueError(f"{name} {value} is not from 0 to {most}")
    return value
