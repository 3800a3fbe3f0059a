"""A reader of the systemd unit and of its environment file."""

import re
import shlex
from collections import defaultdict

from tests.databases import CHECKOUT

SYSTEMD = CHECKOUT / "deploy" / "systemd"
UNIT = SYSTEMD / "agentrt-worker@.service"
EXAMPLE = SYSTEMD / "worker.env.example"
INSTALLED = "/opt/agentrt/bin/"


def service() -> dict[str, list[str]]:
    """The [Service] section: every value of every key."""
    found: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif section == "Service" and "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def command(programs: str) -> list[str]:
    """ExecStart, with the programs of another folder."""
    [line] = service()["ExecStart"]
    assert line.startswith(INSTALLED)
    return shlex.split(line.replace(INSTALLED, f"{programs}/"))


def environment(text: str) -> dict[str, str]:
    """What systemd makes of an environment file (systemd.exec(5)): comments, NAME=value, and quotes around it."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", ";")):
            continue
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)=(.*)", line)
        assert match, f"this is no NAME=value: {line}"
        found[match[1]] = "".join(shlex.split(match[2]))
    return found
