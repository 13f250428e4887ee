"""Pods as the controllers of well-known kinds make them, with all that they add of their own.

Sources: kubernetes (deployment, statefulset, daemonset controllers); kubernetes-sigs/lws; Argo
Workflows (argoexec's `init` and `wait` around `main`); Tekton Pipelines (entrypoint and its init
containers); Kubeflow's notebook controller under Istio; KubeSpawner as Zero to JupyterHub sets it.
"""

from dataclasses import dataclass
from typing import Any

from .scene import RS_CONTROLLER, container, owner, pod

_CONTROLLER = "system:serviceaccount:kube-system:{}-controller"


@dataclass(frozen=True)
class Made:
    """A pod, who sends it, which kinds stand above it, and whose work it counts as."""

    obj: dict[str, Any]
    sender: str
    above: tuple[str, ...]
    counts_as: str
    main: str = "main"


def _mount(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "mountPath": path}


def _deployment() -> Made:
    obj = pod(
        "",
        container(gpus=1),
        container("log-shipper", volumeMounts=[_mount("logs", "/logs")]),
        generateName="serve-7d9f-",
        labels={"app": "serve", "pod-template-hash": "7d9f"},
        ownerReferences=[owner("ReplicaSet", "serve-7d9f", "apps/v1")],
        volumes=[{"name": "logs", "emptyDir": {}}],
    )
    return Made(obj, RS_CONTROLLER, ("Deployment", "ReplicaSet"), "Deployment/serve")


def _stateful_set() -> Made:
    obj = pod(
        "vectors-0",
        container(gpus=1),
        labels={
            "app": "vectors",
            "controller-revision-hash": "vectors-6c",
            "statefulset.kubernetes.io/pod-name": "vectors-0",
            "apps.kubernetes.io/pod-index": "0",
        },
        ownerReferences=[owner("StatefulSet", "vectors", "apps/v1")],
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data-vectors-0"}}],
        initContainers=[container("fetch", envFrom=[{"secretRef": {"name": "s3"}}])],
    )
    sender = _CONTROLLER.format("statefulset")
    return Made(obj, sender, ("StatefulSet",), "StatefulSet/vectors")


def _daemon_set() -> Made:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a1"]}]}
    required = {"nodeSelectorTerms": [fields]}
    obj = pod(
        "",
        container(gpus=1),
        generateName="warm-cache-",
        labels={"app": "warm-cache", "controller-revision-hash": "5b"},
        ownerReferences=[owner("DaemonSet", "warm-cache", "apps/v1")],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        tolerations=[
            {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
            for name in ("not-ready", "unreachable")
        ],
    )
    return Made(obj, _CONTROLLER.format("daemon-set"), ("DaemonSet",), "DaemonSet/warm-cache")


def _leader_worker_set() -> Made:
    group = {"leaderworkerset.sigs.k8s.io/name": "llama", "controller-revision-hash": "llama-0-1"}
    obj = pod(
        "llama-0-1",
        container("vllm-worker", gpus=1, env=[{"name": "LWS_LEADER_ADDRESS", "value": "llama-0"}]),
        labels={
            **group,
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/group-key": "9f3c",
            "leaderworkerset.sigs.k8s.io/worker-index": "1",
            "leaderworkerset.sigs.k8s.io/template-revision-hash": "77d",
            "statefulset.kubernetes.io/pod-name": "llama-0-1",
        },
        annotations={
            "leaderworkerset.sigs.k8s.io/size": "2",
            "leaderworkerset.sigs.k8s.io/leader-name": "llama-0",
        },
        ownerReferences=[owner("StatefulSet", "llama-0", "apps/v1")],
        volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "15Gi"}}],
    )
    sender = _CONTROLLER.format("statefulset")
    above = ("StatefulSet", "LeaderWorkerSet")
    return Made(obj, sender, above, "StatefulSet/llama-0", "vllm-worker")


def _argo() -> Made:
    shared = [_mount("var-run-argo", "/var/run/argo")]
    obj = pod(
        "train-x7k2p-fit-2857402",
        container("wait", command=["argoexec", "wait"], volumeMounts=shared),
        container(
            gpus=1, command=["/var/run/argo/argoexec", "emissary", "--"], volumeMounts=shared
        ),
        labels={
            "workflows.argoproj.io/workflow": "train-x7k2p",
            "workflows.argoproj.io/completed": "false",
        },
        annotations={
            "kubectl.kubernetes.io/default-container": "main",
            "workflows.argoproj.io/node-id": "train-x7k2p-2857402",
            "workflows.argoproj.io/node-name": "train-x7k2p.fit",
        },
        ownerReferences=[owner("Workflow", "train-x7k2p", "argoproj.io/v1alpha1")],
        initContainers=[container("init", command=["argoexec", "init"], volumeMounts=shared)],
        restartPolicy="Never",
        volumes=[{"name": "var-run-argo", "emptyDir": {}}],
    )
    sender = "system:serviceaccount:argo:argo"
    return Made(obj, sender, ("Workflow",), "Workflow/train-x7k2p")


def _tekton() -> Made:
    tools = [_mount("tekton-internal-bin", "/tekton/bin")]
    obj = pod(
        "evaluate-run-score-pod",
        container("step-load", command=["/tekton/bin/entrypoint"], volumeMounts=tools),
        container("step-score", gpus=1, command=["/tekton/bin/entrypoint"], volumeMounts=tools),
        container("sidecar-metrics"),
        labels={
            "app.kubernetes.io/managed-by": "tekton-pipelines",
            "tekton.dev/pipelineRun": "evaluate-run",
            "tekton.dev/taskRun": "evaluate-run-score",
        },
        annotations={"pipeline.tekton.dev/release": "a1b2c3", "tekton.dev/ready": ""},
        ownerReferences=[owner("TaskRun", "evaluate-run-score", "tekton.dev/v1")],
        initContainers=[
            container("prepare", volumeMounts=tools),
            container("place-scripts", volumeMounts=tools),
        ],
        restartPolicy="Never",
        volumes=[{"name": "tekton-internal-bin", "emptyDir": {}}],
    )
    sender = "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller"
    above = ("TaskRun", "PipelineRun")
    return Made(obj, sender, above, "TaskRun/evaluate-run-score", "step-score")


def _notebook() -> Made:
    obj = pod(
        "ada-0",
        container("ada", gpus=1, env=[{"name": "NB_PREFIX", "value": "/notebook/nlp/ada"}]),
        container("istio-proxy", args=["proxy", "sidecar"]),
        labels={
            "app": "ada",
            "notebook-name": "ada",
            "statefulset": "ada",
            "controller-revision-hash": "ada-84",
            "statefulset.kubernetes.io/pod-name": "ada-0",
            "security.istio.io/tlsMode": "istio",
        },
        annotations={"sidecar.istio.io/status": "{}"},
        ownerReferences=[owner("StatefulSet", "ada", "apps/v1")],
        initContainers=[
            container(
                "istio-init",
                securityContext={"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
            )
        ],
        volumes=[
            {"name": "workspace", "persistentVolumeClaim": {"claimName": "ada"}},
            {"name": "dshm", "emptyDir": {"medium": "Memory"}},
        ],
    )
    sender = _CONTROLLER.format("statefulset")
    return Made(obj, sender, ("StatefulSet", "Notebook"), "StatefulSet/ada", "ada")


def jupyter(*, blocks_metadata: bool = False) -> Made:
    """A single-user server. By default the chart has a privileged init container set iptables."""
    inits = [
        container(
            "block-cloud-metadata",
            securityContext={
                "privileged": True,
                "runAsUser": 0,
                "capabilities": {"add": ["NET_ADMIN"]},
            },
        )
    ]
    obj = pod(
        "jupyter-grace---1f2e",
        container("notebook", gpus=1, env=[{"name": "JUPYTERHUB_USER", "value": "grace"}]),
        labels={
            "app": "jupyterhub",
            "chart": "jupyterhub-4.2.0",
            "component": "singleuser-server",
            "hub.jupyter.org/servername": "",
            "hub.jupyter.org/username": "grace",
        },
        annotations={"hub.jupyter.org/username": "grace"},
        restartPolicy="OnFailure",
        volumes=[{"name": "home", "persistentVolumeClaim": {"claimName": "claim-grace"}}],
        **({"initContainers": inits} if blocks_metadata else {}),
    )
    hub = "system:serviceaccount:nlp:hub"
    return Made(obj, hub, (), hub, "notebook")


MADE = {
    "Deployment": _deployment(),
    "StatefulSet": _stateful_set(),
    "DaemonSet": _daemon_set(),
    "LeaderWorkerSet": _leader_worker_set(),
    "Argo Workflow": _argo(),
    "Tekton TaskRun": _tekton(),
    "Kubeflow Notebook": _notebook(),
    "JupyterHub server": jupyter(),
}
