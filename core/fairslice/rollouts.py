"""Which rollout a pod belongs to, so that its successor can take its place in the books."""

from fairslice.kube.objects import ObjectMeta

__all__ = ["rollout_of"]

_TEMPLATE_HASH = "pod-template-hash"
_STATEFUL_REVISION = "controller-revision-hash"


def rollout_of(metadata: ObjectMeta) -> tuple[str, str]:
    """Name a pod's rollout and its revision: ("Deployment nlp/serve", "5d4f8"), ("", "") if none.

    A ReplicaSet's name is its Deployment's plus the template's hash.
    """
    owner = next((ref for ref in metadata.owner_references or () if ref.controller), None)
    if owner is None:
        return "", ""
    labels = metadata.labels or {}
    if owner.kind == "ReplicaSet":
        revision = labels.get(_TEMPLATE_HASH, "")
        suffix = "-" + revision
        if revision and owner.name.endswith(suffix):
            return f"Deployment {metadata.namespace}/{owner.name.removesuffix(suffix)}", revision
        return f"ReplicaSet {metadata.namespace}/{owner.name}", ""
    if owner.kind == "StatefulSet":
        revision = labels.get(_STATEFUL_REVISION, "")
        return f"StatefulSet {metadata.namespace}/{owner.name}", revision
    return "", ""
