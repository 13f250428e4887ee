"""Ways to devices that are refused, and infrastructure that must not be."""

from typing import Any

import pytest

from fairslice_webhook.guards import opens_devices

from .conftest import MakeCluster
from .scene import container, modes, notebook, pod, policy, team, view


def with_volume(path: str) -> dict[str, Any]:
    return pod("p", container(), volumes=[{"name": "v", "hostPath": {"path": path}}])


BREACHES = {
    "privileged": pod("p", container(securityContext={"privileged": True})),
    "CAP_SYS_ADMIN": pod("p", container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})),
    "hostPID": notebook(hostPID=True),
    "hostIPC": notebook(hostIPC=True),
    "nodeName": notebook(nodeName="a1"),
    "cdi.k8s.io": pod("p", container(), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    "nvidia.cdi.k8s.io": pod("p", container(), annotations={"nvidia.cdi.k8s.io": "all"}),
    "nri.io": pod("p", container(), annotations={"devices.nri.io/container.p": "x"}),
    "container-devices": pod(
        "p",
        container(
            volumeMounts=[
                {
                    "name": "v",
                    "mountPath": "/var/run//nvidia-container-devices/./all",
                }
            ]
        ),
    ),
    "hostPath": with_volume("/dev/nvidia0"),
}


@pytest.mark.parametrize("what", BREACHES)
async def test_a_breach_is_refused_in_a_teams_namespace(cluster: MakeCluster, what: str) -> None:
    place = await cluster()
    refused = await place.mutate(BREACHES[what])
    assert not refused.allowed
    assert refused.code == 403
    assert what in refused.message


@pytest.mark.parametrize("what", BREACHES)
async def test_a_breach_is_none_outside_teams(cluster: MakeCluster, what: str) -> None:
    place = await cluster(view(teams=(team("cv"),)))
    done = await place.mutate(BREACHES[what])
    assert done.allowed
    assert not any("[audit]" in text for text in done.warnings)


@pytest.mark.parametrize("what", BREACHES)
async def test_audited_guards_only_warn(cluster: MakeCluster, what: str) -> None:
    place = await cluster(view(policy(modes("Off", guards="Audit"))))
    done = await place.mutate(BREACHES[what])
    assert done.allowed
    assert done.patch == []
    assert [record.feature for record in place.sink.records] == ["guards"]


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/dev", "/dev/", "/dev/../dev/nvidia0", "/run", "/var", "/var/run",
        "/run/nvidia",
        "/run/nvidia-persistenced", "/var/run/nvidia/driver", "/etc", "/etc/cdi", "/var/run/cdi",
        "/var/lib/kubelet/device-plugins", "/var/lib", "/run/containerd/containerd.sock",
        "/var/run/docker.sock", "/run/crio/crio.sock", "/proc/1/root/dev", "relative/../../dev",
    ],
)  # fmt: skip
def test_paths_to_devices_and_their_parents_are_dangerous(path: str) -> None:
    assert opens_devices(path)


@pytest.mark.parametrize(
    "path", ["/data", "/mnt/dev", "/home/dev", "/developers", "/var/log", "/etc/ssl", "/opt/run"]
)
def test_other_paths_are_fine(path: str) -> None:
    assert not opens_devices(path)


INFRASTRUCTURE = {
    "node-exporter": pod(
        "node-exporter",
        container(volumeMounts=[{"name": "root", "mountPath": "/host/root"}]),
        namespace="monitoring",
        hostPID=True,
        volumes=[{"name": "root", "hostPath": {"path": "/"}}],
    ),
    "csi-driver": pod(
        "csi",
        container(securityContext={"privileged": True}),
        namespace="storage",
        volumes=[{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}}],
    ),
    "velero": pod(
        "velero",
        container(),
        namespace="velero",
        volumes=[{"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pods"}}],
    ),
}


@pytest.mark.parametrize("name", INFRASTRUCTURE)
async def test_infrastructure_keeps_working(cluster: MakeCluster, name: str) -> None:
    place = await cluster()
    done = await place.mutate(INFRASTRUCTURE[name])
    assert done.allowed
    assert done.warnings == []


@pytest.mark.parametrize(
    "spec",
    [
        {"devices": {"requests": [{"name": "all", "exactly": {"adminAccess": True}}]}},
        {"spec": {"devices": {"requests": [{"name": "all", "adminAccess": True}]}}},
    ],
)
async def test_administrators_access_to_devices_is_refused_to_teams(
    cluster: MakeCluster, spec: dict[str, Any]
) -> None:
    place = await cluster()
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if "spec" in spec else "ResourceClaim",
        "metadata": {"name": "c", "namespace": "nlp"},
        "spec": spec,
    }
    assert "adminAccess" in (await place.mutate(claim)).message
    claim["metadata"]["namespace"] = "elsewhere"
    assert (await place.mutate(claim)).allowed
