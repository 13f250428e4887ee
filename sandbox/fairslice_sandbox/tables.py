"""Rows and columns for `kubectl get`.

Source: k8s.io/kubernetes/pkg/printers/internalversion/printers.go; the tableconvertor of
apiextensions-apiserver for custom columns.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from .crds import CustomKind
from .store import Obj, Resource

__all__ = ["table"]

Column = tuple[str, str, int]
"""Name, type, priority: columns above 0 show with -o wide only."""
Cells = Callable[[Obj, datetime], list[Any]]


def table(
    resource: Resource,
    custom: CustomKind | None,
    objects: Iterable[Obj],
    now: datetime,
    *,
    version: str,
    include: str = "Metadata",
) -> Obj:
    """Give objects as a meta.k8s.io/v1 Table; `include` is Metadata, Object or None."""
    columns, cells = _layout(resource, custom)
    rows = []
    for obj in objects:
        row: Obj = {"cells": cells(obj, now)}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = partial(obj)
        rows.append(row)
    definitions = [
        {
            "name": name,
            "type": kind,
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for name, kind, priority in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions,
        "rows": rows,
    }


def partial(obj: Obj) -> Obj:
    """Give the PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def _layout(resource: Resource, custom: CustomKind | None) -> tuple[list[Column], Cells]:
    if custom is not None:
        return _custom_layout(custom)
    if resource.stored_as == "events":
        names = ("Last Seen", "Type", "Reason", "Object", "Message")
        return [(name, "string", 0) for name in names], _event_cells
    spelled, cells = _KINDS.get(resource.key, ("Age", lambda obj, now: []))
    columns: list[Column] = [
        (name.lstrip("*"), "string", int(name.startswith("*")))
        for name in ("Name", *spelled.split(", "))
    ]
    at = next(i for i, column in enumerate(columns) if column[0] in ("Age", "Created At"))

    def row(obj: Obj, now: datetime) -> list[Any]:
        found = [obj["metadata"]["name"], *cells(obj, now)]
        created = obj["metadata"].get("creationTimestamp", "")
        found.insert(at, created if columns[at][0] == "Created At" else age(created, now))
        return found

    return columns, row


def _custom_layout(custom: CustomKind) -> tuple[list[Column], Cells]:
    defined = custom.columns or ({"name": "Age", "type": "date", "jsonPath": _CREATED},)
    columns: list[Column] = [("Name", "string", 0)]
    columns += [(item["name"], item["type"], item.get("priority", 0)) for item in defined]

    def row(obj: Obj, now: datetime) -> list[Any]:
        cells = [obj["metadata"]["name"]]
        for column in defined:
            value = json_path(obj, column["jsonPath"])
            cells.append(age(value, now) if column["type"] == "date" and value else value)
        return cells

    return columns, row


_CREATED = ".metadata.creationTimestamp"
_STEP = re.compile(
    r"\.(?P<name>[\w-]+)|\['(?P<quoted>[^']+)'\]|\[(?P<index>-?\d+|\*)\]"
    r"|\[\?\(@\.(?P<key>[\w.]+)\s*==\s*[\"'](?P<value>[^\"']*)[\"']\)\]"
)


def json_path(obj: Any, path: str) -> Any:
    r"""Evaluate the JSONPath of a printer column: names, ['quoted'], [n], [*], [?(@.k=="v")].

    A name may have its dots escaped, as in .metadata.labels.a\.b.
    """
    path = re.sub(r"\.((?:[\w/-]|\\\.)*\\\.(?:[\w/-]|\\\.)*)",
                  lambda found: "['" + found[1].replace("\\.", ".") + "']", path)  # fmt: skip
    found = [obj]
    for step in _STEP.finditer(path):
        found = [below for value in found for below in _descend(value, step)]
    if not found:
        return None
    return found[0] if len(found) == 1 else ",".join(map(str, found))


def _descend(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["name"] or step["quoted"]
    if name is not None:
        return [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if step["index"] == "*":
        return list(value.values() if isinstance(value, dict) else value or ())
    if not isinstance(value, list):
        return []
    if step["index"] is not None:
        index = int(step["index"])
        return value[index : index + 1 or None]
    return [item for item in value if item.get(step["key"]) == step["value"]]


def age(created: str, now: datetime) -> str:
    """Say how long ago, as kubectl does: 12s, 5m30s, 3h, 8d."""
    if not created:
        return "<unknown>"
    return duration((now - datetime.fromisoformat(created)).total_seconds())


def duration(seconds: float) -> str:
    """Write a duration as apimachinery's HumanDuration."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        rest = whole % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _pod_cells(pod: Obj, now: datetime) -> list[Any]:
    spec, status = _spec(pod), _status(pod)
    states = status.get("containerStatuses") or []
    ready = sum(bool(state.get("ready")) for state in states)
    restarts = sum(int(state.get("restartCount", 0)) for state in states)
    readiness = "<none>"
    return [
        f"{ready}/{len(spec.get('containers', ()))}", _pod_reason(pod), str(restarts),
        status.get("podIP") or "<none>", spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>", readiness,
    ]  # fmt: skip


def _pod_reason(pod: Obj) -> str:
    status = _status(pod)
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    if _spec(pod).get("schedulingGates") and reason == "Pending":
        reason = "SchedulingGated"
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended:
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else reason


def _node_cells(node: Obj, now: datetime) -> list[Any]:
    status, labels = _status(node), node["metadata"].get("labels") or {}
    ready: Obj = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    text = "Ready" if ready.get("status") == "True" else "NotReady"
    if _spec(node).get("unschedulable"):
        text += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(k.removeprefix(prefix) for k in labels if k.startswith(prefix)))
    info = status.get("nodeInfo") or {}
    addresses = {item["type"]: item["address"] for item in status.get("addresses") or ()}
    return [
        text, roles or "<none>", info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"), addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>", info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]  # fmt: skip


def _images(template: Obj) -> list[str]:
    containers = _spec(template).get("containers", ())
    names = ",".join(str(container.get("name")) for container in containers)
    return [names, ",".join(str(container.get("image")) for container in containers)]


def _selector(obj: Obj) -> str:
    labels = (_spec(obj).get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or "<none>"


def _job_cells(job: Obj, now: datetime) -> list[Any]:
    spec, status = _spec(job), _status(job)
    true = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    text = next(
        (name for name in ("Complete", "Failed", "Suspended", "FailureTarget") if name in true),
        "Running",
    )
    if job["metadata"].get("deletionTimestamp"):
        text = "Terminating"
    wanted = spec.get("completions")
    done = f"{status.get('succeeded', 0)}/{wanted if wanted is not None else '1'}"
    took = ""
    if start := status.get("startTime"):
        end = status.get("completionTime")
        until = datetime.fromisoformat(end) if end else now
        took = duration((until - datetime.fromisoformat(start)).total_seconds())
    return [text, done, took, *_images(spec.get("template", {})), _selector(job)]


def _deployment_cells(obj: Obj, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    return [
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0), status.get("availableReplicas", 0),
        *_images(spec.get("template", {})), _selector(obj),
    ]  # fmt: skip


def _replica_set_cells(obj: Obj, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [*counts, *_images(spec.get("template", {})), _selector(obj)]


def _stateful_set_cells(obj: Obj, now: datetime) -> list[Any]:
    spec = _spec(obj)
    ready = f"{_status(obj).get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [ready, *_images(spec.get("template", {}))]


def _daemon_set_cells(obj: Obj, now: datetime) -> list[Any]:
    status = _status(obj)
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    more = ("updatedNumberScheduled", "numberAvailable")
    counts = [status.get(field, 0) for field in (*fields, *more)]
    return [*counts, "<none>", *_images(_spec(obj).get("template", {})), _selector(obj)]


def _cron_job_cells(obj: Obj, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    last = status.get("lastScheduleTime")
    return [
        spec.get("schedule", ""), spec.get("timeZone") or "<none>",
        "True" if spec.get("suspend") else "False", len(status.get("active") or ()),
        age(last, now) if last else "<none>",
    ]  # fmt: skip


def _event_cells(event: Obj, now: datetime) -> list[Any]:
    subject = event.get("involvedObject") or event.get("regarding") or {}
    last = (
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )
    return [
        age(last, now), event.get("type", ""), event.get("reason", ""),
        f"{subject.get('kind', '').lower()}/{subject.get('name', '')}",
        (event.get("message") or event.get("note") or "").strip(),
    ]  # fmt: skip


def _service_cells(obj: Obj, now: datetime) -> list[Any]:
    spec = _spec(obj)
    ports = ",".join(
        f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in spec.get("ports", ())
    )
    return [
        spec.get("type", ""), spec.get("clusterIP") or "<none>", "<none>", ports or "<none>"
    ]  # fmt: skip


def _quota_cells(obj: Obj, now: datetime) -> list[Any]:
    status = _status(obj)
    used, hard = status.get("used") or {}, _spec(obj).get("hard") or {}
    requests = ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard))
    return [requests, ""]


def _budget_cells(obj: Obj, now: datetime) -> list[Any]:
    spec = _spec(obj)
    return [
        str(spec.get("minAvailable", "N/A")), str(spec.get("maxUnavailable", "N/A")),
        _status(obj).get("disruptionsAllowed", 0),
    ]  # fmt: skip


def _binding_cells(obj: Obj, now: datetime) -> list[Any]:
    return [f"{obj['roleRef'].get('kind')}/{obj['roleRef'].get('name')}"]


_KINDS: dict[str, tuple[str, Cells]] = {
    "pods": ("Ready, Status, Restarts, Age, *IP, *Node, *Nominated Node, *Readiness Gates",
             _pod_cells),
    "nodes": ("Status, Roles, Age, Version, *Internal-IP, *External-IP, *OS-Image, "
              "*Kernel-Version, *Container-Runtime", _node_cells),
    "namespaces": ("Status, Age", lambda obj, now: [_status(obj).get("phase", "")]),
    "jobs.batch": ("Status, Completions, Duration, Age, *Containers, *Images, *Selector",
                   _job_cells),
    "cronjobs.batch": ("Schedule, Timezone, Suspend, Active, Last Schedule, Age", _cron_job_cells),
    "deployments.apps": ("Ready, Up-to-date, Available, Age, *Containers, *Images, *Selector",
                         _deployment_cells),
    "replicasets.apps": ("Desired, Current, Ready, Age, *Containers, *Images, *Selector",
                         _replica_set_cells),
    "statefulsets.apps": ("Ready, Age, *Containers, *Images", _stateful_set_cells),
    "daemonsets.apps": ("Desired, Current, Ready, Up-to-date, Available, Node Selector, Age, "
                        "*Containers, *Images, *Selector", _daemon_set_cells),
    "services": ("Type, Cluster-IP, External-IP, Port(s), Age", _service_cells),
    "configmaps": ("Data, Age", lambda obj, now: [len(obj.get("data") or {})]),
    "secrets": ("Type, Data, Age",
                lambda obj, now: [obj.get("type", ""), len(obj.get("data") or {})]),
    "serviceaccounts": ("Secrets, Age", lambda obj, now: [len(obj.get("secrets") or ())]),
    "resourcequotas": ("Request, Limit, Age", _quota_cells),
    "podtemplates": ("Containers, Images, Age",
                     lambda obj, now: _images(obj.get("template") or {})),
    "poddisruptionbudgets.policy": (
        "Min Available, Max Unavailable, Allowed Disruptions, Age", _budget_cells),
    "priorityclasses.scheduling.k8s.io": (
        "Value, Global-Default, Age, PreemptionPolicy",
        lambda obj, now: [obj.get("value", 0), str(bool(obj.get("globalDefault"))).lower(),
                          obj.get("preemptionPolicy", "")]),
    "leases.coordination.k8s.io": (
        "Holder, Age", lambda obj, now: [_spec(obj).get("holderIdentity", "")]),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        "Webhooks, Age", lambda obj, now: [len(obj.get("webhooks") or ())]),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        "Webhooks, Age", lambda obj, now: [len(obj.get("webhooks") or ())]),
    "customresourcedefinitions.apiextensions.k8s.io": ("Created At", lambda obj, now: []),
    "roles.rbac.authorization.k8s.io": ("Created At", lambda obj, now: []),
    "clusterroles.rbac.authorization.k8s.io": ("Created At", lambda obj, now: []),
    "rolebindings.rbac.authorization.k8s.io": ("Role, Age", _binding_cells),
    "clusterrolebindings.rbac.authorization.k8s.io": ("Role, Age", _binding_cells),
}  # fmt: skip
