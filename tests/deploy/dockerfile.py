"""A reader of the Dockerfile and its .dockerignore: what a build would see and do."""

import fnmatch
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.databases import CHECKOUT


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    image: str
    instructions: tuple[Instruction, ...]

    def named(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]


def stages() -> list[Stage]:
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: list[tuple[str, str, list[Instruction]]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            image, *words = rest.split()
            found.append((words[1] if words else "", image, []))
        else:
            found[-1][2].append(Instruction(name, rest.strip()))
    return [Stage(name, image, tuple(instructions)) for name, image, instructions in found]


def copied() -> list[str]:
    """The sources that come from the checkout, of all stages."""
    return [
        word
        for stage in stages()
        for instruction in stage.named("COPY")
        if not instruction.text.startswith("--from=")
        for word in instruction.words[:-1]
    ]


def context(folder: Path) -> None:
    """Lay out what the build stage has after its COPYs: what .dockerignore lets through of what is copied."""
    for source in copied():
        place = CHECKOUT / source
        files = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]
        for path in files:
            name = path.relative_to(CHECKOUT)
            if not ignored(name.as_posix()):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)


def ignored(name: str) -> bool:
    """Whether .dockerignore leaves a file out: the last pattern that fits it, or a folder above it, decides."""
    out = False
    for line in (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern = line.strip().removeprefix("!")
        parts = name.split("/")
        places = ["/".join(parts[: length + 1]) for length in range(len(parts))]
        anywhere = pattern.removeprefix("**/")
        fits = any(fnmatch.fnmatchcase(place, pattern) for place in places) or (
            anywhere != pattern and any(fnmatch.fnmatchcase(part, anywhere) for part in parts)
        )
        if fits:
            out = not line.startswith("!")
    return out
