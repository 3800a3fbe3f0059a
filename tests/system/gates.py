"""Gates: files by which a test and an agent in another process wait for each other."""

import asyncio
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gates:
    """``agents.pass_gate`` is the other side."""

    folder: Path

    async def reached(self, name: str, *, seconds: float = 120.0) -> None:
        """Until an agent stands at the gate."""
        async with asyncio.timeout(seconds):
            while not (self.folder / f"{name}.reached").exists():  # noqa: ASYNC110 - a folder tells nobody
                await asyncio.sleep(0.02)

    def open(self, name: str) -> None:
        """Let everybody through, now and later."""
        (self.folder / f"{name}.open").touch()

    def effects(self) -> list[str]:
        """The call ids whose effect happened, once for each time."""
        path = self.folder / "effects"
        return path.read_text(encoding="utf-8").split() if path.exists() else []
