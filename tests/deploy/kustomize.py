"""A reader of kustomizations: as much of kustomize as ``deploy/kubernetes`` uses; it refuses the rest by name.

``test_kubernetes`` compares it with the real one where that is installed.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tests.databases import CHECKOUT

KUBERNETES = CHECKOUT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
PRODUCTION = KUBERNETES / "overlays" / "production"
HPA = KUBERNETES / "components" / "hpa"
KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "images", "patches"}
WITHOUT_NAMESPACE = {"Namespace"}

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    """The YAML documents of a file; anchors become copies of their own."""
    return [deepcopy(document) for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def build(folder: Path, *, instead: dict[Path, Path] | None = None) -> list[Document]:
    """What ``kubectl kustomize FOLDER`` prints, in another order; ``instead`` puts a folder in another's place."""
    return _applied(folder, [], instead or {})


def _applied(folder: Path, found: list[Document], instead: dict[Path, Path]) -> list[Document]:
    [kustomization] = documents(folder / "kustomization.yaml")
    assert set(kustomization) <= KNOWN, f"{folder}: {sorted(set(kustomization) - KNOWN)} are not read here"
    for name in kustomization.get("resources", ()):
        place = (folder / name).resolve()
        assert place.exists(), f"{folder}: there is no {name}"
        found += _applied(place, [], instead) if place.is_dir() else documents(place)
    for name in kustomization.get("components", ()):
        place = (folder / name).resolve()
        found = _applied(instead.get(place, place), found, instead)
    for patch in kustomization.get("patches", ()):
        _patch(found, patch, folder)
    if namespace := kustomization.get("namespace"):
        for document in found:
            if document["kind"] not in WITHOUT_NAMESPACE:
                document["metadata"]["namespace"] = namespace
    for image in kustomization.get("images", ()):
        for document in found:
            _set_image(document, image)
    return found


def _patch(found: list[Document], patch: dict[str, Any], folder: Path) -> None:
    """JSON patches (RFC 6902): remove and replace."""
    kind, name = patch["target"]["kind"], patch["target"]["name"]
    targets = [d for d in found if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    assert targets, f"{folder}: the patch of {kind} {name} finds nothing"
    for target in targets:
        for operation in yaml.safe_load(patch["patch"]):
            *way, last = [int(step) if step.isdigit() else step for step in operation["path"].strip("/").split("/")]
            place: Any = target
            for step in way:
                place = place[step]
            assert last in place, f"{folder}: there is no {operation['path']} in {kind} {name}"
            match operation["op"]:
                case "remove":
                    del place[last]
                case "replace":
                    place[last] = operation["value"]
                case other:
                    raise AssertionError(f"{folder}: {other} is not read here")


def _set_image(document: Document, image: dict[str, str]) -> None:
    for container in containers(document):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def pod(document: Document) -> Document | None:
    """The pod of a workload."""
    return document["spec"]["template"]["spec"] if document["kind"] in ("Deployment", "Job") else None


def containers(document: Document) -> list[Document]:
    """The containers of a workload."""
    return (pod(document) or {}).get("containers", [])
