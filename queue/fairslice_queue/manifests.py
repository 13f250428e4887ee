"""The manifest that brings a preempted object back: what its author wrote, and our stamps."""

from collections.abc import Mapping
from typing import Any

from fairslice import stamps
from fairslice.booking import Option

__all__ = ["returning_job", "returning_pod"]

Json = dict[str, Any]

_KEPT_STAMPS = (
    stamps.USER,
    stamps.GROUPS,
    stamps.QUEUED_AT,
    stamps.MARKED,
    stamps.HISTORY,
)
_TOKEN_VOLUME = "kube-api-access-"
_JOB_LABELS = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)


def returning_pod(pod: Mapping[str, Any], option: Option | None, restarts: int) -> Json:
    """Write the manifest for a pod's return: no node, no status, as it was first asked for.

    What rewriting changed is changed back, so that the pod may be given something else.
    """
    spec = dict(pod["spec"])
    for gone in ("nodeName", "ephemeralContainers", "priority", "preemptionPolicy"):
        spec.pop(gone, None)
    spec["schedulingGates"] = [{"name": stamps.GATE}]
    given = {new: old for old, new in (option.rename if option is not None else {}).items()}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_container(item, given) for item in spec[field]]
    if "volumes" in spec:
        spec["volumes"] = [
            volume for volume in spec["volumes"] if not volume["name"].startswith(_TOKEN_VOLUME)
        ]
    if option is not None and option.requirements and "affinity" in spec:
        spec["affinity"] = _without(spec["affinity"], option)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(pod["metadata"], restarts),
        "spec": spec,
    }


def returning_job(job: Mapping[str, Any], restarts: int) -> Json:
    """Write the manifest for a Job that failed through disruption: suspended, counts anew."""
    spec = dict(job["spec"])
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
    spec["suspend"] = True
    template = dict(spec["template"])
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = {
        key: value
        for key, value in (metadata.get("labels") or {}).items()
        if key not in _JOB_LABELS
    }
    metadata["annotations"] = _users(metadata.get("annotations") or {})
    template["metadata"] = metadata
    spec["template"] = template
    made = _metadata(job["metadata"], restarts)
    made["labels"] = {k: v for k, v in made["labels"].items() if k not in _JOB_LABELS}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec}


def _metadata(metadata: Mapping[str, Any], restarts: int) -> Json:
    annotations = metadata.get("annotations") or {}
    kept = {key: annotations[key] for key in _KEPT_STAMPS if key in annotations}
    labels = metadata.get("labels") or {}
    made: Json = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "labels": _users(labels),
        "annotations": {**_users(annotations), **kept, stamps.RESTARTS: str(restarts)},
    }
    if metadata.get("ownerReferences"):
        made["ownerReferences"] = metadata["ownerReferences"]
    return made


def _users(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if not key.startswith(stamps.SYSTEM)}


def _container(container: Mapping[str, Any], given: Mapping[str, str]) -> Json:
    made = dict(container)
    resources = dict(made.get("resources") or {})
    for field in ("limits", "requests"):
        if field in resources:
            resources[field] = {given.get(key, key): n for key, n in resources[field].items()}
    made["resources"] = resources
    if "volumeMounts" in made:
        made["volumeMounts"] = [
            mount for mount in made["volumeMounts"] if not mount["name"].startswith(_TOKEN_VOLUME)
        ]
    return made


def _without(affinity: Mapping[str, Any], option: Option) -> Json:
    """Take the node requirements of an option out of an affinity."""
    made = dict(affinity)
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    node = dict(made.get("nodeAffinity") or {})
    required = node.get(field)
    if not required:
        return made
    ours = [(item.key, list(item.values)) for item in option.requirements]
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        kept = dict(term)
        kept["matchExpressions"] = [
            expression
            for expression in term.get("matchExpressions") or ()
            if (expression.get("key"), expression.get("values")) not in ours
        ]
        if kept["matchExpressions"] or kept.get("matchFields"):
            terms.append(kept)
    if terms:
        node[field] = {"nodeSelectorTerms": terms}
    else:
        node.pop(field)
    if node:
        made["nodeAffinity"] = node
    else:
        made.pop("nodeAffinity", None)
    return made
