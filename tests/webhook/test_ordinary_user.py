"""More that an ordinary user tries: each is refused, put back or neutralised."""

from copy import deepcopy
from typing import Any

import pytest

from fairslice.kube.objects import Container, EnvFrom
from fairslice.v1alpha1.policy import HidingSpec
from fairslice_webhook.decide import Phase
from fairslice_webhook.guards import container_breaches, sets_devices

from .conftest import MakeCluster
from .scene import (
    A100,
    GPU,
    JOB_CONTROLLER,
    QUEUE,
    RS_CONTROLLER,
    SLICE_10,
    T4_SHARED,
    Cluster,
    Verdict,
    a100_node,
    container,
    job,
    modes,
    node,
    notebook,
    owner,
    pod,
    policy,
    replica,
    review,
    team,
    view,
)

BOOKING = "system.fairslice.io/booking"
ASSIGNMENT = "system.fairslice.io/assignment"
STATE = "system.fairslice.io/state"
TRAINING = {"fairslice.io/class": "training"}
NODES = (a100_node(),)


def limited(gpus: str, **spec: Any) -> Any:
    return view(teams=(team(pools=[{"pool": "a100", "limit": gpus}], **spec),))


async def waiting_job(place: Cluster) -> Verdict:
    await place.create(job("first"))
    waiting = await place.create(job("second"))
    assert waiting.spec["suspend"] is True
    return waiting


# Stamps and annotations.


@pytest.mark.parametrize("where", ["annotations", "labels"])
async def test_no_stamp_sent_by_a_user_survives_on_any_kind_of_pod(
    cluster: MakeCluster, where: str
) -> None:
    place = await cluster()
    forged = {f"system.fairslice.io/{name}": "x" for name in ("state", "managed", "user", "pod")}
    for body in (notebook(), pod("plain", container()), replica("x")):
        body = deepcopy(body)
        body["metadata"][where] = {**(body["metadata"].get(where) or {}), **forged}
        done = await place.create(body)
        kept = getattr(done, where)
        assert "x" not in [kept.get(key) for key in forged]


async def test_a_released_jobs_assignment_on_a_bare_pod_is_worth_nothing(
    cluster: MakeCluster,
) -> None:
    place = await cluster(limited("1"))
    released = await place.create(job())
    stamp = released.spec["template"]["metadata"]["annotations"]
    for labels in (TRAINING, {}):
        copied = pod("copy", container(), annotations=dict(stamp), labels=dict(labels))
        assert (await place.create(copied)).obj["spec"]["containers"][0]["resources"] == {}
        greedy = pod("greedy", annotations=dict(stamp), labels=dict(labels))
        done = await place.create(greedy)
        assert not done.allowed or done.gated
    assert (await place.ledger.held("nlp")).pools == {"a100": 1000}


async def test_a_forged_owner_takes_no_more_than_the_job_booked(cluster: MakeCluster) -> None:
    place = await cluster(limited("1"))
    released = await place.create(job())
    meta = released.obj["metadata"]
    for number, uid in enumerate([meta["uid"], meta["uid"], "another"]):
        forged = pod(
            f"forged-{number}",
            annotations=dict(released.spec["template"]["metadata"]["annotations"]),
            labels=dict(released.spec["template"]["metadata"]["labels"]),
            ownerReferences=[owner("Job", meta["name"], uid=uid)],
        )
        done = await place.create(forged)
        # The first one takes the place of the Job's own pod, never one more.
        assert done.gated is (number > 0)
    assert (await place.ledger.held("nlp")).pools == {"a100": 1000}


async def test_a_pod_that_says_it_is_of_a_rollout_is_no_surge(cluster: MakeCluster) -> None:
    place = await cluster(limited("0.25"))
    assert not (await place.create(replica("a", "old"), RS_CONTROLLER)).gated
    # Made by hand, under the name of the same Deployment's next ReplicaSet.
    forged = await place.create(replica("b", "new"))
    assert forged.gated
    held = await place.ledger.held("nlp")
    assert (held.pools, held.surge) == ({"a100": 250}, {})
    assert forged.annotations["system.fairslice.io/user"] == "alice"


async def test_a_forged_owner_does_not_escape_the_users_own_cap(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(userLimit="0.25"),)))
    assert not (await place.create(replica("a"))).gated
    assert (await place.create(replica("b"))).gated
    assert (await place.ledger.held("nlp")).users == {"alice": 250}
    bot = "system:serviceaccount:nlp:bot"
    assert (await place.create(replica("c"), bot)).annotations["system.fairslice.io/user"] == bot


@pytest.mark.parametrize("kind", ["ConfigMap", "ReplicationController", "Job", "Workflow"])
async def test_no_object_of_ones_own_stands_in_for_ones_own_cap(
    cluster: MakeCluster, kind: str
) -> None:
    place = await cluster(view(teams=(team(userLimit="0.25"),)))
    group = {"Job": "batch/v1", "Workflow": "argoproj.io/v1alpha1"}.get(kind, "v1")

    def owned(name: str, by: str) -> Any:
        return notebook(name, ownerReferences=[owner(kind, by, group)])

    for number in range(2):
        await place.create(owned(f"nb-{number}", f"mine-{number}"))
    refused = await place.create(owned("nb-2", "mine-2"))
    assert refused.gated
    assert (await place.ledger.held("nlp")).users == {"alice": 250}
    # Installed elsewhere, an operator makes pods for its objects.
    operator = "system:serviceaccount:operators:argo"
    made = await place.create(owned("nb-3", "theirs"), operator)
    assert made.annotations["system.fairslice.io/user"] == f"{kind}/theirs"


# Un-suspending, un-gating, editing what waits.


async def test_unsuspending_is_put_back_in_a_dry_run_too(cluster: MakeCluster) -> None:
    place = await cluster(limited("1"))
    waiting = await waiting_job(place)
    freed = deepcopy(waiting.obj)
    freed["spec"]["suspend"] = False
    for dry in (False, True):
        done = await place.update(freed, waiting.obj, dryRun=dry)
        assert done.allowed
        assert done.spec["suspend"] is True


async def test_unsuspending_brings_no_larger_request_along(cluster: MakeCluster) -> None:
    place = await cluster(limited("1"))
    waiting = await waiting_job(place)
    freed = deepcopy(waiting.obj)
    freed["spec"]["suspend"] = False
    freed["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "4"
    refused = await place.update(freed, waiting.obj)
    assert refused.code == 422
    assert "submit it again" in refused.message


@pytest.mark.parametrize(
    "edit",
    [
        {"annotations": {"fairslice.io/gpu-memory": "70Gi"}},
        {"labels": {"fairslice.io/class": "production"}},
        {"annotations": {ASSIGNMENT: '{"booking":"b"}'}},
    ],
)
async def test_a_waiting_jobs_template_does_not_become_more(
    cluster: MakeCluster, edit: dict[str, Any]
) -> None:
    place = await cluster(limited("1"))
    waiting = await waiting_job(place)
    new = deepcopy(waiting.obj)
    for key, values in edit.items():
        meta = new["spec"]["template"]["metadata"]
        meta[key] = {**(meta.get(key) or {}), **values}
    done = await place.update(new, waiting.obj)
    before = waiting.spec["template"]["metadata"]
    if done.allowed:
        after = done.spec["template"]["metadata"]
        assert {key: after.get(key) or {} for key in ("labels", "annotations")} == {
            key: before.get(key) or {} for key in ("labels", "annotations")
        }


async def test_a_node_named_in_a_template_is_refused_at_its_pods(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(job())
    made = pod(
        "",
        generateName="train-",
        nodeName="a1",
        annotations=dict(stored.spec["template"]["metadata"]["annotations"]),
        ownerReferences=[owner("Job", "train", uid=stored.obj["metadata"]["uid"])],
    )
    assert "nodeName" in (await place.mutate(made, JOB_CONTROLLER)).message


async def test_a_gate_is_taken_off_neither_alone_nor_among_others(cluster: MakeCluster) -> None:
    place = await cluster(limited("1"))
    await place.create(pod("first", labels=TRAINING))
    waiting = await place.create(pod("second", labels=TRAINING))
    for gates in (None, [], [{"name": "other/gate"}]):
        freed = deepcopy(waiting.obj)
        freed["spec"]["schedulingGates"] = gates
        freed["metadata"]["labels"].pop("system.fairslice.io/managed")
        assert not (await place.update(freed, waiting.obj)).allowed


async def test_the_queues_name_is_not_enough(cluster: MakeCluster) -> None:
    place = await cluster(limited("1"))
    await place.create(pod("first", labels=TRAINING))
    waiting = await place.create(pod("second", labels=TRAINING))
    freed = deepcopy(waiting.obj)
    freed["spec"]["schedulingGates"] = []
    for user in (QUEUE.replace("fairslice-system", "nlp"), "fairslice-queue", QUEUE + "x"):
        assert not (await place.update(freed, waiting.obj, user)).allowed


# Classes and priorities.


async def test_a_class_that_the_team_may_not_use_is_refused_by_every_route(
    cluster: MakeCluster,
) -> None:
    seen = view(teams=(team(allowedClasses=["experiment"], defaultClass="experiment"),))
    place = await cluster(seen)
    by_label = pod("a", labels={"fairslice.io/class": "production"})
    by_priority = pod("b", priorityClassName="fairslice-production", priority=1_000_000)
    of_a_job = job(metadata={"labels": {"fairslice.io/class": "production"}})
    for body in (by_label, by_priority, of_a_job):
        refused = await place.mutate(body)
        assert "not granted to team nlp" in refused.message
        assert "experiment" in refused.message


async def test_a_high_priority_of_others_is_replaced_even_without_a_class(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    for name in ("system-node-critical", "my-high"):
        body = pod("p-" + name, priorityClassName=name, priority=2_000_001_000)
        done = await place.create(body)
        assert done.spec["priorityClassName"] == "fairslice-experiment"
        assert done.spec["priority"] == 980_000
        assert any(f"PriorityClass {name} replaced" in text for text in done.warnings)
        assert done.limits() == {GPU: "1"}  # no class was chosen, so nothing shrinks
    assert "priorityClassName" not in (await place.create(pod("plain"))).spec


async def test_the_class_of_a_running_pod_can_not_be_switched(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    for labels in ({**stored.labels, "fairslice.io/class": "production"}, {}):
        changed = deepcopy(stored.obj)
        changed["metadata"]["labels"] = labels
        done = await place.update(changed, stored.obj)
        assert done.labels == stored.labels


# Devices.


LATE = {
    "cdi.k8s.io/gpu": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io/container.main": "all",
    "devices.noderesource.dev/container.main": "- path: /dev/nvidia0",
    "cdi-devices.noderesource.dev": "- nvidia.com/gpu=all",
    "devices.gke.io/container.main": "- path: /dev/nvidia0",
    "io.kubernetes.cri-o.Devices": "/dev/nvidia0",
    "devices.crio.io": "/dev/nvidia0",
}


@pytest.mark.parametrize("key", LATE)
async def test_an_annotation_that_injects_devices_is_refused_later_too(
    cluster: MakeCluster, key: str
) -> None:
    place = await cluster()
    stored = await place.create(pod("plain", container()))
    changed = deepcopy(stored.obj)
    changed["metadata"]["annotations"] = {key: LATE[key]}
    assert key in (await place.update(changed, stored.obj)).message
    # What was there before fairslice may go, or stay.
    assert (await place.update(stored.obj, changed)).allowed
    assert (await place.update(changed, changed)).allowed


@pytest.mark.parametrize(
    ("prefix", "may"),
    [
        ("", True),
        ("NVIDIA_", True),
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("NVIDIA_IMEX_", True),
        ("NVIDIA_IMEX_X", False),
        ("CUDA_", True),
        ("CUDA_MPS_PIPE_", True),
        ("DOCKER_", True),
        ("APP_", False),
    ],
)
def test_only_a_prefix_that_can_make_the_name_counts(prefix: str, may: bool) -> None:
    item = Container(
        name="main",
        env_from=(EnvFrom(prefix=prefix),),
        resources=None,
    )
    assert sets_devices(item, HidingSpec(extra_env=("DOCKER_RESOURCE_GPU",))) is may


async def test_a_prefix_does_not_open_devices_to_a_container_without_gpus(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    source = [{"prefix": "NVIDIA_", "configMapRef": {"name": "c"}}]
    done = await place.create(pod("p", container(envFrom=source)))
    # An explicit value beats whatever envFrom brings.
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
    strict = await cluster(view(policy(hiding={"strictEnvFrom": True})))
    body = pod("g", container(gpus=1, envFrom=source), labels=TRAINING)
    assert "envFrom" in (await strict.mutate(body)).message
    harmless = [{"prefix": "APP_", "configMapRef": {"name": "c"}}]
    fine = pod("h", container(gpus=1, envFrom=harmless), labels=TRAINING)
    done = await strict.mutate(fine)
    assert done.allowed, done.message
    assert not any("envFrom" in text for text in done.warnings)


@pytest.mark.parametrize("added", ["SYS_ADMIN", "CAP_SYS_ADMIN", "sys_admin", "ALL", "cap_all"])
async def test_capabilities_are_refused_however_they_are_written(
    cluster: MakeCluster, added: str
) -> None:
    place = await cluster()
    security = {"capabilities": {"add": ["NET_BIND_SERVICE", added]}}
    for body in (
        pod("p", container(securityContext=security)),
        pod("i", container(), initContainers=[container("i", securityContext=security)]),
    ):
        assert "CAP_SYS_ADMIN" in (await place.mutate(body)).message
    modest = {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}
    assert (await place.mutate(pod("p", container(securityContext=modest)))).allowed


def debugger(**fields: Any) -> dict[str, Any]:
    return {"name": "dbg", "image": "cuda", **fields}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"securityContext": {"privileged": True}}, "privileged"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "CAP_SYS_ADMIN"),
        (
            {"volumeMounts": [
                {"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]},
            "nvidia-container-devices",
        ),
    ],
)  # fmt: skip
async def test_ephemeral_containers_are_held_to_the_same_rules(
    cluster: MakeCluster, fields: dict[str, Any], word: str
) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    new = deepcopy(stored.obj)
    new["spec"]["ephemeralContainers"] = [debugger(**fields)]
    refused = await place.update(new, stored.obj, subResource="ephemeralcontainers")
    assert word in refused.message


async def test_a_debugger_sees_no_gpu_and_old_ones_stay_as_they_are(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    new = deepcopy(stored.obj)
    new["spec"]["ephemeralContainers"] = [
        debugger(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    ]
    done = await place.update(new, stored.obj, subResource="ephemeralcontainers")
    (made,) = done.spec["ephemeralContainers"]
    assert made["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    body = review(new, stored.obj, subResource="ephemeralcontainers")
    assert not (await place.call(body, new, Phase.VALIDATE)).allowed
    # What is there can't be changed any more, so it is in nobody's way.
    again = deepcopy(new)
    again["spec"]["ephemeralContainers"].append(debugger() | {"name": "second"})
    done = await place.update(again, new, subResource="ephemeralcontainers")
    assert [op["path"] for op in done.patch] == ["/spec/ephemeralContainers/1/env"]


async def test_a_runtime_class_without_gpus_is_taken_away(cluster: MakeCluster) -> None:
    place = await cluster()
    for name in ("nvidia", "nvidia-legacy", "nvidia-cdi"):
        done = await place.create(pod("p" + name, container(), runtimeClassName=name))
        assert "runtimeClassName" not in done.spec
    with_gpu = await place.create(notebook(runtimeClassName="nvidia"))
    assert with_gpu.spec["runtimeClassName"] == "nvidia"
    zero = pod("zero", container(gpus="0"), runtimeClassName="nvidia")
    zero["spec"]["containers"][0]["resources"] = {"limits": {GPU: "0"}, "requests": {GPU: "0"}}
    assert "runtimeClassName" not in (await place.create(zero)).spec


@pytest.mark.parametrize(
    "path",
    ["/", "/var", "/var/run", "/run", "/etc", "/var/lib", "/dev", "/dev/nvidia0", "/etc/kubernetes",
     "/etc/kubernetes/manifests", "/etc/containerd", "/run/podman/podman.sock", "/var/snap",
     "/var/run/nvidia-container-devices", "/run/../dev", "/proc/1/root"],
)  # fmt: skip
async def test_host_paths_to_devices_and_their_parents_are_refused(
    cluster: MakeCluster, path: str
) -> None:
    place = await cluster()
    body = pod("p", container(), volumes=[{"name": "v", "hostPath": {"path": path}}])
    assert "hostPath" in (await place.mutate(body)).message


async def test_a_static_pods_mark_is_believed_of_kubelets_alone(cluster: MakeCluster) -> None:
    place = await cluster()
    marked = pod(
        "p",
        container(securityContext={"privileged": True}),
        annotations={"kubernetes.io/config.mirror": "x"},
    )
    assert not (await place.mutate(marked)).allowed
    kubelet = {"username": "system:node:a1", "groups": ["system:nodes"]}
    assert (await place.mutate(marked, userInfo=kubelet)).allowed


async def test_an_exempt_account_counts_in_its_own_namespace_alone(cluster: MakeCluster) -> None:
    rules = policy(exempt=[{"namespace": "gpu-operator", "serviceAccounts": ["driver"]}])
    place = await cluster(view(rules, (team(namespaces=["nlp", "gpu-operator"]),)))
    opens = container(securityContext={"privileged": True})
    inside = pod("d", opens, namespace="gpu-operator", serviceAccountName="driver")
    assert (await place.mutate(inside)).patch == []
    other = pod("d", opens, namespace="gpu-operator", serviceAccountName="default")
    assert not (await place.mutate(other)).allowed
    elsewhere = pod("d", opens, serviceAccountName="driver")
    elsewhere["metadata"]["labels"] = {"app": "nvidia-driver-daemonset"}
    assert not (await place.mutate(elsewhere)).allowed


def test_guards_of_a_container_are_silent_about_plain_ones() -> None:
    assert list(container_breaches(Container(name="c"), HidingSpec())) == []


# Requests that people get wrong.


WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"limits": {GPU: "1", SLICE_10: "1"}}, (GPU, SLICE_10)),
    ({"limits": {"nvidia.com/mig-1g.12gb": "1"}}, ("mig-1g.12gb", "no node advertises it")),
    ({"limits": {"nvidia.com/mig-1g10gb": "1"}}, ("mig-1g10gb",)),
    ({"limits": {GPU: "-2"}}, ("-2",)),
    ({"limits": {GPU: "two"}}, ("'two'",)),
    ({"limits": {GPU: "1500m"}}, ("1.5",)),
    ({"limits": {"nvidia.com/gpu.shared": "2"}}, ("2", "whole GPUs")),
    ({"limits": {GPU: "2"}, "requests": {GPU: "1"}}, ("limit 2", "request 1")),
    ({"requests": {GPU: "1"}}, ("nvidia.com/gpu: 1", "limit")),
]


@pytest.mark.parametrize(("resources", "words"), WRONG)
async def test_what_can_not_be_meant_is_told_with_container_value_and_what_exists(
    cluster: MakeCluster, resources: dict[str, Any], words: tuple[str, ...]
) -> None:
    nodes = (node("s", {}, {"nvidia.com/gpu.shared": 4}), *NODES)
    place = await cluster(view(nodes=nodes))
    body = pod("p", {**container("trainer"), "resources": resources}, labels=TRAINING)
    of_job = job(template={"metadata": {}, "spec": body["spec"]})
    for obj in (body, of_job):
        refused = await place.mutate(obj)
        assert refused.code == 422
        for word in ("container trainer", *words, "this cluster has", "mig-1g.10gb (A100"):
            assert word in refused.message


async def test_several_replicas_by_a_common_name_are_refused_alike(cluster: MakeCluster) -> None:
    teams = (team(pools=[{"pool": "t4", "limit": "4"}]),)
    place = await cluster(view(teams=teams, nodes=(node("t", T4_SHARED, {GPU: 4}),)))
    refused = await place.mutate(pod("p", container("trainer", gpus=2)))
    for word in ("container trainer", "2 × nvidia.com/gpu", "gpu (Tesla-T4 1/4)"):
        assert word in refused.message


async def test_names_that_no_single_node_offers_together_are_refused(cluster: MakeCluster) -> None:
    apart = (node("w", A100, {GPU: 8}), node("s", A100, {SLICE_10: 7}))
    body = pod("p", container("a", gpus=1), container("b", gpus=1, resource=SLICE_10))
    place = await cluster(view(nodes=apart))
    assert "no single node offers them together" in (await place.mutate(body)).message
    place = await cluster(view(nodes=(*apart, node("both", A100, {GPU: 1, SLICE_10: 7}))))
    assert (await place.create(body)).allowed


async def test_zero_is_no_gpu_and_its_keys_go(cluster: MakeCluster) -> None:
    place = await cluster()
    body = pod("p", {**container(), "resources": {"limits": {GPU: "0"}, "requests": {GPU: "0"}}})
    done = await place.create(body)
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert done.spec["containers"][0]["resources"] == {"limits": {}, "requests": {}}
    assert (await place.ledger.held("nlp")).pools == {}
    # Where nothing is enforced, and where nobody has a team, it stays.
    audited = await cluster(view(policy(modes("Audit"))))
    assert (await audited.mutate(body)).limits() == {GPU: "0"}
    body["metadata"]["namespace"] = "elsewhere"
    assert (await place.mutate(body)).limits() == {GPU: "0"}
