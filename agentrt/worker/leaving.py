"""The end of a worker's process in time, whatever its tools leave behind."""

from __future__ import annotations

import threading

from agentrt.core.events import WarningRaised
from agentrt.worker.incarnation import WorkerParts


def end_in_time(parts: WorkerParts, *, code: int) -> None:
    """See that the process is gone within ``stop_seconds``, and with ``code``.

    A worker that has released its sessions has nothing to wait for. But a loop cannot be closed while a task swallows
    its cancellation, and an interpreter joins the threads that tools have started and runs what they gave ``atexit``.
    """
    seconds = parts.settings.stop_seconds

    def out_of_time() -> None:
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
        left = f"{parts.threads_running()} tools run, and the threads {', '.join(threads) or '(none)'}"
        words = f"the process did not end by itself within {seconds:g} s after the worker, and is ended: {left}"
        parts.emit(WarningRaised(message=words))
        parts.leave(code)

    main = threading.main_thread()
    timer = threading.Timer(seconds, out_of_time)
    timer.name = "agentrt-leaving"
    timer.daemon = True
    timer.start()
