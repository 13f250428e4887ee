"""Pods that nobody made as one and that want to start as one (`fairslice.io/pod-group`)."""

from collections.abc import Mapping
from typing import NamedTuple

from fairslice import messages
from fairslice.kube.objects import ObjectMeta
from fairslice.rollouts import rollout_of
from fairslice.stamps import POD_GROUP, POD_GROUP_SIZE

__all__ = ["PodGroup", "PodGroupError", "group_of", "is_pod_group", "pod_group"]

_PREFIX = "PodGroup "
_MOST = 1000


class PodGroupError(ValueError):
    """A pod that says it is of a group, but not of how many pods."""


class PodGroup(NamedTuple):
    """A group, as the books name it (`PodGroup nlp/eval`), and how many pods it is to have."""

    key: str
    size: int


def pod_group(metadata: ObjectMeta) -> PodGroup | None:
    """Read which group a pod says it is of, in a label or an annotation.

    Raises PodGroupError.
    """
    name = _said(metadata, POD_GROUP)
    if not name:
        return None
    text = _said(metadata, POD_GROUP_SIZE)
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= size <= _MOST:
        raise PodGroupError(messages.pod_group_size(name, text, _MOST))
    return PodGroup(f"{_PREFIX}{metadata.namespace}/{name}", size)


def group_of(metadata: ObjectMeta) -> tuple[str, str]:
    """Name the rollout or else the pod group that a pod is of, and the rollout's revision."""
    rollout = rollout_of(metadata)
    if rollout[0]:
        return rollout
    try:
        found = pod_group(metadata)
    except PodGroupError:
        return "", ""
    return (found.key, "") if found is not None else ("", "")


def is_pod_group(group: str) -> bool:
    """Say whether a booking's group is one of pods that start as one."""
    return group.startswith(_PREFIX)


def _said(metadata: ObjectMeta, key: str) -> str:
    sources: tuple[Mapping[str, str] | None, ...] = (metadata.labels, metadata.annotations)
    return next((source[key] for source in sources if source and source.get(key)), "")
