"""The files on the pages about production: schemas, settings, paths, and times that must fit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from bertworks.cli import app
from bertworks.cli.application import list_variables
from bertworks.cli.verb_settings import read_variables
from bertworks.serving.security import needs_no_key, read_keys
from bertworks.serving.settings import ServeSettings
from bertworks.utils.environment import SERVE_PREFIX, check_environment
from tests.conftest import ROOT

DOCS = ROOT / "docs"
COMMAND = get_command(app).commands["serve"]  # type: ignore[attr-defined]


def read_block(page: str, language: str) -> str:
    """The only block of a page in a language."""
    text = (DOCS / page).read_text("utf-8")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """The manifests of Kubernetes, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(read_block("kubernetes.md", "yaml"))}


def check_settings(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> ServeSettings:
    """Check that the server knows each variable and its value; return the settings."""
    check_environment(variables, list_variables(COMMAND))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return ServeSettings.resolve(overrides=read_variables(ServeSettings, SERVE_PREFIX, ()))


def container_of(manifests: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The specification of a pod, and that of its container."""
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_manifests_have_kubernetes_schemas(manifests: dict[str, dict[str, Any]]) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate has the schemas"
    )
    for kind, manifest in manifests.items():
        if kind != "ServiceMonitor":  # of the Prometheus Operator
            validator.validate(manifest, validator.latest_version(), strict=True)


def test_settings_of_the_pod_are_valid_and_its_times_fit(
    manifests: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, container = container_of(manifests)
    assert container["args"] == ["/models/minilm"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    settings = check_settings(variables, monkeypatch)
    readiness = container["readinessProbe"]
    seconds_to_fail = readiness["periodSeconds"] * readiness["failureThreshold"]
    assert seconds_to_fail < settings.drain_delay
    assert settings.drain_delay + settings.body_seconds < pod["terminationGracePeriodSeconds"]
    limit = container["resources"]["limits"]["memory"]
    assert settings.max_memory is not None
    assert 2 * settings.max_memory * 1_000_000 <= int(limit.removesuffix("Gi")) << 30, "a reload"


def test_probes_need_no_key_and_name_the_port(manifests: dict[str, dict[str, Any]]) -> None:
    _, container = container_of(manifests)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        target = container[probe]["httpGet"]
        assert needs_no_key("GET", target["path"])
        assert target["port"] in ports
    (port,) = manifests["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")


def test_labels_and_names_of_the_manifests_match(manifests: dict[str, dict[str, Any]]) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert manifests[kind]["spec"]["selector"]["matchLabels"] == labels
    assert (
        manifests["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        == (manifests["Service"]["metadata"]["labels"])
    )
    autoscaler = manifests["HorizontalPodAutoscaler"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    assert autoscaler["minReplicas"] <= manifests["Deployment"]["spec"]["replicas"]


def test_pod_reads_its_volumes_and_writes_to_memory_alone(
    manifests: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    pod, container = container_of(manifests)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    writable = [mount["mountPath"] for mount in mounts.values() if not mount.get("readOnly")]
    dockerfile = (ROOT / "Dockerfile").read_text()
    places = re.findall(r"\b(?:HOME|TMPDIR|HF_HOME)=(\S+)", dockerfile)
    assert places
    assert all(place.startswith(*writable) for place in places)
    secret = manifests["Secret"]["stringData"]
    (item,) = volumes["keys"]["secret"]["items"]
    file = tmp_path / "keys"
    file.write_text(secret[item["key"]])
    keys = read_keys(file)
    assert f"{mounts['keys']['mountPath']}/{item['path']}" in {
        entry["value"] for entry in container["env"]
    }
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    scraper_key = secret[endpoint["authorization"]["credentials"]["key"]]
    assert keys.find_owner(scraper_key) == "prometheus"
    assert keys.quotas.keys() == {"search"}


@pytest.mark.long
def test_metrics_of_the_pages_exist(directories, start) -> None:
    with start({"encoder": directories["encoder"]}) as server:
        server.ask("/embed", {"inputs": "the door"})
        text = server.http.get("/metrics").text
    names = set[str]()
    for page in ("production.md", "kubernetes.md"):
        names |= set(
            re.findall(r"\b(?:(?:bertworks|te|process)_[a-z_]+)\b", (DOCS / page).read_text())
        )
    assert len(names) > 5
    for name in names:
        assert re.search(rf"^{name}(?:_sum)?[ {{]", text, re.MULTILINE), name
    for kind in ("Internal", "Overloaded"):
        assert f'bertworks_failures_total{{err="{kind}"}}' in text


def test_unit_of_systemd_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = read_block("production.md", "ini")
    variables = dict(re.findall(r"^Environment=(BERTWORKS_\w+)=(.*)$", unit, re.MULTILINE))
    settings = check_settings(variables, monkeypatch)
    (stop_seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert settings.drain_delay + settings.body_seconds < int(stop_seconds)
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in unit
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    file = tmp_path / "bertworks.service"
    file.write_text(unit.replace("/opt/bertworks/bin/bertworks", sys.executable))
    result = subprocess.run(
        [program, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in result.stderr.splitlines() if "bertworks" in line]
    assert complaints == []


def test_services_of_compose_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    content = yaml.safe_load(read_block("production.md", "yaml"))
    (service,) = content["services"].values()
    settings = check_settings(service["environment"], monkeypatch)
    assert settings.drain_delay + settings.body_seconds < int(
        service["stop_grace_period"].removesuffix("s")
    )
    (secret,) = service["secrets"]
    assert service["environment"]["BERTWORKS_SERVE_API_KEYS"] == f"/run/secrets/{secret}"
    assert content["secrets"].keys() == {secret}
    assert service["ports"] == ["8080:8080"]
    assert service["read_only"]


def run_health_check(**variables: str) -> int:
    """Return the status of the image's check of health, in an environment."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    (words,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    command = [sys.executable, *json.loads(words)[1:]]
    return subprocess.run(command, env=variables, check=False, capture_output=True).returncode


@pytest.mark.long
def test_health_check_of_the_image_knows_the_port(directories, start) -> None:
    with start({"encoder": directories["encoder"]}) as server:
        port = server.url.rpartition(":")[2]
        assert run_health_check(BERTWORKS_SERVE_PORT=port) == 0
        assert run_health_check(BERTWORKS_SERVE_PORT=port, BERTWORKS_SERVE_TLS_KEY="file") == 1
    assert run_health_check(BERTWORKS_SERVE_PORT=port) == 1


def test_options_on_the_page_about_other_servers_exist() -> None:
    page = (DOCS / "moving-servers.md").read_text("utf-8")
    cells = [line.split("|")[2] for line in page.splitlines() if line.startswith("| `")]
    options = {name for parameter in COMMAND.params for name in parameter.opts}
    used_options = {word for cell in cells for word in re.findall(r"--[a-z-]+", cell)}
    assert {"--api-keys", "--port"} <= used_options <= options
    used_settings = {word for cell in cells for word in re.findall(r"`([a-z]+_[a-z_]+)", cell)}
    assert len(used_settings) > 4
    assert used_settings <= ServeSettings.model_fields.keys()
