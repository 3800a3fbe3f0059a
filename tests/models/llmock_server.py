"""llmock as a real process: a provider that breaks at random, by a fixed seed, and judges how its client coped.

It is no strict provider (it accepts invalid transcripts); it is for faults and for its verdict.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

# llmock draws its faults from the interpreter's own random numbers and has no option for a seed.
_SEEDED = "import random, sys; from llmock.cli import app; random.seed(int(sys.argv.pop(1))); app()"
_RUNNING = re.compile(r"Uvicorn running on (http://[\d.]+:\d+)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """llmock's judgement: `failures` are its FAIL findings, `warnings` its WARN findings, `text` its report."""

    failures: tuple[dict[str, Any], ...]
    warnings: tuple[dict[str, Any], ...]
    calls: int
    attempts: int
    faults: int
    text: str


@dataclass(slots=True)
class LlmockServer:
    """A context manager.

    `errors` maps statuses to probabilities per request, `stream_faults` maps `disconnect`, `truncate`, `stall` and
    `malformed` to probabilities per stream; such a fault hits one of the first six events after the first. A
    truncation behind the finish reason passes for a failure of the client, so answers should be longer than that:
    `echo` says the prompt again, in one event per word.
    """

    seed: int = 0
    errors: Mapping[int, float] = field(default_factory=dict)
    stream_faults: Mapping[str, float] = field(default_factory=dict)
    stall_seconds: float = 10.0
    response_style: str = "echo"
    tool_mode: str = "auto"
    url: str = ""
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"{self.url}/anthropic"

    def _command(self) -> list[str]:
        command = [sys.executable, "-c", _SEEDED, str(self.seed), "serve", "--port", "0", "--log-level", "info"]
        command += ["--response-style", self.response_style, "--tool-mode", self.tool_mode]
        command += ["--stream-stall-seconds", str(self.stall_seconds)]
        for status, rate in self.errors.items():
            command += ["--error-rate", f"{status}={rate}"]
        for kind, rate in self.stream_faults.items():
            command += ["--stream-fault", f"{kind}={rate}"]
        return command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said: list[str] = []
        for line in self._process.stderr:
            said.append(line)
            if found := _RUNNING.search(line):
                self.url = found[1]
                # Its access log must be read, or its pipe fills and it stops answering.
                self._reader = threading.Thread(target=deque, args=(self._process.stderr, 0), daemon=True)
                self._reader.start()
                return self
        self._end()
        raise RuntimeError(f"llmock ended with {self._process.returncode}:\n{''.join(said)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.kill()  # it has nothing to lose, and would wait for stalled streams
        self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self._process.stderr.close()

    def script(self, *behaviours: dict[str, Any]) -> None:
        """Queue what the next requests get, for example `{"type": "fail", "status": 429, "retry_after": 0.2}`."""
        self._ask("POST", "/_llmock/scenario", {"behaviors": list(behaviours)})

    def requests(self) -> list[dict[str, Any]]:
        """Every request: status, fault, completed, chunks_sent, body, …"""
        found: list[dict[str, Any]] = self._ask("GET", "/_llmock/requests")["requests"]
        return found

    def reset(self) -> None:
        """Forget requests and what is queued."""
        self._ask("POST", "/_llmock/reset")

    def verdict(self) -> Verdict:
        """Attempts with the same body are one call; what counts is how each call ended and what was waited."""
        judged = self._ask("GET", "/_llmock/verdict")
        with urllib.request.urlopen(f"{self.url}/_llmock/verdict?format=text", timeout=60) as answer:  # noqa: S310 - a server of ours
            text = answer.read().decode()
        findings = judged["findings"]
        return Verdict(
            failures=tuple(finding for finding in findings if finding["severity"] == "error"),
            warnings=tuple(finding for finding in findings if finding["severity"] == "warning"),
            calls=judged["calls"],
            attempts=judged["attempts"],
            faults=judged["faults_injected"],
            text=text,
        )

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)  # noqa: S310 - a server of ours
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - a server of ours
            return json.load(answer)
