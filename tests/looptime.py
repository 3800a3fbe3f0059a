"""Time limits of the event loop that run out when a test says so, and not when a machine was slow."""

import asyncio

import pytest


def let_pass(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """The running loop's clock goes ahead: whatever has less than this left to wait runs out now. What is on its way to
    the database would run out, too, so let nothing be."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)
