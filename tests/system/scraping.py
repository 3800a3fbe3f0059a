"""A real Prometheus with the rules of ``deploy/prometheus``, for system tests."""

import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from tests.databases import CHECKOUT
from tests.system.fleet import MOST_SECONDS

FOLDER = CHECKOUT / "deploy" / "prometheus"


PORTS = range(20_000, 32_000)
"""Below those that the system gives to whoever connects, or binds port 0."""


def free_port() -> int:
    """A port that stays free until it is bound: the system gives it to nobody, and no other test process takes it."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as bound:
            try:
                _claim(port)
                bound.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
        return port


def _claim(port: int) -> None:
    """Until this process ends."""
    if sys.platform == "linux":
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0agentrt-test-port-{port}")
        except OSError:
            claim.close()
            raise
        claim.detach()


def fetch(url: str) -> str:
    """The body of a page; an empty text when nobody answers in time."""
    try:
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - an address of this machine
            return str(answer.read().decode())
    except OSError:
        return ""


@dataclass(frozen=True)
class Prometheus:
    url: str

    async def ask(self, path: str) -> Any:
        """What the HTTP API answers; nothing while it does not."""
        answer = await asyncio.to_thread(fetch, f"{self.url}/api/v1/{path}")
        return json.loads(answer)["data"] if answer else None

    async def query(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        data = await self.ask(f"query?query={quote(query)}")
        return list(data["result"]) if data else []

    async def value(self, query: str) -> float | None:
        """The value of a query with one series; None without one."""
        found = await self.query(query)
        assert len(found) <= 1, f"{query} has {len(found)} series"
        return float(found[0]["value"][1]) if found else None

    async def until(self, query: str, want: float) -> None:
        """Wait until a query has a value: a scrape comes once a second, and one may fail."""
        value: float | None = None
        try:
            async with asyncio.timeout(MOST_SECONDS):
                while (value := await self.value(query)) != want:  # noqa: ASYNC110 - a scraper tells nobody
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{query} is {value} after {MOST_SECONDS} s, not {want}") from None


def start(program: str, address: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a server that keeps its data, and its log, in the folder."""
    words = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(
            [program, *words, f"--web.listen-address={address}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@asynccontextmanager
async def prometheus(ports: Sequence[int], folder: Path) -> AsyncIterator[Prometheus]:
    """Scrapes workers at these ports every second, otherwise as ``deploy/prometheus/prometheus.yml`` says."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    [job] = config["scrape_configs"]
    del job["dns_sd_configs"]  # nobody answers for a name here
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    process = start(program, address, folder)
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        process.wait()
