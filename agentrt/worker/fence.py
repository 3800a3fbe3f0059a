"""Until when a worker may act: the self-fence, counted from when the last successful renewal was *sent*."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The lease as the worker knows it. Times are monotonic seconds.

    ``locked``: other workers watch this worker's liveness lock. ``broken``: the connection that held the lock is gone
    and no renewal has told the new key yet, so that others may see the lock free.
    """

    heartbeat_seconds: float
    lease_seconds: float
    stop_seconds: float
    renewed_at: float
    locked: bool = False
    broken: bool = False

    @property
    def stop_at(self) -> float:
        """From now on nothing new is begun, and everything is cancelled."""
        by_lease = self.renewed_at + self.lease_seconds - self.stop_seconds
        if self.locked and self.broken:
            # Who is silent for more than two of its heartbeats, with a free lock, is declared dead.
            margin = min(1.0, self.heartbeat_seconds / 2)
            return min(by_lease, self.renewed_at + 2 * self.heartbeat_seconds - margin)
        return by_lease

    @property
    def exit_at(self) -> float:
        """By now everything has stopped, or the process is gone."""
        return self.renewed_at + self.lease_seconds
