"""The compose file: what it mounts and names exists, and it waits and stops as workers need it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrt.settings import PREFIX, Settings
from tests.databases import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "worker")


def filled_in(value: str) -> str:
    """What Compose makes of ${NAME:-default} when nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def settings_of(service: dict[str, Any]) -> dict[str, str]:
    variables = {name: filled_in(value) for name, value in service["environment"].items()}
    return {name.removeprefix(PREFIX).lower(): value for name, value in variables.items() if name.startswith(PREFIX)}


def test_there_are_postgres_the_schema_two_workers_prometheus_and_grafana():
    assert set(SERVICES) == {"postgres", "migrate", "worker", "prometheus", "grafana"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert SERVICES["postgres"]["image"] == "postgres:18"


def test_every_image_of_others_has_a_version():
    for name in ("postgres", "prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?\d[\d.]*", SERVICES[name]["image"])


def test_everything_that_is_mounted_exists():
    mounted = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", ())]
    assert mounted
    for source, target, *_ in mounted:
        assert Path(target).is_absolute()
        if source.startswith("."):
            assert (DEPLOY / source).is_dir(), source
        else:
            assert source in COMPOSE["volumes"]


def test_the_image_is_built_from_the_checkout():
    for name in OURS:
        assert (DEPLOY / SERVICES[name]["build"]["context"] / "Dockerfile").is_file()


@pytest.mark.parametrize("name", OURS)
def test_agentrts_variables_are_settings_that_are_accepted_and_name_the_database(name):
    given = settings_of(SERVICES[name])
    assert given.keys() <= Settings.model_fields.keys()
    postgres = {key: filled_in(value) for key, value in SERVICES["postgres"]["environment"].items()}
    user, password, database = (postgres[f"POSTGRES_{word}"] for word in ("USER", "PASSWORD", "DB"))
    assert Settings(**given).database_url == f"postgresql://{user}:{password}@postgres:5432/{database}"


def test_the_variables_of_compose_are_not_taken_for_settings():
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    names = set(re.findall(r"\$\{(\w+)", text)) - {"AGENTRT_AGENTS"}
    assert not any(name.startswith(PREFIX) for name in names)


def test_workers_start_behind_the_migration_and_that_behind_the_database():
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert "healthcheck" in SERVICES["postgres"]


def test_a_stopped_worker_has_the_longer_drain_and_fifteen_seconds():
    settings = Settings(**settings_of(SERVICES["worker"]))
    grace = max(settings.drain_seconds, settings.drain_tool_seconds) + 15
    assert SERVICES["worker"]["stop_grace_period"] == f"{grace:.0f}s"


def test_everything_listens_on_this_machine_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_workers_may_do_no_more_than_they_need(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_finds_every_replica_of_the_workers():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    [job] = config["scrape_configs"]
    [discovery] = job["dns_sd_configs"]
    [name] = discovery["names"]
    assert name in SERVICES
    assert discovery["port"] == Settings(**settings_of(SERVICES[name])).http_port
    assert discovery["type"] == "A"


def test_grafana_is_given_its_data_source_and_dashboard():
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "agentrt.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES["grafana"]["volumes"])
    folder = DEPLOY / mounts[provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).is_file()
