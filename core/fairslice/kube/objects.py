"""Kubernetes objects, decoded straight from bytes into the fields that fairslice reads.

Unknown fields are skipped by the decoder, which is what makes a list of 5,000 pods cost
a fraction of what full models cost. Nothing here is ever written back as a whole: every
change to an object is a patch.
"""

from typing import Any

from msgspec import Struct, field

__all__ = [
    "Affinity",
    "Container",
    "ContainerStatus",
    "EnvFrom",
    "EnvVar",
    "Job",
    "JobCondition",
    "JobSpec",
    "JobStatus",
    "Namespace",
    "Node",
    "NodeAffinity",
    "NodeCondition",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "NodeSpec",
    "NodeStatus",
    "ObjectMeta",
    "OwnerReference",
    "Pod",
    "PodCondition",
    "PodFailurePolicy",
    "PodResourceClaim",
    "PodSpec",
    "PodStatus",
    "PodTemplateSpec",
    "ResourceClaimRef",
    "Resources",
    "SchedulingGate",
    "SecurityContext",
    "Taint",
    "Toleration",
    "Volume",
    "VolumeMount",
]


class _Object(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    pass


class OwnerReference(_Object, frozen=True):
    """Who made an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_Object, frozen=True):
    """Metadata of any object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class ResourceClaimRef(_Object, frozen=True):
    """A container's use of one of its pod's DRA claims."""

    name: str = ""
    request: str = ""


class Resources(_Object, frozen=True):
    """What a container asks for. Quantities are strings, rarely bare numbers."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: tuple[ResourceClaimRef, ...] | None = None


class EnvVar(_Object, frozen=True):
    """An environment variable; `value_from` is only looked at for being there."""

    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class EnvFrom(_Object, frozen=True):
    """A source of many environment variables."""

    prefix: str = ""
    config_map_ref: dict[str, Any] | None = None
    secret_ref: dict[str, Any] | None = None


class VolumeMount(_Object, frozen=True):
    """Where a volume appears in a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""


class Capabilities(_Object, frozen=True):
    """Linux capabilities."""

    add: tuple[str, ...] | None = None


class SecurityContext(_Object, frozen=True):
    """The part of a security context that opens devices."""

    privileged: bool | None = None
    capabilities: Capabilities | None = None


class Container(_Object, frozen=True):
    """A container, init container, native sidecar or ephemeral container."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFrom, ...] | None = None
    resources: Resources | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None


class HostPath(_Object, frozen=True):
    """A directory of the node."""

    path: str = ""


class Volume(_Object, frozen=True):
    """A volume; only host paths are of interest."""

    name: str = ""
    host_path: HostPath | None = None


class SchedulingGate(_Object, frozen=True):
    """A reason for the scheduler to leave a pod alone."""

    name: str = ""


class Toleration(_Object, frozen=True):
    """A taint that a pod bears."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Taint(_Object, frozen=True):
    """A node's refusal."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(_Object, frozen=True):
    """One comparison of a node label or field."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_Object, frozen=True):
    """Comparisons that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(_Object, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_Object, frozen=True):
    """Affinity to nodes; preferences don't decide fit."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(_Object, frozen=True):
    """Affinity; pod affinity is only looked at for being there."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class PodResourceClaim(_Object, frozen=True):
    """A DRA claim of a pod."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Object, frozen=True):
    """A pod's spec."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    scheduler_name: str = ""
    service_account_name: str = ""
    runtime_class_name: str | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    # The API writes these two in capitals, which no renaming rule yields.
    host_pid: bool = field(name="hostPID", default=False)
    host_ipc: bool = field(name="hostIPC", default=False)


class PodCondition(_Object, frozen=True):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerStatus(_Object, frozen=True):
    """How a container fares."""

    name: str = ""
    restart_count: int = 0
    state: dict[str, Any] | None = None


class PodStatus(_Object, frozen=True):
    """A pod's status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_Object, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(_Object, frozen=True):
    """The template from which a controller makes pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class PodFailurePolicy(_Object, frozen=True):
    """Only looked at for being there."""

    rules: tuple[dict[str, Any], ...] | None = None


class JobSpec(_Object, frozen=True):
    """A Job's spec."""

    parallelism: int | None = None
    completions: int | None = None
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    completion_mode: str = ""
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class JobCondition(_Object, frozen=True):
    """A condition of a Job."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class JobStatus(_Object, frozen=True):
    """A Job's status."""

    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    conditions: tuple[JobCondition, ...] | None = None


class Job(_Object, frozen=True):
    """A Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class NodeSpec(_Object, frozen=True):
    """A node's spec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeCondition(_Object, frozen=True):
    """A condition of a node."""

    type: str = ""
    status: str = ""


class NodeStatus(_Object, frozen=True):
    """A node's status."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(_Object, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(_Object, frozen=True):
    """A namespace's status."""

    phase: str = ""


class Namespace(_Object, frozen=True):
    """A namespace."""

    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()
