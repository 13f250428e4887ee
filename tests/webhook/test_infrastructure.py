"""Infrastructure keeps working: the shapes of the pods that real charts make.

Sources: gpu-operator's assets (device plugin, GPU feature discovery, DCGM exporter, driver,
validator, MPS daemon); kube-prometheus' node-exporter; csi-driver-nfs and the AWS EBS CSI node
plugin; Rook's OSDs and discovery; Velero's node agent; the NVIDIA DRA driver's kubelet plugin.
"""

from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import GPU, SLICE_10, container, modes, owner, pod, policy, team, view

DAEMONS = "system:serviceaccount:kube-system:daemon-set-controller"


def host(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": ""}}


def mount(name: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **fields}


def daemon(
    name: str, namespace: str, account: str, *containers: dict[str, Any], **spec: Any
) -> dict[str, Any]:
    return pod(
        "",
        *containers,
        namespace=namespace,
        generateName=f"{name}-",
        labels={"app": name, "controller-revision-hash": "x"},
        ownerReferences=[owner("DaemonSet", name, "apps/v1")],
        serviceAccountName=account,
        **spec,
    )


PRIVILEGED = {"privileged": True}
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

OPERATOR = {
    "device plugin": daemon(
        "nvidia-device-plugin-daemonset",
        "gpu-operator",
        "nvidia-device-plugin",
        container(
            "nvidia-device-plugin",
            env=[
                *ALL,
                {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"},
                {"name": "CUDA_MPS_ROOT", "value": "/run/nvidia/mps"},
            ],
            securityContext=PRIVILEGED,
            volumeMounts=[mount("device-plugin", "/var/lib/kubelet/device-plugins")],
        ),
        initContainers=[container("toolkit-validation", securityContext=PRIVILEGED)],
        runtimeClassName="nvidia",
        priorityClassName="system-node-critical",
        volumes=[
            host("device-plugin", "/var/lib/kubelet/device-plugins"),
            host("run-nvidia", "/run/nvidia"),
            host("cdi-root", "/var/run/cdi"),
            host("host-root", "/"),
        ],
        hostPID=True,
    ),
    "GPU feature discovery": daemon(
        "gpu-feature-discovery",
        "gpu-operator",
        "nvidia-gpu-feature-discovery",
        container(
            "gpu-feature-discovery",
            env=[*ALL, {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}],
            securityContext=PRIVILEGED,
        ),
        runtimeClassName="nvidia",
        volumes=[host("output-dir", "/etc/kubernetes/node-feature-discovery/features.d")],
    ),
    "DCGM exporter": daemon(
        "nvidia-dcgm-exporter",
        "gpu-operator",
        "nvidia-dcgm-exporter",
        container(
            "nvidia-dcgm-exporter",
            securityContext={"capabilities": {"add": ["SYS_ADMIN"]}},
            volumeMounts=[mount("pod-gpu-resources", "/var/lib/kubelet/pod-resources")],
        ),
        runtimeClassName="nvidia",
        volumes=[host("pod-gpu-resources", "/var/lib/kubelet/pod-resources")],
    ),
    "driver": daemon(
        "nvidia-driver-daemonset",
        "gpu-operator",
        "nvidia-driver",
        container("nvidia-driver-ctr", securityContext=PRIVILEGED),
        hostPID=True,
        volumes=[host("run-nvidia", "/run/nvidia"), host("dev-log", "/dev/log")],
    ),
    "MPS daemon": daemon(
        "nvidia-device-plugin-mps-control-daemon",
        "gpu-operator",
        "nvidia-device-plugin",
        container("mps", env=[*ALL, {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps/pipe"}]),
        runtimeClassName="nvidia",
        hostPID=True,
    ),
    "validator": pod(
        "nvidia-cuda-validator-x",
        container("validation", gpus=1),
        namespace="gpu-operator",
        serviceAccountName="nvidia-operator-validator",
        runtimeClassName="nvidia",
        restartPolicy="OnFailure",
    ),
    "validator of a slice": pod(
        "nvidia-device-plugin-validator-x",
        container("validation", gpus=1, resource=SLICE_10),
        namespace="gpu-operator",
        serviceAccountName="nvidia-operator-validator",
        nodeName="a1",
    ),
    "DRA kubelet plugin": daemon(
        "nvidia-dra-driver-gpu-kubelet-plugin",
        "nvidia-dra-driver-gpu",
        "nvidia-dra-driver-gpu-service-account-kubeletplugin",
        container(
            "gpus",
            env=[*ALL, {"name": "CDI_ROOT", "value": "/var/run/cdi"}],
            securityContext=PRIVILEGED,
        ),
        runtimeClassName="nvidia",
        volumes=[host("plugins", "/var/lib/kubelet/plugins"), host("cdi", "/var/run/cdi")],
    ),
}

OTHERS = {
    "node-exporter": daemon(
        "node-exporter",
        "monitoring",
        "node-exporter",
        container(
            "node-exporter",
            args=["--path.rootfs=/host/root"],
            securityContext={"capabilities": {"add": ["SYS_TIME"], "drop": ["ALL"]}},
            volumeMounts=[mount("root", "/host/root", mountPropagation="HostToContainer")],
        ),
        hostNetwork=True,
        hostPID=True,
        volumes=[host("sys", "/sys"), host("root", "/")],
        tolerations=[{"operator": "Exists"}],
        priorityClassName="system-cluster-critical",
    ),
    "CSI node plugin": daemon(
        "ebs-csi-node",
        "storage",
        "ebs-csi-node-sa",
        container(
            "ebs-plugin",
            securityContext=PRIVILEGED,
            volumeMounts=[
                mount("kubelet-dir", "/var/lib/kubelet", mountPropagation="Bidirectional"),
                mount("device-dir", "/dev"),
            ],
        ),
        container("node-driver-registrar"),
        volumes=[host("kubelet-dir", "/var/lib/kubelet"), host("device-dir", "/dev")],
    ),
    "NFS CSI node plugin": daemon(
        "csi-nfs-node",
        "storage",
        "csi-nfs-node-sa",
        container(
            "nfs",
            securityContext={
                "privileged": True,
                "capabilities": {"add": ["SYS_ADMIN"]},
                "allowPrivilegeEscalation": True,
            },
        ),
        hostNetwork=True,
        volumes=[host("pods-mount-dir", "/var/lib/kubelet/pods")],
    ),
    "Rook OSD": pod(
        "rook-ceph-osd-0-x",
        container("osd", securityContext=PRIVILEGED, volumeMounts=[mount("devices", "/dev")]),
        namespace="rook-ceph",
        ownerReferences=[owner("ReplicaSet", "rook-ceph-osd-0", "apps/v1")],
        initContainers=[container("activate", securityContext=PRIVILEGED)],
        hostIPC=True,
        hostPID=True,
        volumes=[host("devices", "/dev"), host("run-udev", "/run/udev")],
    ),
    "Rook discovery": daemon(
        "rook-discover",
        "rook-ceph",
        "rook-ceph-system",
        container("rook-discover", securityContext=PRIVILEGED),
        volumes=[host("dev", "/dev"), host("sys", "/sys"), host("udev", "/run/udev")],
    ),
    "Velero node agent": daemon(
        "node-agent",
        "velero",
        "velero",
        container(
            "node-agent",
            securityContext={"privileged": False},
            volumeMounts=[mount("host-pods", "/host_pods", mountPropagation="HostToContainer")],
        ),
        volumes=[host("host-pods", "/var/lib/kubelet/pods"),
                 host("host-plugins", "/var/lib/kubelet/plugins")],
    ),
}  # fmt: skip

RULES = {
    "exempt": [{"namespace": "gpu-operator"}, {"namespace": "nvidia-dra-driver-gpu"}],
    "unassignedNamespaces": "Deny",
}


@pytest.mark.parametrize("name", OPERATOR)
async def test_the_gpu_operators_pods_are_not_touched_at_all(
    cluster: MakeCluster, name: str
) -> None:
    place = await cluster(view(policy(modes("Enforce"), **RULES)))
    body = OPERATOR[name]
    user = DAEMONS if "ownerReferences" in body["metadata"] else "alice"
    done = await place.mutate(body, user)
    assert done.allowed, done.message
    assert done.patch == []
    assert done.warnings == []
    body["metadata"].setdefault("name", "x")
    assert (await place.validate(body, user)).allowed


@pytest.mark.parametrize("name", OTHERS)
async def test_others_keep_all_that_their_charts_give_them(cluster: MakeCluster, name: str) -> None:
    place = await cluster(view(policy(modes("Enforce"), **RULES)))
    body = OTHERS[name]
    done = await place.create(body, DAEMONS)
    assert done.allowed, done.message
    assert done.warnings == []
    # A variable says that there are no GPUs for it, which is true; nothing else is changed.
    assert all(op["path"].endswith(("/env", "/env/-")) for op in done.patch)


@pytest.mark.parametrize("name", OTHERS)
async def test_in_a_teams_namespace_they_need_an_exemption(cluster: MakeCluster, name: str) -> None:
    body = OTHERS[name]
    namespace = body["metadata"]["namespace"]
    spec = team(namespaces=[namespace])
    place = await cluster(view(policy(modes("Enforce")), (spec,)))
    assert not (await place.mutate(body, DAEMONS)).allowed
    account = body["spec"]["serviceAccountName"]
    rules = policy(
        modes("Enforce"), exempt=[{"namespace": namespace, "serviceAccounts": [account]}]
    )
    exempt = await cluster(view(rules, (spec,)))
    assert (await exempt.mutate(body, DAEMONS)).patch == []


async def test_a_tenants_gpu_pod_beside_them_is_refused_where_there_is_no_team(
    cluster: MakeCluster,
) -> None:
    place = await cluster(view(policy(modes("Enforce"), **RULES)))
    body = pod("p", container(gpus=1, resource=GPU), namespace="monitoring")
    assert "belongs to no team" in (await place.mutate(body)).message


async def test_what_watches_gpus_outside_an_exemption_is_named_before_it_goes_blind(
    cluster: MakeCluster,
) -> None:
    """The DCGM exporter's own chart: it asks for no GPU, and its image says `all`."""
    exporter = daemon(
        "dcgm-exporter",
        "monitoring",
        "dcgm-exporter",
        container(
            "exporter",
            securityContext={"capabilities": {"add": ["SYS_ADMIN"]}},
            volumeMounts=[mount("pod-gpu-resources", "/var/lib/kubelet/pod-resources")],
        ),
        volumes=[host("pod-gpu-resources", "/var/lib/kubelet/pod-resources")],
    )
    exporter["spec"]["containers"][0]["image"] = "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3"
    place = await cluster(view(policy(modes("Audit"))))
    assert (await place.mutate(exporter, DAEMONS)).patch == []
    (record,) = place.sink.records
    assert (record.feature, record.outcome) == ("hide", "change")
    assert "exempt ServiceAccount dcgm-exporter of namespace monitoring" in record.message
    rules = policy(modes("Audit"), exempt=[{"namespace": "monitoring"}])
    exempt = await cluster(view(rules))
    await exempt.mutate(exporter, DAEMONS)
    assert exempt.sink.records == []
