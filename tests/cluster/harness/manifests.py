"""Manifests as people write them."""

from collections.abc import Mapping, Sequence

from .kinds import KINDS, Obj
from .kubelet import EXIT_CODE, RUN_SECONDS
from .nodes import TOLERATION

__all__ = ["CUDA", "container", "deployment", "job", "manifest", "namespace", "pod", "pod_spec"]

CUDA = "nvidia/cuda:12.4.1-base-ubuntu22.04"
"""An image that shows every GPU of its node unless told otherwise."""


def manifest(kind: str, name: str, namespace: str = "", **fields: object) -> Obj:
    """Begin an object: kind, name, and its top-level fields."""
    meta: Obj = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": meta, **fields}


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Obj:
    """A namespace."""
    obj = manifest("Namespace", name)
    obj["metadata"]["labels"] = dict(labels or {})
    return obj


def container(
    gpus: Mapping[str, int | str] | None = None,
    *,
    name: str = "main",
    env: Sequence[Obj] = (),
) -> Obj:
    """A container with a CUDA image; `gpus` are its limits."""
    result: Obj = {"name": name, "image": CUDA}
    if gpus:
        result["resources"] = {"limits": {key: str(value) for key, value in gpus.items()}}
    if env:
        result["env"] = list(env)
    return result


def pod_spec(gpus: int, **fields: object) -> Obj:
    """A pod's spec: one container that asks for so many GPUs."""
    limits = {"nvidia.com/gpu": gpus} if gpus else None
    return {
        "containers": [container(limits)],
        # A tenth of the usual grace, so that nobody waits for processes that don't exist.
        "terminationGracePeriodSeconds": 3,
        "tolerations": [dict(TOLERATION)],
        **fields,
    }


def _notes(seconds: float | None, exit_code: int, more: Mapping[str, str]) -> dict[str, str]:
    notes = dict(more)
    if seconds is not None:
        notes[RUN_SECONDS] = f"{seconds:g}"
    if exit_code:
        notes[EXIT_CODE] = str(exit_code)
    return notes


def pod(
    name: str,
    namespace: str,
    gpus: int = 1,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    seconds: float | None = None,
    exit_code: int = 0,
    **spec: object,
) -> Obj:
    """A bare pod that runs for `seconds`, or until it is deleted."""
    obj = manifest("Pod", name, namespace, spec=pod_spec(gpus, **spec))
    obj["metadata"]["labels"] = dict(labels or {})
    obj["metadata"]["annotations"] = _notes(seconds, exit_code, annotations or {})
    return obj


def job(
    name: str,
    namespace: str,
    gpus: int = 1,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    seconds: float | None = 1.0,
    exit_code: int = 0,
    pods: int = 1,
    backoff_limit: int = 0,
    **spec: object,
) -> Obj:
    """A Job of `pods` parallel pods; labels are the Job's, as on `kubectl apply`."""
    template: Obj = {
        "metadata": {"annotations": _notes(seconds, exit_code, {})},
        "spec": pod_spec(gpus, restartPolicy="Never", **spec),
    }
    obj = manifest(
        "Job",
        name,
        namespace,
        spec={
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": backoff_limit,
            "template": template,
        },
    )
    obj["metadata"]["labels"] = dict(labels or {})
    obj["metadata"]["annotations"] = dict(annotations or {})
    return obj


def deployment(
    name: str,
    namespace: str,
    gpus: int = 1,
    *,
    replicas: int = 1,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> Obj:
    """A Deployment; the labels are also its pods'."""
    own = {"app": name}
    return manifest(
        "Deployment",
        name,
        namespace,
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": {**own, **(labels or {})}},
                "spec": pod_spec(gpus, **spec),
            },
        },
    ) | {"metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})}}
