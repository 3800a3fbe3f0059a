"""The kustomization: what is named exists, what belongs together agrees, and pods may do no more than they need."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from agentrt.settings import PREFIX, Settings
from tests.databases import CHECKOUT
from tests.deploy import kustomize, promised
from tests.deploy.kustomize import BASE, HPA, KUBERNETES, PRODUCTION, Document

KEDA = KUBERNETES / "components" / "keda"
RENDERED = {
    "base": kustomize.build(BASE),
    "production": kustomize.build(PRODUCTION),
    "production with the HPA": kustomize.build(PRODUCTION, instead={KEDA: HPA}),
}


@pytest.fixture(params=RENDERED)
def rendered(request) -> list[Document]:
    return RENDERED[request.param]


def of_kind(rendered: list[Document], kind: str) -> list[Document]:
    return [document for document in rendered if document["kind"] == kind]


def one(rendered: list[Document], kind: str) -> Document:
    [document] = of_kind(rendered, kind)
    return document


def environment(container: Document) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def kubectl() -> str:
    """The program, when its kustomize knows components and patches (5 or newer)."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed; the other tests read the kustomization by themselves")
    told = subprocess.run([program, "version", "--client"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Kustomize Version: v(\d+)", told)
    if version is None or int(version[1]) < 5:
        pytest.skip("this kubectl's kustomize is older than 5")
    return program


# --- the reader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)
def test_kubectl_renders_what_these_tests_read(folder: Path):
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, check=True)

    def key(document: Document) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    theirs = sorted((document for document in yaml.safe_load_all(done.stdout)), key=key)
    assert theirs == sorted(kustomize.build(folder), key=key)


def test_every_file_of_the_kustomization_is_used():
    files = {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    named = set()
    for path in KUBERNETES.rglob("kustomization.yaml"):
        [kustomization] = kustomize.documents(path)
        named |= {(path.parent / name).resolve() for name in kustomization.get("resources", ())}
    assert files - named == set()


def test_no_two_resources_have_one_name(rendered):
    names = [(document["apiVersion"], document["kind"], document["metadata"]["name"]) for document in rendered]
    assert len(names) == len(set(names))


# --- what belongs together ------------------------------------------------------------------------------------------


def test_selectors_find_the_workers_pods_and_only_these(rendered):
    worker, migrate = one(rendered, "Deployment"), one(rendered, "Job")
    labels = worker["spec"]["template"]["metadata"]["labels"]
    selectors = [worker["spec"]["selector"]["matchLabels"]]
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in of_kind(rendered, "PodDisruptionBudget")]
    selectors += [service["spec"]["selector"] for service in of_kind(rendered, "Service")]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= migrate["spec"]["template"]["metadata"]["labels"].items()


def test_the_network_policy_holds_for_workers_and_migrations(rendered):
    selector = one(rendered, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    for workload in (one(rendered, "Deployment"), one(rendered, "Job")):
        assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def test_one_port_is_meant_by_setting_probes_service_monitor_and_network_policy(rendered):
    [container] = kustomize.containers(one(rendered, "Deployment"))
    [port] = container["ports"]
    assert environment(container)["AGENTRT_HTTP_PORT"] == str(port["containerPort"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    [ingress] = one(rendered, "NetworkPolicy")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    for service in of_kind(rendered, "Service"):
        [offered] = service["spec"]["ports"]
        assert offered["targetPort"] == port["name"]
        [endpoint] = one(rendered, "ServiceMonitor")["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["path"]) == (offered["name"], "/metrics")
        wanted = one(rendered, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= service["metadata"]["labels"].items()


def test_the_monitored_job_has_the_name_that_the_alerts_count_on():
    rendered = RENDERED["production"]
    label = one(rendered, "ServiceMonitor")["spec"]["jobLabel"]
    assert one(rendered, "Service")["metadata"]["labels"][label] == "agentrt"


def test_the_egress_lets_names_postgres_and_https_through(rendered):
    rules = one(rendered, "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {53, 5432, 6432, 443}


def test_every_agentrt_variable_is_a_setting_that_is_accepted(rendered):
    for workload in (one(rendered, "Deployment"), one(rendered, "Job")):
        for container in kustomize.containers(workload):
            variables = environment(container)
            settings = {name.removeprefix(PREFIX).lower(): value for name, value in variables.items()}
            assert set(settings) <= set(Settings.model_fields)
            Settings(**{name: value for name, value in settings.items() if value is not None})


def test_the_grace_period_is_the_longer_drain_and_fifteen_seconds(rendered):
    worker = one(rendered, "Deployment")
    variables = environment(kustomize.containers(worker)[0])
    drains = [float(variables[f"AGENTRT_{name}"]) for name in ("DRAIN_SECONDS", "DRAIN_TOOL_SECONDS")]
    assert (kustomize.pod(worker) or {})["terminationGracePeriodSeconds"] == max(drains) + 15


def test_a_stalled_worker_is_not_given_the_drains_time(rendered):
    """Its probe's own grace period: what does not answer cannot drain."""
    [container] = kustomize.containers(one(rendered, "Deployment"))
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] <= 30


def test_one_replica_more_not_one_less_during_a_rollout(rendered):
    assert one(rendered, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert one(rendered, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


# --- what pods may do -----------------------------------------------------------------------------------------------


def test_pods_are_restricted(rendered):
    """The `restricted` pod security standard, and a root file system that cannot be written."""
    dockerfile = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    for workload in (one(rendered, "Deployment"), one(rendered, "Job")):
        spec = kustomize.pod(workload) or {}
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in dockerfile
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}
            assert container["args"][0] == "agentrt"


def test_secrets_are_referred_to_and_never_written_down(rendered):
    assert of_kind(rendered, "Secret") == []
    for workload in (one(rendered, "Deployment"), one(rendered, "Job")):
        [url] = [v for v in kustomize.containers(workload)[0]["env"] if v["name"] == "AGENTRT_DATABASE_URL"]
        assert url["valueFrom"]["secretKeyRef"]["name"] == "agentrt-database"
    assert "://" not in "".join(path.read_text() for path in BASE.glob("[!k]*.yaml"))


def test_the_service_account_that_workers_use_exists(rendered):
    account = one(rendered, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert (kustomize.pod(one(rendered, "Deployment")) or {})["serviceAccountName"] == account["metadata"]["name"]


# --- replicas -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "other"),
    [
        ("production", "ScaledObject", "HorizontalPodAutoscaler"),
        ("production with the HPA", "HorizontalPodAutoscaler", "ScaledObject"),
    ],
)
def test_one_autoscaler_sets_the_replicas_and_nothing_else_does(name, kind, other):
    rendered = RENDERED[name]
    worker = one(rendered, "Deployment")
    assert of_kind(rendered, other) == []
    assert one(rendered, kind)["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert "replicas" not in worker["spec"]


def test_keda_and_the_hpa_aim_at_the_same_share_of_the_slots():
    scaled, hpa = (
        one(RENDERED["production"], "ScaledObject"),
        one(RENDERED["production with the HPA"], "HorizontalPodAutoscaler"),
    )
    slots = environment(kustomize.containers(one(RENDERED["base"], "Deployment"))[0])["AGENTRT_SLOTS"]
    [metric] = hpa["spec"]["metrics"]
    assert scaled["spec"]["triggers"][0]["metadata"]["targetQueryValue"] == str(int(int(slots) * 0.8))
    assert metric["external"]["target"]["averageValue"] == str(int(int(slots) * 0.8))
    assert scaled["spec"]["minReplicaCount"] == hpa["spec"]["minReplicas"]
    assert scaled["spec"]["maxReplicaCount"] == hpa["spec"]["maxReplicas"]
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]


def test_the_hpa_aims_at_what_prometheus_records():
    text = (HPA / "kustomization.yaml").read_text(encoding="utf-8")
    offered = re.search(r"""name: {as: (\w+)}\n.*metricsQuery: 'max\(([\w:]+)\)'""", text)
    assert offered
    [metric] = one(RENDERED["production with the HPA"], "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == offered[1]
    assert offered[2] in promised.RECORDS


def test_keda_asks_with_the_workers_own_secret():
    rendered = RENDERED["production"]
    authentication = one(rendered, "TriggerAuthentication")
    [trigger] = one(rendered, "ScaledObject")["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    [url] = [
        v for v in kustomize.containers(one(rendered, "Deployment"))[0]["env"] if v["name"] == "AGENTRT_DATABASE_URL"
    ]
    [reference] = authentication["spec"]["secretTargetRef"]
    assert {"name": reference["name"], "key": reference["key"]} == url["valueFrom"]["secretKeyRef"]


async def test_the_scalers_query_counts_what_wants_a_slot_and_scans_no_table(connection: asyncpg.Connection):
    [trigger] = one(RENDERED["production"], "ScaledObject")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    create = "select agentrt.create_session('a', 'hello', $1::text::jsonb)"
    assert await connection.fetchval(query) == 0
    await connection.execute(create, "{}")
    await connection.execute(create, '{"priority": 3}')
    later = await connection.fetchval(create, '{"ready_at": "2999-01-01T00:00:00Z"}')
    ended = await connection.fetchval(create, "{}")
    await connection.execute("select agentrt.cancel_session($1)", ended)
    assert await connection.fetchval(query) == 2
    await connection.execute("update agentrt.sessions set ready_at = now() - interval '1 s' where id = $1", later)
    assert await connection.fetchval(query) == 3
    await connection.execute("set enable_seqscan = off")
    plan = "\n".join(row[0] for row in await connection.fetch(f"explain {query}"))
    assert "Seq Scan" not in plan, plan
