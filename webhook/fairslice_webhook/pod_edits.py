"""What a pod is to become, and the patch that makes it so.

Edits name a wanted state; rendering them on an object that already has it yields nothing,
which is what makes the webhook idempotent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairslice import stamps
from fairslice.booking import Assignment, NodeRequirement, Option
from fairslice.device_claims import counted
from fairslice.kube.objects import Affinity, Container, NodeSelectorTerm, ObjectMeta, Pod, PodSpec
from fairslice.requests import ContainerAsk, ContainerKind, PodAsk, sum_containers
from fairslice_webhook.patching import Op, add, escape, map_ops, remove, remove_items
from fairslice_webhook.view import Priority

__all__ = [
    "PodEdits",
    "affinity_ops",
    "assignment_text",
    "covers",
    "foreign_stamps",
    "gate_ops",
    "is_gated",
    "read_assignment",
    "render",
]

_ASSIGNMENT = msgspec.json.Decoder(Assignment)


@dataclass(frozen=True, slots=True)
class PodEdits:
    """What a pod is to be like. None among annotations and labels takes a key away.

    `gate` says whether the queue's gate is on it; None leaves that as it is.
    """

    hide: tuple[Op, ...] = ()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    gate: bool | None = None
    priority_class: tuple[str, Priority] | None = None
    option: Option | None = None
    drop_zero_keys: bool = False


def render(pod: Pod, ask: PodAsk | None, edits: PodEdits) -> tuple[Op, ...]:
    """Make the patch that brings a pod to the wanted state; empty if it is there."""
    meta, spec = pod.metadata, pod.spec
    ops: list[Op] = list(edits.hide)
    ops += map_ops("/metadata/annotations", meta.annotations, edits.annotations)
    ops += map_ops("/metadata/labels", meta.labels, edits.labels)
    if ask is not None:
        rename = edits.option.rename if edits.option is not None else {}
        for item in ask.containers:
            if item.count or (item.zero_keys and edits.drop_zero_keys):
                ops += _resource_ops(spec, item, rename, edits.drop_zero_keys)
    if edits.option is not None:
        ops += affinity_ops(spec.affinity, edits.option.requirements)
    if edits.priority_class is not None:
        ops += _priority_ops(spec, *edits.priority_class)
    if edits.gate is not None:
        ops += gate_ops(spec, gate=edits.gate)
    return tuple(ops)


def covers(option: Option, ask: PodAsk) -> bool:
    """Say whether a pod, its requests renamed as the option says, takes just what it gives."""
    if option.devices != counted(ask.needs):
        return False
    amounts: dict[str, list[tuple[ContainerKind, int]]] = {}
    for item in ask.gpu_containers:
        if item.resource is not None:
            name = option.rename.get(item.resource.name, item.resource.name)
            amounts.setdefault(name, []).append((item.kind, item.count))
    return {name: sum_containers(parts) for name, parts in amounts.items()} == option.units


def is_gated(spec: PodSpec) -> bool:
    """Say whether the queue's gate is on a pod."""
    return any(gate.name == stamps.GATE for gate in spec.scheduling_gates or ())


def foreign_stamps(present: Mapping[str, str] | None, keep: Sequence[str] = ()) -> dict[str, None]:
    """List the system keys that are to be taken away from annotations or labels."""
    return {key: None for key in present or () if key.startswith(stamps.SYSTEM) and key not in keep}


def read_assignment(meta: ObjectMeta) -> Assignment | None:
    """Read the assignment stamp; None where there is none that can be read."""
    text = (meta.annotations or {}).get(stamps.ASSIGNMENT)
    if text is None:
        return None
    try:
        return _ASSIGNMENT.decode(text)
    except msgspec.DecodeError:
        return None


def assignment_text(assignment: Assignment, meta: ObjectMeta) -> str:
    """Write the assignment stamp; one that already says the same stays as it is written."""
    if read_assignment(meta) == assignment:
        return (meta.annotations or {})[stamps.ASSIGNMENT]
    return msgspec.json.encode(assignment).decode()


def _container(spec: PodSpec, item: ContainerAsk) -> Container:
    if item.kind is ContainerKind.APP:
        return spec.containers[item.index]
    if item.kind is ContainerKind.EPHEMERAL:
        return (spec.ephemeral_containers or ())[item.index]
    return (spec.init_containers or ())[item.index]


def _resource_ops(
    spec: PodSpec, item: ContainerAsk, rename: Mapping[str, str], drop_zero_keys: bool
) -> Iterator[Op]:
    """Change limits and requests alike: requests were copied from limits before we are called."""
    resources = _container(spec, item).resources
    if resources is None:
        return
    asked = item.resource.name if item.resource is not None else ""
    given = rename.get(asked, asked)
    for field_name, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts is None:
            continue
        path = f"{item.path}/resources/{field_name}"
        gone = [key for key in item.zero_keys if key in amounts] if drop_zero_keys else []
        # A fraction is renamed even where the name stays: its number changes.
        if asked in amounts and (given != asked or (item.fraction_milli and asked in rename)):
            if given != asked:
                gone.append(asked)
            yield from (remove(f"{path}/{escape(key)}") for key in gone)
            yield add(f"{path}/{escape(given)}", str(item.count))
        else:
            yield from (remove(f"{path}/{escape(key)}") for key in gone)


def _expression(requirement: NodeRequirement) -> dict[str, Any]:
    return {"key": requirement.key, "operator": "In", "values": list(requirement.values)}


def affinity_ops(
    affinity: Affinity | None, requirements: Sequence[NodeRequirement]
) -> Iterator[Op]:
    """Require node labels beside whatever is required already: in every alternative of it."""
    if not requirements:
        return
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [_expression(item) for item in requirements]}]
    }
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    if affinity is None:
        yield add("/spec/affinity", {"nodeAffinity": {name: required}})
        return
    node_affinity = affinity.node_affinity
    if node_affinity is None:
        yield add("/spec/affinity/nodeAffinity", {name: required})
        return
    present = node_affinity.required_during_scheduling_ignored_during_execution
    if present is None:
        yield add(f"/spec/affinity/nodeAffinity/{name}", required)
        return
    for index, term in enumerate(present.node_selector_terms):
        # A term that names nothing selects no node; it must not begin to select some.
        if term.match_expressions or term.match_fields:
            path = f"/spec/affinity/nodeAffinity/{name}/nodeSelectorTerms/{index}"
            yield from _term_ops(path, term, requirements)


def _term_ops(
    path: str, term: NodeSelectorTerm, requirements: Sequence[NodeRequirement]
) -> Iterator[Op]:
    present = {
        (item.key, item.values or ())
        for item in term.match_expressions or ()
        if item.operator == "In"
    }
    missing = [item for item in requirements if (item.key, item.values) not in present]
    if term.match_expressions is None:
        yield add(f"{path}/matchExpressions", [_expression(item) for item in missing])
        return
    for item in missing:
        yield add(f"{path}/matchExpressions/-", _expression(item))


def _priority_ops(spec: PodSpec, name: str, priority: Priority) -> Iterator[Op]:
    """Change the class, and with it the numbers that the old class had given.

    The API server refuses a pod where they contradict the class. It would work them out anew if
    they were taken away; but that is a change, on which it asks all webhooks once more.
    """
    if name == spec.priority_class_name:
        return
    yield add("/spec/priorityClassName", name)
    if spec.priority != priority.value:
        yield add("/spec/priority", priority.value)
    if spec.preemption_policy != priority.preemption_policy:
        yield add("/spec/preemptionPolicy", priority.preemption_policy)


def gate_ops(spec: PodSpec, *, gate: bool) -> Iterator[Op]:
    """Put the queue's gate on, or take it off."""
    present = [
        index for index, item in enumerate(spec.scheduling_gates or ()) if item.name == stamps.GATE
    ]
    if not gate:
        yield from remove_items("/spec/schedulingGates", present)
    elif not present:
        item = {"name": stamps.GATE}
        if spec.scheduling_gates is None:
            yield add("/spec/schedulingGates", [item])
        else:
            yield add("/spec/schedulingGates/-", item)
