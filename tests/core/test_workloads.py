from typing import Any

import pytest
from msgspec import convert

from fairslice.kube.objects import Job, Taint
from fairslice.node_selection import untolerated
from fairslice.requests import read_pod
from fairslice.workloads import ADAPTERS, WorkloadError, adapter_for, held_pods

GPU = "nvidia.com/gpu"


def _template(gpus: int = 1) -> dict[str, Any]:
    limits = {GPU: str(gpus)}
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}


def _sets(api_version: str, kind: str, spec: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Read an object's pod sets as (path, count, fewest, GPUs per pod)."""
    adapter = adapter_for(api_version, kind)
    assert adapter is not None
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    return [
        (
            item.path,
            item.count,
            item.min_count,
            read_pod(item.template.spec, None).units.get(GPU, 0),
        )
        for item in adapter.pod_sets(obj)
    ]


def test_there_is_one_row_a_kind() -> None:
    kinds = [adapter.kind.kind for adapter in ADAPTERS]
    assert len(set(kinds)) == len(kinds) == 14


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 10}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"parallelism": 4, "completions": None}, 4),
        ({"completions": 5}, 1),
    ],
)
def test_a_job_runs_its_parallelism_but_no_more_than_are_left(
    spec: dict[str, Any], count: int
) -> None:
    found = _sets("batch/v1", "Job", {**spec, "template": _template(2)})
    assert found == [("/spec/template", count, count, 2)]


def test_a_job_of_no_pods_has_no_pod_set() -> None:
    assert _sets("batch/v1", "Job", {"parallelism": 0, "template": _template()}) == []


def test_a_jobset_multiplies_replicas_by_each_jobs_pods() -> None:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": _template()}}
    spec = {
        "replicatedJobs": [
            {"name": "leader", "template": {"spec": {"template": _template(0)}}},
            {"name": "workers", "replicas": 3, "template": job},
        ]
    }
    base = "/spec/replicatedJobs"
    assert _sets("jobset.x-k8s.io/v1alpha2", "JobSet", spec) == [
        (f"{base}/0/template/spec/template", 1, 1, 0),
        (f"{base}/1/template/spec/template", 6, 6, 1),
    ]


_RAY = {
    "headGroupSpec": {"template": _template(0)},
    "workerGroupSpecs": [
        {"groupName": "a", "replicas": 2, "numOfHosts": 2, "template": _template(4)},
        {"groupName": "b", "template": _template(1)},
    ],
}


@pytest.mark.parametrize(
    ("kind", "wrap", "prefix"),
    [
        ("RayCluster", None, "/spec"),
        ("RayJob", "rayClusterSpec", "/spec/rayClusterSpec"),
        ("RayService", "rayClusterConfig", "/spec/rayClusterConfig"),
    ],
)
def test_ray_kinds_have_a_head_and_groups_of_hosts(
    kind: str, wrap: str | None, prefix: str
) -> None:
    spec = {wrap: _RAY} if wrap else _RAY
    assert _sets("ray.io/v1", kind, spec) == [
        (f"{prefix}/headGroupSpec/template", 1, 1, 0),
        (f"{prefix}/workerGroupSpecs/0/template", 4, 4, 4),
        (f"{prefix}/workerGroupSpecs/1/template", 1, 1, 1),
    ]


def test_an_autoscaling_ray_cluster_needs_only_its_fewest() -> None:
    spec = {
        "enableInTreeAutoscaling": True,
        "workerGroupSpecs": [
            {"replicas": 4, "minReplicas": 1, "maxReplicas": 9, "template": _template()},
            {"minReplicas": 2, "template": _template()},
        ],
    }
    assert _sets("ray.io/v1", "RayCluster", spec) == [
        ("/spec/workerGroupSpecs/0/template", 4, 1, 1),
        ("/spec/workerGroupSpecs/1/template", 2, 2, 1),
    ]


def test_a_ray_jobs_own_submitter_template_counts() -> None:
    spec = {"rayClusterSpec": {}, "submitterPodTemplate": _template(1)}
    assert _sets("ray.io/v1", "RayJob", spec) == [("/spec/submitterPodTemplate", 1, 1, 1)]


@pytest.mark.parametrize(
    ("api_version", "kind", "field", "roles"),
    [
        ("kubeflow.org/v2beta1", "MPIJob", "mpiReplicaSpecs", ("Launcher", "Worker")),
        ("kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker")),
        ("kubeflow.org/v1", "TFJob", "tfReplicaSpecs", ("Chief", "PS", "Worker")),
        ("kubeflow.org/v1", "XGBoostJob", "xgbReplicaSpecs", ("Master", "Worker")),
        ("kubeflow.org/v1", "PaddleJob", "paddleReplicaSpecs", ("Master", "Worker")),
        ("kubeflow.org/v1", "JAXJob", "jaxReplicaSpecs", ("Worker",)),
    ],
)
def test_kubeflow_kinds_count_their_roles(
    api_version: str, kind: str, field: str, roles: tuple[str, ...]
) -> None:
    specs: dict[str, Any] = {role: {"template": _template()} for role in roles}
    specs["Worker"]["replicas"] = 3
    found = _sets(api_version, kind, {"runPolicy": {"suspend": True}, field: specs})
    assert [(path, count) for path, count, _, _ in found] == [
        (f"/spec/{field}/{role}/template", 3 if role == "Worker" else 1) for role in roles
    ]
    adapter = adapter_for(api_version, kind)
    assert adapter is not None
    assert adapter.is_suspended({"spec": {"runPolicy": {"suspend": True}}})
    assert not adapter.is_suspended({"spec": {}})


def test_an_elastic_pytorch_job_can_do_with_fewer_workers() -> None:
    spec = {
        "elasticPolicy": {"minReplicas": 2},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": _template()}},
    }
    ((_, count, fewest, _),) = _sets("kubeflow.org/v1", "PyTorchJob", spec)
    assert (count, fewest) == (4, 2)


def test_a_train_job_counts_nodes_and_its_pods_are_annotated_through_its_runtime() -> None:
    spec = {"trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {GPU: "8"}}}}
    assert _sets("trainer.kubeflow.org/v1alpha1", "TrainJob", spec) == [("/spec/trainer", 2, 2, 8)]
    adapter = adapter_for("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert adapter is not None
    (found,) = adapter.pod_sets({"spec": spec})
    holder = found.holder
    # Its runtime, which is not read, says which taints its pods bear.
    taint = Taint(key="gpu", effect="NoSchedule")
    assert untolerated((taint,), found.template.spec.tolerations or ()) is None
    assert holder.startswith("/spec/runtimePatches/0/trainingRuntimeSpec/template/")


def test_an_app_wrapper_is_read_by_declaration_or_by_what_it_wraps() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": _template(2)}}
    deployment = {"kind": "Deployment", "spec": {"template": _template(1)}}
    declared = [{"replicas": 3, "path": "template.spec.template"}]
    spec = {
        "components": [
            {"template": job},
            {"template": deployment, "podSets": declared},
            {"template": {"kind": "Service"}},
            {"template": {"kind": "Pod", **_template(1)}},
        ]
    }
    assert _sets("workload.codeflare.dev/v1beta2", "AppWrapper", spec) == [
        ("/spec/components/0/template/spec/template", 1, 1, 2),
        ("/spec/components/1/template/spec/template", 3, 3, 1),
        ("/spec/components/3/template", 1, 1, 1),
    ]


def test_a_spark_application_has_gpus_beside_its_templates() -> None:
    spec = {
        "driver": {"cores": 1},
        "executor": {
            "instances": 2,
            "gpu": {"name": GPU, "quantity": 1},
            "template": {"spec": {"containers": [{"name": "spark-kubernetes-executor"}]}},
        },
    }
    kind = ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert _sets(*kind, spec) == [("/spec/driver", 1, 1, 0), ("/spec/executor", 2, 2, 1)]
    spec["dynamicAllocation"] = {"enabled": True, "minExecutors": 1, "initialExecutors": 4}
    assert _sets(*kind, spec)[1] == ("/spec/executor", 4, 1, 1)


def test_a_later_version_of_a_known_kind_is_known() -> None:
    assert adapter_for("ray.io/v2", "RayJob") is adapter_for("ray.io/v1", "RayJob")
    assert adapter_for("example.com/v1", "Job") is None
    assert adapter_for("apps/v1", "Deployment") is None


@pytest.mark.parametrize(
    "spec",
    [
        {"parallelism": "4"},
        {"parallelism": -1},
        {"parallelism": True},
        {"template": []},
        {"template": {"spec": {"containers": "none"}}},
    ],
)
def test_an_object_out_of_shape_is_refused_with_its_path(spec: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="/spec/"):
        _sets("batch/v1", "Job", spec)


@pytest.mark.parametrize(
    ("spec", "status", "held"),
    [
        ({"parallelism": 3}, {}, 3),
        ({"parallelism": 3, "completions": 10}, {"succeeded": 8, "active": 2}, 2),
        ({"parallelism": 3, "completions": 3}, {"succeeded": 2, "active": 1, "terminating": 1}, 2),
        ({"parallelism": 3, "suspend": True}, {"active": 0, "terminating": 2}, 2),
        ({"parallelism": 3, "suspend": True}, {}, 0),
        ({"parallelism": 3}, {"succeeded": 1, "active": 1}, 1),
        ({"parallelism": 3}, {"conditions": [{"type": "Complete", "status": "True"}]}, 0),
        ({}, {"active": 1, "terminating": 1}, 2),
    ],
)
def test_a_job_holds_what_it_wants_and_what_is_not_gone(
    spec: dict[str, Any], status: dict[str, Any], held: int
) -> None:
    assert held_pods(convert({"spec": spec, "status": status}, Job)) == held
