"""Tells systemd how the worker is: READY, STOPPING, and that it lives (a unit of ``Type=notify``, ``WatchdogSec=``).

The protocol is one datagram of ``NAME=VALUE`` lines to the socket that NOTIFY_SOCKET names
(https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html).
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping

from agentrt.core import events
from agentrt.core.events import Event

FEED_SECONDS = 1.0


class SystemdNotifier:
    """An ``EventSink``; does nothing outside systemd, and never fails.

    The watchdog is fed while the keeper's thread lives and the main loop answers it, whatever the database does.
    """

    def __init__(self, environ: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._clock = clock
        self._fed_at = -math.inf

    def __call__(self, event: Event) -> None:
        """Pass on what systemd wants to know."""
        if not self._address:
            return
        match event:
            case events.WorkerStarted():
                self._send(f"READY=1\nSTATUS={event.slots} slots for {', '.join(event.agents)}")
            case events.WorkerDraining():
                self._send(f"STOPPING=1\nSTATUS=draining {event.sessions} sessions: {event.reason}")
            case events.WorkerStalled():
                self._send(f"STATUS=the main loop has made no progress for {event.seconds:.0f} s")
            case events.LoopLagged() if self._clock() - self._fed_at >= FEED_SECONDS:
                self._fed_at = self._clock()
                self._send("WATCHDOG=1")
            case _:
                pass

    def _send(self, message: str) -> None:
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)
                sender.sendto(message.encode(), address)
        except OSError:
            pass  # systemd is gone or does not listen: nothing depends on it
