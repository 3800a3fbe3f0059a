"""Every resource fits its published schema: Kubernetes' own, and those of KEDA and the Prometheus Operator."""

import importlib
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from tests.deploy import kustomize
from tests.deploy.kustomize import HPA, KUBERNETES, PRODUCTION, Document

KEDA = KUBERNETES / "components" / "keda"
OLDEST, NEWEST = "1.30", "1.37"
# Classes that were generated from the custom resource definitions of the two operators.
OPERATORS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
EVERYTHING = {
    f"{document['kind']}/{document['metadata']['name']}": document
    for document in (*kustomize.build(PRODUCTION), *kustomize.build(PRODUCTION, instead={KEDA: HPA}))
}


@cache
def models(api_version: str) -> Any:
    return importlib.import_module(OPERATORS[api_version])


def unknown(written: Any, read: Any, place: str = "") -> list[str]:
    """The fields that a schema does not know: they are not read."""
    if isinstance(written, list) and isinstance(read, list):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(written, read, strict=True))]
    elif isinstance(written, dict) and isinstance(read, dict):
        if missing := sorted(written.keys() - read.keys()):
            return [f"{place}/{field}" for field in missing]
        pairs = [(key, value, read[key]) for key, value in written.items()]
    else:
        return []
    return [field for key, ours, theirs in pairs for field in unknown(ours, theirs, f"{place}/{key}")]


def check(document: Document, version: str = NEWEST) -> None:
    if document["apiVersion"] in OPERATORS:
        model = getattr(models(document["apiVersion"]), document["kind"])
        read = model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert unknown(document, read) == []
        assert read == document
    else:
        importlib.import_module("kubernetes_validate").validate(document, version, strict=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_resource_fits_its_schema(name, version):
    check(EVERYTHING[name], version)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_misspelt_or_mistyped_field_is_noticed(name):
    inside = "spec" if "spec" in EVERYTHING[name] else "metadata"
    misspelt = deepcopy(EVERYTHING[name])
    misspelt[inside]["replicass"] = 1
    with pytest.raises(Exception, match="replicass"):
        check(misspelt)
    mistyped = deepcopy(EVERYTHING[name])
    mistyped[inside] = ["a list"]
    with pytest.raises(Exception, match=r"list|object"):
        check(mistyped)
