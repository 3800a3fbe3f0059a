"""Importing an exported session: what cannot be stored, or could never run, is refused with words."""

import secrets
from typing import Any
from uuid import uuid4

import pytest

from agentrt.core.content import Text
from agentrt.core.errors import InvalidArgument
from agentrt.core.journal import Entry, EntryData, MessageQueued, SessionCancelled, SessionCreated, UserMessage
from agentrt.core.session import FencingToken, Seq
from agentrt.postgres.importing import import_session, imported_of
from agentrt.postgres.pool import DatabaseOptions
from tests.postgres.stage import Stage

HEAD = {"agent": "a", "queue": "default", "priority": 0, "config": {}, "labels": {}, "tenant": None}


def head(**values: Any) -> dict[str, Any]:
    return {"id": str(uuid4()), **HEAD, **values}


def said(**values: int) -> Entry:
    numbers = {"run": 1, "attempt": 0, "fencing_token": 0} | values
    return Entry(
        seq=Seq(1),
        run=numbers["run"],
        attempt=numbers["attempt"],
        fencing_token=FencingToken(numbers["fencing_token"]),
        data=UserMessage((Text("hello"),)),
    )


@pytest.mark.parametrize("values", [{"run": 2**40}, {"attempt": 2**40}, {"fencing_token": 2**70}])
async def test_an_entry_with_a_number_that_no_column_holds_is_refused(
    stage: Stage, database_url: str, values: dict[str, int]
) -> None:
    _, imported = imported_of(head(), [said(**values)])
    with pytest.raises(InvalidArgument, match="out of int"):
        await import_session(DatabaseOptions(url=database_url), imported, session_id=None)
    assert await stage.connection.fetchval("select count(*) from agentrt.sessions") == 0


@pytest.mark.parametrize("name", ["agent", "queue", "tenant"])
def test_a_head_that_no_index_could_hold_once_the_session_goes_on_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} has 9000 bytes"):
        imported_of(head(**{name: secrets.token_hex(4500)}), [said()])


def journal(*data: EntryData) -> list[Entry]:
    return [
        Entry(seq=Seq(seq), run=1, attempt=0, fencing_token=FencingToken(0), data=one)
        for seq, one in enumerate(data, 1)
    ]


@pytest.mark.parametrize(
    ("behind", "dropped"),
    [
        ((), [3, 4]),
        ((UserMessage((Text("two"),), message_seq=Seq(3)),), [4]),
        ((SessionCancelled(dropped=(3, 4)), UserMessage((Text("again"),)), MessageQueued((Text("last"),))), [7]),
    ],
)
async def test_an_imported_run_that_is_cancelled_lists_the_messages_that_still_waited(
    stage: Stage, database_url: str, behind: tuple[EntryData, ...], dropped: list[int]
) -> None:
    """Case 86."""
    queued = (MessageQueued((Text("two"),)), MessageQueued((Text("three"),)))
    entries = journal(SessionCreated("a"), UserMessage((Text("one"),)), *queued, *behind)
    _, imported = imported_of(head(), entries)
    session = await import_session(DatabaseOptions(url=database_url), imported, session_id=None)
    last = (await stage.entries(session))[-1]
    assert last.data == {"reason": "imported", "dropped": dropped}
