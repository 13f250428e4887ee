"""The kinds that are queued as a whole: where they suspend, who makes their pods, how they end.

A kind is one row. Sources, besides those of `pod_sets`: each kind's `managedBy` and status
fields, and how kubernetes-sigs/kueue's integrations of the same kinds read them.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec import Struct

from fairslice.booking import Kind
from fairslice.kube.objects import Job
from fairslice.pod_sets import (
    Finder,
    PodSet,
    WorkloadError,
    app_wrapper_sets,
    at_pointer,
    decoded,
    job_set_sets,
    job_sets,
    ray_cluster_sets,
    ray_job_sets,
    ray_service_sets,
    replica_sets,
    spark_sets,
    train_job_sets,
)

__all__ = [
    "ADAPTERS",
    "MOST_SETS",
    "Adapter",
    "End",
    "PodSet",
    "TooManySets",
    "WorkloadError",
    "adapter_for",
    "adapter_of_kind",
    "held_pods",
    "kinds_above",
]

_Object = dict[str, Any]


class End(Struct, frozen=True):
    """How a workload stands: over or not, failed or not, and why it failed."""

    finished: bool = False
    failed: bool = False
    reason: str = ""


_GOES_ON = End()

MOST_SETS = 256
"""Pod sets that are looked through; more are made by nobody who wants an answer."""


class TooManySets(WorkloadError):
    """An object of more pod sets than are looked through."""


class Adapter(Struct, frozen=True, kw_only=True):
    """A kind's row.

    `suspend` is the JSON pointer of the field that holds it back, `managed_by` that of the
    field that may name another controller than `manager`. `makers` are the kinds that make its
    pods for it, where that is not the kind itself; each must be known by its group elsewhere.
    """

    kind: Kind
    suspend: str
    find: Finder
    end: Callable[[_Object], End]
    managed_by: str = ""
    manager: str = ""
    makers: frozenset[str] = frozenset()

    def pod_sets(self, obj: _Object) -> tuple[PodSet, ...]:
        """Read the pods that an object will make. Sets of no pods are left out.

        Raises WorkloadError for an object that isn't shaped as its kind, TooManySets for one
        that is too large.
        """
        sets = list(islice(self.find(obj), MOST_SETS + 1))
        if len(sets) > MOST_SETS:
            raise TooManySets(f"more than {MOST_SETS} pod sets")
        return tuple(decoded(found, obj) for found in sets if found.count > 0)

    def is_suspended(self, obj: _Object) -> bool:
        """Say whether the object is suspended."""
        return at_pointer(obj, self.suspend) is True

    def is_foreign(self, obj: _Object) -> bool:
        """Say whether another controller than the kind's own looks after the object."""
        manager = at_pointer(obj, self.managed_by) if self.managed_by else None
        return manager not in (None, "", self.manager)

    def suspend_body(self, *, suspend: bool) -> _Object:
        """Make the merge patch that sets the field that holds it back."""
        body: object = suspend
        for step in reversed(self.suspend.split("/")[1:]):
            body = {step: body}
        assert isinstance(body, dict)
        return body


def _by_condition(*complete: str) -> Callable[[_Object], End]:
    """Read the end off the status conditions; `Failed` is every kind's word for failure."""

    def end(obj: _Object) -> End:
        conditions = at_pointer(obj, "/status/conditions")
        for item in conditions if isinstance(conditions, list) else ():
            if isinstance(item, dict) and item.get("status") == "True":
                if item.get("type") == "Failed":
                    return End(True, True, str(item.get("reason", "")))
                if item.get("type") in complete:
                    return End(True)
        return _GOES_ON

    return end


def _by_field(pointer: str, complete: str, *failed: str) -> Callable[[_Object], End]:
    """Read the end off one field of the status."""

    def end(obj: _Object) -> End:
        value = at_pointer(obj, pointer)
        if value == complete:
            return End(True)
        return End(True, True, str(value)) if value in failed else _GOES_ON

    return end


def _never(obj: _Object) -> End:
    """Read nothing: a service runs until someone takes it away."""
    return _GOES_ON


def _finder_of(api_version: str, kind: str) -> Finder | None:
    row = adapter_for(api_version, kind)
    return row.find if row is not None and row.kind.kind != "AppWrapper" else None


def _row(
    api_version: str,
    kind: str,
    plural: str,
    find: Finder,
    end: Callable[[_Object], End],
    manager: str,
    *makers: str,
    suspend: str = "/spec/suspend",
    managed_by: str = "/spec/managedBy",
) -> Adapter:
    return Adapter(
        kind=Kind(api_version, kind, plural),
        suspend=suspend,
        find=find,
        end=end,
        managed_by=managed_by,
        manager=manager,
        makers=frozenset(makers),
    )


def _kubeflow(kind: str, plural: str, field: str) -> Adapter:
    return _run_policy("v1", kind, plural, field, "kubeflow.org/training-operator")


def _run_policy(
    version: str, kind: str, plural: str, field: str, manager: str, *makers: str
) -> Adapter:
    return _row(
        f"kubeflow.org/{version}",
        kind,
        plural,
        replica_sets(field),
        _by_condition("Succeeded"),
        manager,
        *makers,
        suspend="/spec/runPolicy/suspend",
        managed_by="/spec/runPolicy/managedBy",
    )


_RAY = "ray.io/kuberay-operator"
_RAY_JOB_END = _by_field("/status/jobDeploymentStatus", "Complete", "Failed")
_WRAPPER_END = _by_field("/status/phase", "Succeeded", "Failed")
_SPARK_END = _by_field("/status/applicationState/state", "COMPLETED", "FAILED")
_RAY_SERVICE = "/spec/rayClusterConfig/"

# fmt: off
ADAPTERS: tuple[Adapter, ...] = (
    _row("batch/v1", "Job", "jobs", job_sets, _by_condition("Complete"),
         "kubernetes.io/job-controller"),
    _row("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", job_set_sets,
         _by_condition("Completed"), "jobset.sigs.k8s.io/jobset-controller", "Job"),
    _row("ray.io/v1", "RayJob", "rayjobs", ray_job_sets, _RAY_JOB_END, _RAY, "RayCluster", "Job"),
    _row("ray.io/v1", "RayCluster", "rayclusters", ray_cluster_sets, _never, _RAY),
    _row("ray.io/v1", "RayService", "rayservices", ray_service_sets, _never, _RAY, "RayCluster",
         suspend=_RAY_SERVICE + "suspend", managed_by=_RAY_SERVICE + "managedBy"),
    _run_policy("v2beta1", "MPIJob", "mpijobs", "mpiReplicaSpecs", "kubeflow.org/mpi-operator",
                "Job"),
    _kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs"),
    _kubeflow("TFJob", "tfjobs", "tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs"),
    _kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs"),
    _kubeflow("JAXJob", "jaxjobs", "jaxReplicaSpecs"),
    _row("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", train_job_sets,
         _by_condition("Complete"), "trainer.kubeflow.org/trainjob-controller", "Job"),
    _row("workload.codeflare.dev/v1beta2", "AppWrapper", "appwrappers",
         app_wrapper_sets(_finder_of), _WRAPPER_END,
         "workload.codeflare.dev/appwrapper-controller", "Job", "RayCluster", "MPIJob",
         "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "ReplicaSet", "StatefulSet"),
    # Executors belong to the driver's pod.
    _row("sparkoperator.k8s.io/v1beta2", "SparkApplication", "sparkapplications", spark_sets,
         _SPARK_END, "", "Pod", managed_by=""),
)
# fmt: on

_BY_GROUP_KIND = {(adapter.kind.group, adapter.kind.kind): adapter for adapter in ADAPTERS}
_BY_KIND = {adapter.kind.kind: adapter for adapter in ADAPTERS}
_ABOVE: dict[str, tuple[str, ...]] = {}
for _adapter in ADAPTERS:
    for _maker in _adapter.makers:
        _ABOVE[_maker] = (*_ABOVE.get(_maker, ()), _adapter.kind.kind)


def adapter_for(api_version: str, kind: str) -> Adapter | None:
    """Find a kind's row; the API group counts, the version doesn't."""
    return _BY_GROUP_KIND.get((api_version.rpartition("/")[0], kind))


def adapter_of_kind(kind: str) -> Adapter | None:
    """Find the row of a kind in the books, where only kinds of the table are."""
    return _BY_KIND.get(kind)


def kinds_above(maker: str) -> tuple[str, ...]:
    """List the kinds whose pods a controller of this kind may make in their stead."""
    return _ABOVE.get(maker, ())


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
