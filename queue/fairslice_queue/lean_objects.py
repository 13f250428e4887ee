"""Pods, Jobs and custom workloads as the queue decodes them: nothing that no decision reads.

Commands, environment, volumes and managed fields are skipped by the decoder, so that a change of
them is no change of what is read.
"""

from typing import Any

from msgspec import Struct

from fairslice.kube.objects import (
    JobCondition,
    NodeAffinity,
    ObjectMeta,
    PodCondition,
    PodResourceClaim,
    SchedulingGate,
    Toleration,
)

__all__ = ["CustomObject", "LeanJob", "LeanPod", "LeanSpec"]


class _Lean(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    pass


class LeanResources(_Lean, frozen=True):
    """What a container asks for."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class LeanContainer(_Lean, frozen=True):
    """A container, without its name: like pods of different authors are to be equal."""

    resources: LeanResources | None = None
    restart_policy: str | None = None


class LeanAffinity(_Lean, frozen=True):
    """The part of an affinity that decides fit."""

    node_affinity: NodeAffinity | None = None


class LeanSpec(_Lean, frozen=True):
    """The part of a pod's spec that says what it needs, where it may go, and who it is of."""

    containers: tuple[LeanContainer, ...] = ()
    init_containers: tuple[LeanContainer, ...] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: LeanAffinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    service_account_name: str = ""
    priority_class_name: str = ""
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    overhead: dict[str, str | int | float] | None = None


class LeanPodStatus(_Lean, frozen=True):
    """The part of a pod's status that says where it stands."""

    phase: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] | None = None


class LeanPod(_Lean, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeanSpec = LeanSpec()
    status: LeanPodStatus = LeanPodStatus()


class LeanTemplate(_Lean, frozen=True):
    """A Job's pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeanSpec = LeanSpec()


class LeanJobSpec(_Lean, frozen=True):
    """A Job's spec."""

    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None
    completion_mode: str = ""
    template: LeanTemplate = LeanTemplate()


class LeanJobStatus(_Lean, frozen=True):
    """A Job's status."""

    succeeded: int = 0
    conditions: tuple[JobCondition, ...] | None = None


class LeanJob(_Lean, frozen=True):
    """A Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeanJobSpec = LeanJobSpec()
    status: LeanJobStatus = LeanJobStatus()


class CustomObject(Struct, frozen=True, kw_only=True):
    """An object of a custom kind, read as far as its row in the table needs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
