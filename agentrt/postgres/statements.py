"""The worker's SQL: one statement per file in ``sql/``, read once."""

from __future__ import annotations

from importlib.resources import files


def _read(name: str) -> str:
    return (files("agentrt.postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


REGISTER_WORKER = _read("register_worker")
RENEW = _read("renew")
STOP_WORKER = _read("stop_worker")
MARK = _read("mark")
SWEEP = _read("sweep")
CLAIM = _read("claim")
READ = _read("read")
HEAD = _read("head")
WROTE = _read("wrote")
WITHDRAW_AGENT = _read("withdraw_agent")
APPEND = _read("append")
END = _read("end")

APPEND_WAITING = APPEND.replace(" skip locked", "")
"""``APPEND`` for the side connection and for transactional tools: waits for the row locks, up to ``lock_timeout``."""

END_WAITING = END.replace(" skip locked", "")
"""``END`` for the side connection."""
