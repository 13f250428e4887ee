"""The manifests: consistent with the code, and with each other."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import convert
from prometheus_client import CollectorRegistry

from fairslice.base_manifests import NAMESPACE, render
from fairslice.kube.connection import QUEUE_ACCOUNT, WEBHOOK_ACCOUNT
from fairslice.kube.ensure import MANAGED_BY
from fairslice.policy import Modes, Policy
from fairslice.settings import Settings
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.schema import spec_schema
from fairslice.v1alpha1.validation import faults, schema_faults
from fairslice_queue.metrics import QueueMetrics
from fairslice_webhook.metrics import WebhookMetrics

MANIFESTS = Path(__file__).parents[2] / "manifests"
MONITORING = MANIFESTS / "components/monitoring"

Obj = dict[str, Any]


def documents(path: Path) -> list[Obj]:
    return list(yaml.safe_load_all(path.read_text()))


def deployment(name: str) -> Obj:
    return next(
        item for item in documents(MANIFESTS / f"base/{name}.yaml") if item["kind"] == "Deployment"
    )


@pytest.mark.parametrize("name", sorted(render()))
def test_what_is_generated_is_what_is_committed(name: str) -> None:
    written = (MANIFESTS / "base" / name).read_text()
    assert written == render()[name], "run `python -m fairslice.base_manifests`"


def test_the_first_policy_is_sound_and_audits_everywhere() -> None:
    (policy,) = documents(MANIFESTS / "base/policy.yaml")
    assert faults(policy) == ()
    assert Policy.compile(convert(policy["spec"], SharingPolicySpec)).modes == Modes()
    # With no mode of its own in it, applying it again takes back none that was set since.
    assert policy["spec"] == {"mode": {}}
    assert not list(schema_faults(spec_schema("SharingPolicy"), policy, ""))


@pytest.mark.parametrize(
    ("name", "account"), [("webhook", WEBHOOK_ACCOUNT), ("queue", QUEUE_ACCOUNT)]
)
def test_a_deployment_is_hardened_and_comes_up_one_by_one(name: str, account: str) -> None:
    spec = deployment(name)["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert pod["serviceAccountName"] == account
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} <= container["resources"].keys()
    assert "affinity" in pod


@pytest.mark.parametrize("name", ["webhook", "queue"])
def test_a_deployment_sets_only_settings_that_exist(name: str) -> None:
    (container,) = deployment(name)["spec"]["template"]["spec"]["containers"]
    values = {
        item["name"]: item.get("value", "redis://fairslice-redis:6379/0")
        for item in container["env"]
    }
    known = {f"FAIRSLICE_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert values.keys() <= known
    settings = Settings.load(values)
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    if name == "webhook":
        assert ports == {
            "webhook": settings.listen.port,
            "health": settings.health_listen.port,
        }
    else:
        assert ports == {"status": settings.status_listen.port}


def test_the_grace_period_outlasts_the_drain() -> None:
    from fairslice_webhook import http_server, service

    spec = deployment("webhook")["spec"]["template"]["spec"]
    needed = service._DRAIN_BEHIND_SERVICE + http_server._SHUTDOWN_SECONDS
    assert spec["terminationGracePeriodSeconds"] > needed + 5


def test_alerts_and_dashboard_name_only_metrics_that_exist() -> None:
    # Each service has its own; some metrics are shown by both.
    registries = CollectorRegistry(), CollectorRegistry()
    QueueMetrics(registries[0])
    WebhookMetrics(registries[1])
    exported = set()
    for family in (family for registry in registries for family in registry.collect()):
        exported.add(family.name)
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        exported |= {family.name + suffix for suffix in suffixes.get(family.type, ())}
    used = set()
    for expression in expressions():
        used |= set(re.findall(r"\bfairslice_\w+", expression))
        foreign = set(re.findall(r"\b[a-z]+_[a-z_]+(?=[{\[(])", expression)) - exported
        assert foreign <= {
            "apiserver_admission_webhook_rejection_count",
            "apiserver_admission_webhook_fail_open_count",
            "histogram_quantile",
        }
    assert used
    assert used <= exported


def expressions() -> Iterator[str]:
    (rules,) = documents(MONITORING / "rules.yaml")
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description"}
            yield rule["expr"]
    for panel in json.loads((MONITORING / "fairslice.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


def built(overlay: str) -> list[Obj]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(MANIFESTS / "overlays" / overlay)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unknown command" in done.stderr:
        pytest.skip("this kubectl builds no kustomizations")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@kubectl
@pytest.mark.parametrize("overlay", ["dev", "production", "production-monitored"])
def test_every_overlay_builds_and_uninstall_knows_what_is_in_it(overlay: str) -> None:
    objects = built(overlay)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    for item in objects:
        assert MANAGED_BY.items() <= item["metadata"]["labels"].items(), item["metadata"]["name"]
        assert item["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    assert ("Deployment", "fairslice-webhook") in names
    assert not any(kind.endswith("WebhookConfiguration") for kind, _ in names)
    assert ("StatefulSet", "fairslice-redis") in names or overlay != "dev"
    assert ("PrometheusRule", "fairslice") in names or overlay != "production-monitored"


@kubectl
def test_every_port_and_selector_leads_somewhere() -> None:
    objects = built("dev")
    pods = [
        item["spec"]["template"]
        for item in objects
        if item["kind"] in ("Deployment", "StatefulSet")
    ]
    ports = {
        port["name"]
        for pod in pods
        for container in pod["spec"]["containers"]
        for port in container["ports"]
    }
    labels = [pod["metadata"]["labels"] for pod in pods]
    services = [item for item in objects if item["kind"] == "Service"]
    assert services
    for service in services:
        assert service["spec"]["selector"] in labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in (item for item in objects if item["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] in labels
