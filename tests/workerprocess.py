"""A real worker process, as an operator would start it, with a small scripted agent."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.commandline import SECONDS, environment

AGENTS = '''
from agentrt import Agent, tool
from agentrt.testing import Call, Reply, ScriptedModel


@tool(effect="read")
def weather(town: str) -> str:
    """The weather in a town."""
    return f"sunny in {town}"


def script(conversation):
    if not conversation.results:
        return Reply(calls=[Call("weather", {"town": "Paris"})])
    return Reply(text="It is sunny.")


greeter = Agent("greeter", model=ScriptedModel(script), tools=[weather])
'''


def write_agents(folder: Path, text: str = AGENTS, name: str = "greeting.py") -> str:
    """Write a file of agents, and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


@dataclass
class WorkerProcess:
    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Take log lines until the process ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, event: str, *, timeout_seconds: float = SECONDS) -> dict[str, Any]:
        """The first log line of this event."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines if line["event"] == event]

        with self.changed:
            assert self.changed.wait_for(found, timeout_seconds), (event, self.process.poll(), self.lines)
            return found()[0]

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextmanager
def worker(url: str, **settings: str) -> Iterator[WorkerProcess]:
    """A worker from ``worker.started`` on; drained by SIGTERM at the end of the block if it still runs."""
    settings = {"http_port": "0", "log_format": "json", **settings}
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrt", "worker"],
        env=environment(url=url, **settings),
        stderr=subprocess.PIPE,
        text=True,
    )
    run = WorkerProcess(process)
    reader = threading.Thread(target=run.read)
    reader.start()
    try:
        run.wait_for("worker.started")
        yield run
        if process.poll() is None:
            assert run.terminate() == 0, run.lines
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
