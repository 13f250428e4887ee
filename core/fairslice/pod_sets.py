"""The pods that a workload will make, found where its kind keeps them.

Sources: kubernetes batch/v1; kubernetes-sigs/jobset v1alpha2; ray-project/kuberay v1; kubeflow
training-operator v1, mpi-operator v2beta1, trainer v1alpha1, spark-operator v1beta2;
project-codeflare/appwrapper v1beta2; the counts agree with kubernetes-sigs/kueue's integrations
of the same kinds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert

from fairslice.json_patch import Op, add, map_ops
from fairslice.kube.objects import ObjectMeta, PodTemplateSpec

__all__ = [
    "Finder",
    "FoundSet",
    "PodSet",
    "WorkloadError",
    "app_wrapper_sets",
    "at_pointer",
    "decoded",
    "job_set_sets",
    "job_sets",
    "metadata_ops",
    "ray_cluster_sets",
    "ray_job_sets",
    "ray_service_sets",
    "replica_sets",
    "spark_sets",
    "train_job_sets",
]

_Object = dict[str, Any]

PATCH_OWNER = "fairslice.io/queue"
"""Names our entry among a TrainJob's runtimePatches."""


class WorkloadError(ValueError):
    """An object that isn't shaped as its kind should be: path and what is wrong."""


class PodSet(Struct, frozen=True, kw_only=True):
    """Pods of one template: its JSON pointer, how many at once, the fewest that make sense.

    `template` shows the labels and annotations that its pods will have. `holder` is the JSON
    pointer of the object to whose `annotations` and `labels` more are added, `held` what it has
    now; `scaffold` is what must be added first where there is no such object yet. `min_count`
    is below `count` for elastic kinds.
    """

    path: str
    count: int
    template: PodTemplateSpec
    min_count: int
    holder: str
    held: ObjectMeta
    scaffold: tuple[tuple[str, Any], ...] = ()


class FoundSet(Struct, frozen=True, kw_only=True):
    """A pod set before its template is decoded. No holder: the template's own metadata."""

    path: str
    count: int
    template: _Object
    min_count: int | None = None
    holder: str = ""
    scaffold: tuple[tuple[str, Any], ...] = ()


Finder = Callable[[_Object], Iterator[FoundSet]]


def at_pointer(obj: Any, pointer: str) -> Any:
    """Follow a JSON pointer; None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(obj, list):
            obj = obj[int(key)] if key.isdigit() and int(key) < len(obj) else None
        else:
            obj = obj.get(key) if isinstance(obj, dict) else None
        if obj is None:
            return None
    return obj


def decoded(found: FoundSet, obj: _Object) -> PodSet:
    """Decode what was found in an object.

    Raises WorkloadError.
    """
    holder, scaffold = found.holder or f"{found.path}/metadata", found.scaffold
    present = at_pointer(obj, holder)
    try:
        template = convert(found.template, PodTemplateSpec)
        held = convert(present or {}, ObjectMeta)
    except ValidationError as error:
        raise WorkloadError(f"{found.path}: {error}") from error
    if found.holder:
        template = PodTemplateSpec(metadata=_merged(template.metadata, held), spec=template.spec)
    if present is None and not scaffold:
        scaffold = ((holder, {}),)
    return PodSet(
        path=found.path,
        count=found.count,
        template=template,
        min_count=found.count if found.min_count is None else min(found.min_count, found.count),
        holder=holder,
        held=held,
        scaffold=scaffold,
    )


def _merged(template: ObjectMeta, held: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(
        annotations={**(template.annotations or {}), **(held.annotations or {})},
        labels={**(template.labels or {}), **(held.labels or {})},
    )


def metadata_ops(
    item: PodSet,
    annotations: Mapping[str, str | None],
    labels: Mapping[str, str | None],
    made: set[str],
) -> tuple[Op, ...]:
    """Change the annotations and labels of a set's pods; None takes one away.

    `made` collects what was added for sets of the same object, which is added once.
    """
    held = item.held
    parts = {"annotations": (held.annotations, annotations), "labels": (held.labels, labels)}
    if not item.scaffold:
        return tuple(
            op
            for name, (current, wanted) in parts.items()
            for op in map_ops(f"{item.holder}/{name}", current, wanted)
        )
    present = {
        name: {key: value for key, value in wanted.items() if value is not None}
        for name, (_, wanted) in parts.items()
    }
    present = {name: part for name, part in present.items() if part}
    if not present:
        return ()
    ops: list[Op] = []
    for pointer, value in item.scaffold:
        if pointer not in made:
            made.add(pointer)
            ops.append(add(pointer, present if pointer == item.holder else value))
    if item.holder not in made:
        ops += [add(f"{item.holder}/{name}", part) for name, part in present.items()]
    return tuple(ops)


def _child(obj: _Object, path: str, key: str) -> _Object:
    value = obj.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WorkloadError(f"{path}/{key}: expected an object")
    return value


def _items(obj: _Object, path: str, key: str) -> Iterator[tuple[str, _Object]]:
    value = obj.get(key)
    if value is None:
        return
    if not isinstance(value, list):
        raise WorkloadError(f"{path}/{key}: expected a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise WorkloadError(f"{path}/{key}/{index}: expected an object")
        yield f"{path}/{key}/{index}", item


def _count(obj: _Object, path: str, key: str, default: int) -> int:
    value = obj.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WorkloadError(f"{path}/{key}: {value!r} is not a number of pods")
    return value


def _job_pods(spec: _Object, path: str) -> int:
    parallelism = _count(spec, path, "parallelism", 1)
    return min(parallelism, _count(spec, path, "completions", parallelism))


def job_sets(obj: _Object) -> Iterator[FoundSet]:
    spec = _child(obj, "", "spec")
    yield FoundSet(
        path="/spec/template",
        count=_job_pods(spec, "/spec"),
        template=_child(spec, "/spec", "template"),
    )


def job_set_sets(obj: _Object) -> Iterator[FoundSet]:
    spec = _child(obj, "", "spec")
    for path, item in _items(spec, "/spec", "replicatedJobs"):
        job = _child(_child(item, path, "template"), f"{path}/template", "spec")
        job_path = f"{path}/template/spec"
        yield FoundSet(
            path=f"{job_path}/template",
            count=_count(item, path, "replicas", 1) * _job_pods(job, job_path),
            template=_child(job, job_path, "template"),
        )


def _ray_cluster(spec: _Object, path: str) -> Iterator[FoundSet]:
    head = _child(spec, path, "headGroupSpec")
    if head:
        yield FoundSet(
            path=f"{path}/headGroupSpec/template",
            count=1,
            template=_child(head, f"{path}/headGroupSpec", "template"),
        )
    elastic = spec.get("enableInTreeAutoscaling") is True
    for at, group in _items(spec, path, "workerGroupSpecs"):
        if group.get("suspend") is True:
            continue
        least = _count(group, at, "minReplicas", 0)
        replicas = _count(group, at, "replicas", max(least, 0 if elastic else 1))
        hosts = max(_count(group, at, "numOfHosts", 1), 1)
        yield FoundSet(
            path=f"{at}/template",
            count=max(replicas, least if elastic else 0) * hosts,
            template=_child(group, at, "template"),
            min_count=least * hosts if elastic else None,
        )


def ray_cluster_sets(obj: _Object) -> Iterator[FoundSet]:
    return _ray_cluster(_child(obj, "", "spec"), "/spec")


def ray_service_sets(obj: _Object) -> Iterator[FoundSet]:
    spec = _child(obj, "", "spec")
    return _ray_cluster(_child(spec, "/spec", "rayClusterConfig"), "/spec/rayClusterConfig")


def ray_job_sets(obj: _Object) -> Iterator[FoundSet]:
    spec = _child(obj, "", "spec")
    yield from _ray_cluster(_child(spec, "/spec", "rayClusterSpec"), "/spec/rayClusterSpec")
    # KubeRay's own submitter holds no GPU; only a template of the user's may.
    if spec.get("submitterPodTemplate") is not None:
        yield FoundSet(
            path="/spec/submitterPodTemplate",
            count=1,
            template=_child(spec, "/spec", "submitterPodTemplate"),
        )


def replica_sets(field: str) -> Finder:
    """Read Kubeflow's map of roles, each with replicas and a template."""

    def find(obj: _Object) -> Iterator[FoundSet]:
        spec = _child(obj, "", "spec")
        roles = _child(spec, "/spec", field)
        elastic = _child(spec, "/spec", "elasticPolicy")
        for role in roles:
            path = f"/spec/{field}/{role}"
            item = _child(roles, f"/spec/{field}", role)
            least = elastic.get("minReplicas") if role == "Worker" else None
            yield FoundSet(
                path=f"{path}/template",
                count=_count(item, path, "replicas", 1),
                template=_child(item, path, "template"),
                min_count=least if isinstance(least, int) else None,
            )

    return find


def train_job_sets(obj: _Object) -> Iterator[FoundSet]:
    """Read the trainer; its template stands in a runtime that the object only refers to.

    What its pods are to carry goes into an entry of ours among the patches of that runtime.
    """
    spec = _child(obj, "", "spec")
    trainer = _child(spec, "/spec", "trainer")
    resources = _child(trainer, "/spec/trainer", "resourcesPerNode")
    # Which taints its pods bear stands in the runtime: the kube-scheduler will see to them.
    template = {
        "spec": {
            "containers": [{"name": "node", "resources": resources}],
            "tolerations": [{"operator": "Exists"}],
        }
    }
    patches = list(_items(spec, "/spec", "runtimePatches"))
    own = next((n for n, (_, item) in enumerate(patches) if item.get("manager") == PATCH_OWNER), -1)
    entry = f"/spec/runtimePatches/{own if own >= 0 else len(patches)}"
    scaffold: tuple[tuple[str, Any], ...] = ()
    if own < 0:
        nodes = {"name": "node", "template": {"spec": {"template": {"metadata": {}}}}}
        patch = {"template": {"spec": {"replicatedJobs": [nodes]}}}
        scaffold = ((entry, {"manager": PATCH_OWNER, "trainingRuntimeSpec": patch}),)
        if not patches:
            scaffold = (("/spec/runtimePatches", []), *scaffold)
    yield FoundSet(
        path="/spec/trainer",
        count=_count(trainer, "/spec/trainer", "numNodes", 1),
        template=template,
        holder=(
            f"{entry}/trainingRuntimeSpec/template/spec/replicatedJobs/0"
            "/template/spec/template/metadata"
        ),
        scaffold=scaffold,
    )


def app_wrapper_sets(finder_of: Callable[[str, str], Finder | None]) -> Finder:
    """Read each component: its declared pod sets, or what its own kind's row finds.

    Wrapped templates can't change; what pods are to carry goes into the component's
    podSetInfos, one for each of its pod sets.
    """

    def find(obj: _Object) -> Iterator[FoundSet]:
        for path, item in _items(_child(obj, "", "spec"), "/spec", "components"):
            found = list(_wrapped(item, path, finder_of))
            infos = len(list(_items(item, path, "podSetInfos")))
            for index, each in enumerate(found):
                scaffold: tuple[tuple[str, Any], ...] = tuple(
                    (f"{path}/podSetInfos/{n}", {}) for n in range(infos, index + 1)
                )
                if not infos:
                    scaffold = ((f"{path}/podSetInfos", [{} for _ in found]),)
                yield FoundSet(
                    path=each.path,
                    count=each.count,
                    template=each.template,
                    min_count=each.min_count,
                    holder=f"{path}/podSetInfos/{index}",
                    scaffold=scaffold,
                )

    return find


def _wrapped(
    item: _Object, path: str, finder_of: Callable[[str, str], Finder | None]
) -> Iterator[FoundSet]:
    inner, here = _child(item, path, "template"), f"{path}/template"
    declared = list(_items(item, path, "podSets"))
    for at, pod_set in declared:
        yield _declared(pod_set, at, inner, here)
    if declared:
        return
    if inner.get("kind") == "Pod":
        yield FoundSet(path=here, count=1, template=inner)
        return
    finder = finder_of(str(inner.get("apiVersion", "")), str(inner.get("kind", "")))
    for found in finder(inner) if finder is not None else ():
        yield FoundSet(
            path=here + found.path,
            count=found.count,
            template=found.template,
            min_count=found.min_count,
        )


def _declared(pod_set: _Object, at: str, inner: _Object, here: str) -> FoundSet:
    pointer = str(pod_set.get("path", ""))
    if not pointer:
        raise WorkloadError(f"{at}/path: is missing")
    template = inner
    for part in pointer.removeprefix("template").removeprefix(".").split("."):
        name, _, index = part.rstrip("]").partition("[")
        if index:
            items = dict(_items(template, here, name))
            here = f"{here}/{name}/{index}"
            template = items.get(here, {})
        elif name:
            template, here = _child(template, here, name), f"{here}/{name}"
    return FoundSet(path=here, count=_count(pod_set, at, "replicas", 1), template=template)


def spark_sets(obj: _Object) -> Iterator[FoundSet]:
    """Read driver and executors; GPUs are in a field of their own, beside a template."""
    spec = _child(obj, "", "spec")
    dynamic = _child(spec, "/spec", "dynamicAllocation")
    elastic = dynamic.get("enabled") is True
    for role in ("driver", "executor"):
        path = f"/spec/{role}"
        part = _child(spec, "/spec", role)
        count, least = 1, None
        if role == "executor":
            count = _count(part, path, "instances", 1)
            if elastic:
                least = _count(dynamic, "/spec/dynamicAllocation", "minExecutors", 0)
                first = _count(dynamic, "/spec/dynamicAllocation", "initialExecutors", 0)
                count = max(count if "instances" in part else 0, least, first)
        yield FoundSet(
            path=path,
            count=count,
            template=_spark_template(part, path, f"spark-kubernetes-{role}"),
            min_count=least,
            holder=path,
        )


def _spark_template(part: _Object, path: str, container: str) -> _Object:
    template = _child(part, path, "template")
    spec = dict(_child(template, f"{path}/template", "spec"))
    containers = [dict(item) for _, item in _items(spec, f"{path}/template/spec", "containers")]
    if not containers:
        containers = [{"name": container}]
    gpu = _child(part, path, "gpu")
    quantity = _count(gpu, f"{path}/gpu", "quantity", 0)
    if gpu.get("name") and quantity:
        main = next((item for item in containers if item.get("name") == container), containers[0])
        resources = dict(_child(main, path, "resources"))
        limits = dict(_child(resources, path, "limits"))
        limits[str(gpu["name"])] = str(quantity)
        main["resources"] = {**resources, "limits": limits}
    for key in ("nodeSelector", "affinity", "tolerations", "initContainers"):
        if part.get(key) is not None:
            spec[key] = part[key]
    sidecars = [item for _, item in _items(part, path, "sidecars")]
    spec["containers"] = containers + sidecars
    return {**template, "spec": spec}
