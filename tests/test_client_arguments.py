"""What ``Client`` is given that is of a wrong type: refused by the parameter's name, and nothing is changed."""

import inspect
import math
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from agentrt import Client, Limits, connect
from agentrt.core.content import Image, Text
from agentrt.core.errors import InvalidArgument
from agentrt.core.session import Status

pytestmark = pytest.mark.one_server


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


VALUES: Mapping[str, Any] = {
    "none": None,
    "text": "word",
    "bytes": b"word",
    "whole": 1,
    "huge": 10**5000,
    "large": 2**70,
    "fraction": 1.5,
    "nan": math.nan,
    "infinite": math.inf,
    "true": True,
    "uuid": uuid4(),
    "date": date(2030, 1, 1),
    "moment": datetime(2030, 1, 1, tzinfo=UTC),
    "moment without a zone": datetime(2030, 1, 1),  # noqa: DTZ001 - the case
    "duration": timedelta(days=1),
    "mapping": {"a": "b"},
    "mapping of anything": {"a": Unspeakable()},
    "mapping with a number as key": {1: "b"},
    "mapping with bytes as key": {b"turns": 1},
    "texts": ["word"],
    "nothing in a list": [],
    "object": Unspeakable(),
    "type": Unspeakable,
}
"""By name, so that the kinds below can say which of them they take."""

TAKEN: Mapping[str, set[str]] = {
    "text": {"text"},
    "uuid": {"uuid"},
    "whole": {"whole"},
    "seconds": {"whole", "fraction"},
    "flag": {"true"},
    "moment": {"moment"},
    "labels": {"mapping"},
    "config": set(),
    "limits": set(),
    "content": set(),
    "status": set(),
}

PARTS: list[Any] = [5, b"word", Unspeakable()]

MORE: Mapping[str, list[Any]] = {
    "content": [
        [{"type": "text", "text": "word"}], [Text("word"), "word"], *([Text(part)] for part in PARTS),
        [Image(url=PARTS[0])], [Image()], [Text],
    ],
    "config": [
        {"model": 5}, {"model": b"a:b"}, {"model": None}, {"model": ""}, {"model": ["a:b"]}, {"instructions": 5},
        {"instructions": Unspeakable()}, {"instructions": None}, {"limits": 5}, {"limits": {"turns": math.nan}},
        {"limits": {"turns": True}}, {"limits": {b"turns": 1}}, {"limits": [Limits()]}, {"modell": "a:b"},
    ],
    "limits": [{"turns": "5"}, {"cost": math.nan}, {"turns": 0}, {"turns": 10**400}, Limits(turns=-1), Limits],
    "labels": [{"a": 1}, {"a": None}, {"a": b"b"}],
    "uuid": ["", "42", "g" * 32, Status.QUEUED],
    "whole": [-(10**400)],
    "seconds": [-1, 1e300],
    "moment": ["2030-01-01T00:00:00Z", datetime.max.replace(tzinfo=UTC)],
}  # fmt: skip
"""Wrong for one kind only."""

KINDS: Mapping[str, Mapping[str, str]] = {
    "create": {
        "agent": "text", "message": "text", "content": "content", "queue": "text", "priority": "whole",
        "ready_at": "moment", "dedup_key": "text", "config": "config", "labels": "labels", "tenant": "text",
        "parent_id": "uuid", "id": "uuid", "max_attempts": "whole",
    },
    "send": {
        "session_id": "uuid", "message": "text", "content": "content", "when_running": "text", "request_id": "text",
    },
    "cancel": {"session_id": "uuid", "reason": "text", "run": "whole"},
    "resume": {"session_id": "uuid", "force": "flag", "limits": "limits"},
    "retry": {"session_id": "uuid", "run": "whole"},
    "archive": {"session_id": "uuid"},
    "release": {"session_id": "uuid", "reason": "text"},
    "pending_approvals": {"session_id": "uuid", "limit": "whole"},
    "decide": {
        "approval_id": "uuid", "verdict": "text", "reviewer": "text", "arguments_hash": "text", "comment": "text",
    },
    "complete_tool_call": {"session_id": "uuid", "call_id": "text", "result": "text", "outcome": "text"},
    "get": {"session_id": "uuid"},
    "list": {
        "status": "status", "agent": "text", "queue": "text", "tenant": "text", "labels": "labels",
        "reason": "status", "before": "uuid", "limit": "whole",
    },
    "read": {"session_id": "uuid", "after_seq": "whole"},
    "follow": {"session_id": "uuid", "after_seq": "whole"},
    "prune": {"older_than_seconds": "seconds", "max_sessions": "whole"},
    "workers": {},
    "close": {},
}  # fmt: skip

GOOD: Mapping[str, Any] = {
    "agent": "greeter",
    "message": "hello",
    "verdict": "approved",
    "reviewer": "ann",
    "approval_id": uuid4(),
    "call_id": "000003000",
    "result": "done",
    "older_than_seconds": 0,
}

EVERYTHING = """
select jsonb_build_object(
  'sessions', (select jsonb_agg(to_jsonb(s) order by s.id) from agentrt.sessions s),
  'journal', (select jsonb_agg(to_jsonb(j) order by j.session_id, j.seq) from agentrt.journal j),
  'followers', (select jsonb_agg(to_jsonb(f) order by f.session_id) from agentrt.followers f))
"""


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[Client]:
    async with connect(database_url) as client:
        yield client


def parameters(method: str) -> Mapping[str, inspect.Parameter]:
    found = dict(inspect.signature(getattr(Client, method)).parameters)
    del found["self"]
    return found


def test_every_parameter_of_the_client_is_tried() -> None:
    public = {name for name in vars(Client) if not name.startswith("_")}
    assert {method: {*parameters(method)} for method in public} == {name: {*kinds} for name, kinds in KINDS.items()}


def wrong_values(kind: str, *, optional: bool) -> Mapping[str, Any]:
    taken = TAKEN[kind] | ({"none"} if optional else set())
    more = {f"number {number} of {kind}": value for number, value in enumerate(MORE.get(kind, []))}
    return {name: value for name, value in VALUES.items() if name not in taken} | more


async def ask(client: Client, method: str, given: Mapping[str, Any]) -> Any:
    asked = getattr(client, method)(**given)
    return await (anext(asked) if hasattr(asked, "__anext__") else asked)


@pytest.mark.parametrize("method", [name for name, kinds in KINDS.items() if kinds])
async def test_a_value_of_a_wrong_type_is_refused_by_its_parameters_name_and_changes_nothing(
    client: Client, connection: asyncpg.Connection, method: str
) -> None:
    session_id = await client.create("greeter", "hello")
    await connection.execute("update agentrt.sessions set status = 'completed', finished_at = now() - interval '1 day'")
    before = await connection.fetchval(EVERYTHING)
    taken = []
    for parameter, kind in KINDS[method].items():
        signature = parameters(method)
        optional = signature[parameter].default is None and parameter != "message"
        needed = [name for name, one in signature.items() if one.default is one.empty or name == "message"]
        given = {name: GOOD.get(name, session_id) for name in needed}
        if parameter == "content":
            del given["message"]
        for name, value in wrong_values(kind, optional=optional).items():
            try:
                await ask(client, method, {**given, parameter: value})
            except InvalidArgument as refused:
                if parameter in str(refused):
                    continue
                taken.append(f"{parameter}, {name}: {refused}")
            except Exception as raised:  # noqa: BLE001 - whatever else it is, the test tells all of it
                taken.append(f"{parameter}, {name}: {raised!r}")
            else:
                taken.append(f"{parameter} takes {name}")
    assert taken == []
    assert await connection.fetchval(EVERYTHING) == before


async def test_ids_are_taken_as_texts_and_limits_as_they_are(client: Client) -> None:
    parent, given = await client.create("greeter", "hello"), uuid4()
    session_id = await client.create(
        "greeter", "hello", id=str(given), parent_id=str(parent), config={"limits": Limits(turns=3)}
    )
    session = await client.get(str(session_id))
    assert (session_id, session.parent_id) == (given, UUID(str(parent)))
    assert session.config["limits"]["turns"] == 3


async def test_a_message_shows_the_value_and_what_would_be_taken(client: Client) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await client.list(status="done")
    assert str(refused.value) == (
        "status must be one of queued, running, suspended, completed, failed, cancelled, not 'done'"
    )
    with pytest.raises(InvalidArgument, match=r"^message must be text, not 5$"):
        await client.send(uuid4(), 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^content\[0\] must be a block, such as Text, not 'hi'$"):
        await client.send(uuid4(), content=["hi"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match=r"^tenant must be text, not a value of type Unspeakable$"):
        await client.create("greeter", "hello", tenant=Unspeakable())  # type: ignore[arg-type]
