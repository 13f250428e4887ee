"""The kinds that are queued as a whole: where they suspend, which pods they make.

A kind is one row. Sources: kubernetes batch/v1; kubernetes-sigs/jobset v1alpha2;
ray-project/kuberay v1; kubeflow training-operator v1, mpi-operator v2beta1, trainer v1alpha1,
spark-operator v1beta2; project-codeflare/appwrapper v1beta2; the counts agree with
kubernetes-sigs/kueue's integrations of the same kinds.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, ValidationError, convert

from fairslice.booking import Kind
from fairslice.kube.objects import Job, PodTemplateSpec

__all__ = ["ADAPTERS", "Adapter", "PodSet", "WorkloadError", "adapter_for", "held_pods"]

_Object = dict[str, Any]


class WorkloadError(ValueError):
    """An object that isn't shaped as its kind should be: path and what is wrong."""


class PodSet(Struct, frozen=True, kw_only=True):
    """Pods of one template: its JSON pointer, how many at once, the fewest that make sense.

    `annotations` is the JSON pointer of the annotations that reach these pods; empty where
    the object has none, as in a kind that only refers to its template. `min_count` is below
    `count` for elastic kinds.
    """

    path: str
    count: int
    template: PodTemplateSpec
    min_count: int
    annotations: str


class _Found(Struct, frozen=True, kw_only=True):
    """A pod set before its template is decoded."""

    path: str
    count: int
    template: _Object
    min_count: int | None = None
    annotations: str | None = None


class Adapter(Struct, frozen=True, kw_only=True):
    """A kind's row: `suspend` is the JSON pointer of the field, empty where there is none."""

    kind: Kind
    suspend: str
    find: Callable[[_Object], Iterator[_Found]]

    def pod_sets(self, obj: _Object) -> tuple[PodSet, ...]:
        """Read the pods that an object will make. Sets of no pods are left out.

        Raises WorkloadError for an object that isn't shaped as its kind.
        """
        return tuple(_decoded(found) for found in self.find(obj) if found.count > 0)

    def is_suspended(self, obj: _Object) -> bool:
        """Say whether the object is suspended."""
        if not self.suspend:
            return False
        at: object = obj
        for part in self.suspend.split("/")[1:]:
            at = at.get(part) if isinstance(at, dict) else None
        return at is True


def _decoded(found: _Found) -> PodSet:
    try:
        template = convert(found.template, PodTemplateSpec)
    except ValidationError as error:
        raise WorkloadError(f"{found.path}: {error}") from error
    annotations = found.annotations
    return PodSet(
        path=found.path,
        count=found.count,
        template=template,
        min_count=found.count if found.min_count is None else min(found.min_count, found.count),
        annotations=f"{found.path}/metadata/annotations" if annotations is None else annotations,
    )


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


def _job(obj: _Object) -> Iterator[_Found]:
    spec = _child(obj, "", "spec")
    yield _Found(
        path="/spec/template",
        count=_job_pods(spec, "/spec"),
        template=_child(spec, "/spec", "template"),
    )


def _jobset(obj: _Object) -> Iterator[_Found]:
    spec = _child(obj, "", "spec")
    for path, item in _items(spec, "/spec", "replicatedJobs"):
        job = _child(_child(item, path, "template"), f"{path}/template", "spec")
        job_path = f"{path}/template/spec"
        yield _Found(
            path=f"{job_path}/template",
            count=_count(item, path, "replicas", 1) * _job_pods(job, job_path),
            template=_child(job, job_path, "template"),
        )


def _ray_cluster(spec: _Object, path: str) -> Iterator[_Found]:
    head = _child(spec, path, "headGroupSpec")
    if head:
        yield _Found(
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
        yield _Found(
            path=f"{at}/template",
            count=max(replicas, least if elastic else 0) * hosts,
            template=_child(group, at, "template"),
            min_count=least * hosts if elastic else None,
        )


def _raycluster(obj: _Object) -> Iterator[_Found]:
    return _ray_cluster(_child(obj, "", "spec"), "/spec")


def _rayservice(obj: _Object) -> Iterator[_Found]:
    spec = _child(obj, "", "spec")
    return _ray_cluster(_child(spec, "/spec", "rayClusterConfig"), "/spec/rayClusterConfig")


def _rayjob(obj: _Object) -> Iterator[_Found]:
    spec = _child(obj, "", "spec")
    yield from _ray_cluster(_child(spec, "/spec", "rayClusterSpec"), "/spec/rayClusterSpec")
    # KubeRay's own submitter holds no GPU; only a template of the user's may.
    if spec.get("submitterPodTemplate") is not None:
        yield _Found(
            path="/spec/submitterPodTemplate",
            count=1,
            template=_child(spec, "/spec", "submitterPodTemplate"),
        )


def _replica_specs(field: str) -> Callable[[_Object], Iterator[_Found]]:
    """Read Kubeflow's map of roles, each with replicas and a template."""

    def find(obj: _Object) -> Iterator[_Found]:
        spec = _child(obj, "", "spec")
        roles = _child(spec, "/spec", field)
        elastic = _child(spec, "/spec", "elasticPolicy")
        for role in roles:
            path = f"/spec/{field}/{role}"
            item = _child(roles, f"/spec/{field}", role)
            least = elastic.get("minReplicas") if role == "Worker" else None
            yield _Found(
                path=f"{path}/template",
                count=_count(item, path, "replicas", 1),
                template=_child(item, path, "template"),
                min_count=least if isinstance(least, int) else None,
            )

    return find


def _trainjob(obj: _Object) -> Iterator[_Found]:
    """Read the trainer; its template stands in a runtime that the object only refers to."""
    trainer = _child(_child(obj, "", "spec"), "/spec", "trainer")
    resources = _child(trainer, "/spec/trainer", "resourcesPerNode")
    template = {"spec": {"containers": [{"name": "node", "resources": resources}]}}
    yield _Found(
        path="/spec/trainer",
        count=_count(trainer, "/spec/trainer", "numNodes", 1),
        template=template,
        annotations="",
    )


def _appwrapper(obj: _Object) -> Iterator[_Found]:
    """Read each component: its declared pod sets, or what its own kind's row finds."""
    for path, item in _items(_child(obj, "", "spec"), "/spec", "components"):
        inner = _child(item, path, "template")
        declared = list(_items(item, path, "podSets"))
        for at, pod_set in declared:
            pointer = str(pod_set.get("path", ""))
            if not pointer:
                raise WorkloadError(f"{at}/path: is missing")
            template, here = inner, f"{path}/template"
            for part in pointer.removeprefix("template.").split("."):
                name, _, index = part.rstrip("]").partition("[")
                if index:
                    found = dict(_items(template, here, name))
                    here = f"{here}/{name}/{index}"
                    template = found.get(here, {})
                else:
                    template, here = _child(template, here, name), f"{here}/{name}"
            yield _Found(path=here, count=_count(pod_set, at, "replicas", 1), template=template)
        if declared:
            continue
        if inner.get("kind") == "Pod":
            yield _Found(path=f"{path}/template", count=1, template=inner)
            continue
        row = adapter_for(str(inner.get("apiVersion", "")), str(inner.get("kind", "")))
        if row is None or row.find is _appwrapper:
            continue
        for found_set in row.find(inner):
            prefix = f"{path}/template"
            yield _Found(
                path=prefix + found_set.path,
                count=found_set.count,
                template=found_set.template,
                min_count=found_set.min_count,
                annotations=(
                    prefix + found_set.annotations
                    if found_set.annotations
                    else found_set.annotations
                ),
            )


def _spark(obj: _Object) -> Iterator[_Found]:
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
        yield _Found(
            path=path,
            count=count,
            template=_spark_template(part, path, f"spark-kubernetes-{role}"),
            min_count=least,
            annotations=f"{path}/annotations",
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


def _kubeflow(kind: str, plural: str, field: str, version: str = "v1") -> Adapter:
    return Adapter(
        kind=Kind(f"kubeflow.org/{version}", kind, plural),
        suspend="/spec/runPolicy/suspend",
        find=_replica_specs(field),
    )


def _row(
    api_version: str,
    kind: str,
    plural: str,
    find: Callable[[_Object], Iterator[_Found]],
    suspend: str = "/spec/suspend",
) -> Adapter:
    return Adapter(kind=Kind(api_version, kind, plural), suspend=suspend, find=find)


_RAY_SERVICE_SUSPEND = "/spec/rayClusterConfig/suspend"

ADAPTERS: tuple[Adapter, ...] = (
    _row("batch/v1", "Job", "jobs", _job),
    _row("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", _jobset),
    _row("ray.io/v1", "RayJob", "rayjobs", _rayjob),
    _row("ray.io/v1", "RayCluster", "rayclusters", _raycluster),
    _row("ray.io/v1", "RayService", "rayservices", _rayservice, _RAY_SERVICE_SUSPEND),
    _kubeflow("MPIJob", "mpijobs", "mpiReplicaSpecs", "v2beta1"),
    _kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs"),
    _kubeflow("TFJob", "tfjobs", "tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs"),
    _kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs"),
    _kubeflow("JAXJob", "jaxjobs", "jaxReplicaSpecs"),
    _row("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", _trainjob),
    _row("workload.codeflare.dev/v1beta2", "AppWrapper", "appwrappers", _appwrapper),
    _row("sparkoperator.k8s.io/v1beta2", "SparkApplication", "sparkapplications", _spark),
)

_BY_GROUP_KIND = {(adapter.kind.group, adapter.kind.kind): adapter for adapter in ADAPTERS}


def adapter_for(api_version: str, kind: str) -> Adapter | None:
    """Find a kind's row; the API group counts, the version doesn't."""
    return _BY_GROUP_KIND.get((api_version.rpartition("/")[0], kind))


def held_pods(job: Job) -> int:
    """Count the pods that a Job holds room for: wanted now, and those not yet gone.

    A suspended or finished Job wants none; each success of a Job with completions wants one
    less. Pods that end hold their GPUs until they are really gone.
    """
    spec, status = job.spec, job.status
    ended = any(
        condition.type in ("Complete", "Failed") and condition.status == "True"
        for condition in status.conditions or ()
    )
    wanted = 0
    if not ended and not spec.suspend:
        wanted = 1 if spec.parallelism is None else spec.parallelism
        if spec.completions is not None:
            wanted = min(wanted, max(spec.completions - status.succeeded, 0))
        elif status.succeeded and spec.parallelism is not None:
            # A work queue starts no new pod after the first success.
            wanted = min(wanted, status.active)
    return max(wanted, status.active + (status.terminating or 0))
