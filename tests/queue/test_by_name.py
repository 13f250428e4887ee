"""Live views of what reflectors keep, by the texts that name objects."""

import pytest

from fairslice.kube.reflector import Key
from fairslice_queue.by_name import PodsByName, WorkloadsByName

from .test_reconcile import pod, work


def test_pods_are_found_by_namespace_and_name() -> None:
    store = {pod(name).where: pod(name) for name in ("a", "b")}
    named = PodsByName(store)
    assert named["cv/a"].name == "a"
    assert sorted(named) == ["cv/a", "cv/b"]
    assert list(named.values()) == list(store.values())
    assert pod("b") in named.values()
    assert named.get("cv/c") is None
    store[Key("cv", "c")] = pod("c")
    assert (len(named), len(named.values()), "cv/c" in named) == (3, 3, True)


def test_workloads_of_all_kinds_are_found_by_kind_namespace_and_name() -> None:
    job, cluster = work(), work(kind="RayCluster", booking="r")
    named = WorkloadsByName({"Job": {job.where: job}, "RayCluster": {cluster.where: cluster}})
    assert named["Job/cv/x"] is job
    assert named["RayCluster/cv/x"] is cluster
    assert list(named) == ["Job/cv/x", "RayCluster/cv/x"]
    assert list(named.values()) == [job, cluster]
    assert named.get("JobSet/cv/x") is None
    with pytest.raises(KeyError):
        named["Job/cv/other"]
