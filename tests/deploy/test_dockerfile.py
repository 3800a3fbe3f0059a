"""The image: what it is made from exists, and what is in it can neither build nor be root."""

import json
import re
import tomllib

import pytest

from agentrt.settings import PREFIX, Settings
from tests.databases import CHECKOUT
from tests.deploy import dockerfile

BUILD_TOOLS = {"pip", "gcc", "g++", "make", "cargo", "apt-get", "build-essential", "git", "curl", "uv", "hatchling"}


def test_there_are_two_stages_on_slim_images_of_a_supported_python():
    build, last = dockerfile.stages()
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", build.image)
    assert version
    assert last.image == build.image
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    paths = re.findall(r"/python(\d+\.\d+)/", " ".join(instruction.text for instruction in last.instructions))
    assert set(paths) == {version[1]}


def test_every_source_exists_and_is_not_ignored():
    sources = dockerfile.copied()
    assert sources
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert not dockerfile.ignored(source.rstrip("/")), source


@pytest.mark.parametrize(
    "name", [".git/config", ".env", "tests/conftest.py", "agentrt/core/__pycache__/x.pyc", "agentrt/x.pyc"]
)
def test_history_secrets_tests_and_caches_never_reach_the_build(name):
    assert dockerfile.ignored(name)
    assert not dockerfile.ignored("agentrt/core/session.py")


def test_only_what_an_earlier_stage_made_is_copied_into_the_image():
    build, last = dockerfile.stages()
    [made] = last.named("COPY")
    source, *_ = made.words
    assert source == f"--from={build.name}"
    folder = made.words[1]
    assert any(f"-m venv --without-pip {folder}" in instruction.text for instruction in build.named("RUN"))


def test_the_image_has_no_build_tools():
    """Nothing is installed in the last stage, and the base image's pip is removed; slim images have no compiler."""
    _, last = dockerfile.stages()
    [run] = last.named("RUN")
    command, *words = run.words
    assert (command, words[0]) == ("rm", "-rf")
    assert any(word.endswith("/site-packages/pip*") for word in words)
    assert "/usr/local/bin/pip*" in words
    installed = {word for instruction in last.instructions for word in re.split(r"[\s;&|]+", instruction.text)}
    assert installed & BUILD_TOOLS == set()


def test_the_image_runs_a_worker_as_nobody_in_particular():
    _, last = dockerfile.stages()
    [user] = last.named("USER")
    uid, gid = map(int, user.text.split(":"))  # numeric: Kubernetes cannot check a name
    assert uid >= 10_000
    assert gid >= 10_000
    order = [instruction.name for instruction in last.instructions]
    assert "RUN" not in order[order.index("USER") :]
    [command] = last.named("CMD")
    assert json.loads(command.text) == ["agentrt", "worker"]
    assert last.named("ENTRYPOINT") == []
    assert [instruction.text for instruction in last.named("STOPSIGNAL")] == ["SIGTERM"]


def test_the_images_settings_are_settings_and_its_port_is_the_default_one():
    _, last = dockerfile.stages()
    given = dict(word.split("=", 1) for instruction in last.named("ENV") for word in instruction.words)
    settings = {name.removeprefix(PREFIX).lower(): value for name, value in given.items() if name.startswith(PREFIX)}
    assert Settings(**settings).http_host == "0.0.0.0"
    assert [instruction.text for instruction in last.named("EXPOSE")] == [str(Settings().http_port)]
    folder = dockerfile.stages()[0].named("RUN")[0].words[-1]
    assert given["PATH"].startswith(f"{folder}/bin:")


def test_the_extras_of_the_image_exist_and_leave_the_embedded_server_out():
    build, _ = dockerfile.stages()
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [argument] = build.named("ARG")
    name, _, value = argument.text.partition("=")
    extras = set(value.split(","))
    assert name == "EXTRAS"
    assert extras <= project["optional-dependencies"].keys()
    assert extras & {"embedded", "dev", "all"} == set()
