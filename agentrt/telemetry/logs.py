"""Log lines by structlog, as JSON or for people, written by a thread of their own.

Whoever logs never waits for the output: a worker whose log pipe is stuck keeps its sessions and loses lines.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

MAX_WAITING_LINES = 10_000

# Libraries that tell at info what we tell better, or quote URLs and headers, which may hold keys.
QUIET = ("asyncio", "anthropic", "fastmcp", "httpcore", "httpx", "httpx2", "mcp", "openai", "pydantic_ai", "urllib3")


class LineWriter:
    """Writes lines to a stream in a thread of its own; drops new ones, and says how many, while the stream is stuck."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._writing = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="agentrt-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Hand over one line without its end; never waits, never raises."""
        with self._changed:
            if len(self._lines) >= MAX_WAITING_LINES or self._closing:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything handed over is written; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_seconds)

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Write what is left, for at most this long, and take nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                if not self._lines:
                    return
                lines, self._dropped, dropped = [*self._lines], 0, self._dropped
                self._lines.clear()
                self._writing = True
            if dropped:
                lines.append(f"agentrt: {dropped} log lines were dropped, since the output was stuck")
            try:
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            except (OSError, ValueError):
                pass  # the reader is gone: there is nobody left to tell
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class _LineLogger:
    """What structlog writes to: a rendered line goes to the writer whatever its level."""

    def __init__(self, writer: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.msg = writer.write


class Logs:
    """The process's log. ``line`` writes one of our own lines.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json``, ``console``, or ``auto``: console if ``stream`` is a terminal.
        stream: Where to; standard error when left out.
    """

    def __init__(self, level: str, log_format: str, *, stream: TextIO | None = None) -> None:
        stream = sys.stderr if stream is None else stream
        terminal = stream.isatty()
        as_json = log_format == "json" or (log_format == "auto" and not terminal)
        self.writer = LineWriter(stream)
        self._threshold = _LEVELS[level]
        self._adopted: tuple[logging.Handler, int] | None = None
        self._configured = False
        render: list[Processor] = (
            [structlog.processors.format_exc_info, _ordered, structlog.processors.JSONRenderer(default=str)]
            if as_json
            else [structlog.dev.ConsoleRenderer(colors=terminal, pad_event_to=20)]
        )
        self._processors: list[Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ]
        self._wrapper = structlog.make_filtering_bound_logger(self._threshold)
        self._logger: Any = structlog.wrap_logger(
            _LineLogger(self.writer), processors=self._processors, wrapper_class=self._wrapper
        )

    def writes(self, level: str) -> bool:
        """Whether lines of ``level`` are written at all."""
        return _LEVELS[level] >= self._threshold

    def line(self, name: str, level: str, keys: Mapping[str, Any]) -> None:
        """Write one line, if its level is high enough."""
        self._logger.log(_LEVELS[level], name, **keys)

    def adopt(self) -> None:
        """Lead what libraries and tools log, by ``logging`` or by structlog, to the same output in the same form."""
        root = logging.getLogger()
        handler = _Adopted(self)
        self._adopted = (handler, root.level)
        root.addHandler(handler)
        root.setLevel(self._threshold)
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._configured = not structlog.is_configured()
        if self._configured:
            structlog.configure(
                processors=self._processors,
                wrapper_class=self._wrapper,
                logger_factory=lambda *_: _LineLogger(self.writer),
            )

    def give_back(self) -> None:
        """Undo ``adopt``."""
        if self._adopted is not None:
            handler, level = self._adopted
            logging.getLogger().removeHandler(handler)
            logging.getLogger().setLevel(level)
            self._adopted = None
        if self._configured:
            structlog.reset_defaults()
            self._configured = False

    def close(self) -> None:
        """Give the loggers back, and write what is left."""
        self.give_back()
        self.writer.close()


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _ordered(_logger: object, _method: str, line: EventDict) -> EventDict:
    return {key: line.pop(key) for key in ("timestamp", "level", "event") if key in line} | dict(line)


class _Adopted(logging.Handler):
    """A record of the standard library as one of our lines: ``log.recorded`` with logger and message."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the format
            message = str(record.msg)
        keys = {"logger": record.name, "message": message}
        if record.exc_info and record.exc_info[0] is not None:
            keys["exception"] = logging.Formatter().formatException(record.exc_info)
        level = next((name for name, number in reversed(_LEVELS.items()) if record.levelno >= number), "debug")
        self._logs.line("log.recorded", level, keys)
