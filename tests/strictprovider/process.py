"""The provider in its own process, for tests that kill the workers which talk to it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHECKOUT = Path(__file__).parents[2]


class StrictProviderProcess:
    """A context manager. `script` is `name` of `script.py` or `package.module:function`."""

    def __init__(self, script: str = "echo", *options: str) -> None:
        self._command = [sys.executable, "-m", "tests.strictprovider", "--port", "0", "--script", script, *options]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=_CHECKOUT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self._process.communicate()
            raise RuntimeError(f"the provider ended with {self._process.returncode}: {' '.join(self._command)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def requests(self) -> list[dict[str, Any]]:
        """Every request so far, as `Recorded.as_json` shows it."""
        found: list[dict[str, Any]] = self._ask("GET", "/requests")
        return found

    def violations(self) -> list[str]:
        found: list[str] = self._ask("GET", "/violations")
        return found

    def waiting(self) -> dict[str, int]:
        """How many answers stand at each gate."""
        found: dict[str, int] = self._ask("GET", "/gates")
        return found

    def open_gate(self, name: str) -> None:
        self._ask("POST", f"/gates/{name}")

    def _ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.url + path, method=method)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            return json.load(answer)
