"""OpenAI's Responses: how an answer is written. platform.openai.com/docs/api-reference/responses-streaming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .conversation import WireFormat
from .ledger import Ledger, Usage, origin_of, sign
from .openai_chat import CREATED
from .script import Call, Refuse, Say, Stop, Think, split
from .wire import Parsed, Said, event, tokens


class ResponsesWriter:
    """Events from `response.created` to `response.completed` or `response.incomplete`."""

    def __init__(self, parsed: Parsed, ledger: Ledger, usage: Usage) -> None:
        self.raw = parsed.raw
        self.model = parsed.model
        self.ledger = ledger
        self.usage = usage
        self.origin = origin_of(WireFormat.OPENAI_RESPONSES, parsed.model)
        self.encrypted = "reasoning.encrypted_content" in (parsed.raw.get("include") or ())
        self.response_id = ledger.mint("resp_")
        self.sequence = -1
        self.items: list[dict[str, Any]] = []
        self.reasoning_id: str | None = None
        self.output = 0
        self.reasoning = 0
        self.refused = False

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.sequence += 1
        return event({"type": kind, "sequence_number": self.sequence, **fields}, kind)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.raw.get("instructions"),
            "model": self.model,
            "output": list(self.items) if status not in ("in_progress", "queued") else [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": self.raw.get("store", True),
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
            **fields,
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.usage.total,
            "input_tokens_details": {"cached_tokens": self.usage.cached, "cache_write_tokens": 0},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.usage.total + self.output,
        }

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def say(self, step: Said) -> Iterator[bytes]:
        match step:
            case Say(text, pieces):
                part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
                yield from self._message(part, "output_text", "text", split(text, pieces))
            case Refuse(text):
                self.refused = True
                yield from self._message({"type": "refusal", "refusal": text}, "refusal", "refusal", split(text, 2))
            case Think():
                yield from self._think(step)
            case Call():
                yield from self._call(step)
            case _:
                raise ValueError(f"{type(step).__name__}: this format has no such thing")

    def _open(self, item: dict[str, Any]) -> tuple[int, bytes]:
        index = len(self.items)
        self.items.append(item)
        if item["type"] != "reasoning" and self.reasoning_id is not None:
            self.ledger.requires[item["id"]] = self.reasoning_id
        return index, self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, index: int, item: dict[str, Any]) -> bytes:
        self.items[index] = item
        return self._event("response.output_item.done", output_index=index, item=item)

    def _message(self, part: dict[str, Any], kind: str, field: str, pieces: list[str]) -> Iterator[bytes]:
        item: dict[str, Any] = {"id": self.ledger.mint("msg_"), "type": "message", "role": "assistant"}
        index, added = self._open({**item, "status": "in_progress", "content": []})
        yield added
        where = {"item_id": item["id"], "output_index": index, "content_index": 0}
        extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        yield self._event("response.content_part.added", **where, part={**part, field: ""})
        for piece in pieces:
            self.output += tokens(piece)
            yield self._event(f"response.{kind}.delta", **where, delta=piece, **extra)
        yield self._event(f"response.{kind}.done", **where, **{field: part[field]}, **extra)
        yield self._event("response.content_part.done", **where, part=part)
        yield self._done(index, {**item, "status": "completed", "content": [part]})

    def _think(self, step: Think) -> Iterator[bytes]:
        item: dict[str, Any] = {"id": self.ledger.mint("rs_"), "type": "reasoning"}
        self.reasoning_id = item["id"]
        self.ledger.thoughts[item["id"]] = self.origin
        self.reasoning += tokens(step.text)
        self.output += tokens(step.text)
        index, added = self._open({**item, "summary": []})
        yield added
        where = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        part = {"type": "summary_text", "text": step.text}
        yield self._event("response.reasoning_summary_part.added", **where, part={**part, "text": ""})
        for piece in split(step.text, 2):
            yield self._event("response.reasoning_summary_text.delta", **where, delta=piece)
        yield self._event("response.reasoning_summary_text.done", **where, text=step.text)
        yield self._event("response.reasoning_summary_part.done", **where, part=part)
        item["summary"] = [part]
        if self.encrypted and step.signed:
            item["encrypted_content"] = sign(self.origin, step.text, item["id"])
        yield self._done(index, item)

    def _call(self, step: Call) -> Iterator[bytes]:
        self.ledger.tool_names.add(step.name)
        self.ledger.arguments.add(step.arguments_text)
        item = {
            "id": self.ledger.mint("fc_"),
            "type": "function_call",
            "call_id": self.ledger.mint("call_") if step.call_id is None else step.call_id,
            "name": step.name,
        }
        index, added = self._open({**item, "status": "in_progress", "arguments": ""})
        yield added
        where = {"item_id": item["id"], "output_index": index}
        pieces = split(step.arguments_text, 3)
        for piece in pieces[:1] if step.half else pieces:
            self.output += tokens(piece)
            yield self._event("response.function_call_arguments.delta", **where, delta=piece)
        if not step.half:
            done = {"name": step.name, "arguments": step.arguments_text}
            yield self._event("response.function_call_arguments.done", **where, **done)
            yield self._done(index, {**item, "status": "completed", "arguments": step.arguments_text})

    def finish(self, stop: Stop) -> Iterator[bytes]:
        response = self._final(stop)
        yield self._event(f"response.{response['status']}", response=response)

    def _final(self, stop: Stop) -> dict[str, Any]:
        """A refusal in words completes like any answer; one of the content filter leaves the response incomplete."""
        match stop:
            case Stop.END | Stop.TOOL_CALLS:
                return self._response("completed", usage=self._usage())
            case Stop.REFUSED if self.refused:
                return self._response("completed", usage=self._usage())
            case Stop.LENGTH | Stop.REFUSED:
                reason = "max_output_tokens" if stop is Stop.LENGTH else "content_filter"
                return self._response("incomplete", usage=self._usage(), incomplete_details={"reason": reason})
            case Stop.PAUSED:
                raise ValueError("this format does not pause an answer")

    def ping(self) -> bytes:
        return b": ping\n\n"

    def error(self, kind: str, message: str) -> Iterator[bytes]:
        """`server` fails the response, anything else is an error event beside it."""
        code = {"overloaded": "server_is_overloaded", "server": "server_error"}.get(kind, kind)
        if kind == "server":
            failed = self._response("failed", error={"code": code, "message": message})
            yield self._event("response.failed", response=failed)
        else:
            yield self._event("error", code=code, message=message, param=None)

    def malformed(self) -> Iterator[bytes]:
        """Data that is no JSON under a name that clients read."""
        yield event('{"type": "broken', "response.output_text.delta")

    def whole(self, steps: tuple[Said, ...], stop: Stop) -> dict[str, Any]:
        for step in steps:
            for _ in self.say(step):
                pass
        return self._final(stop)
