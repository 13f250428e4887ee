"""Hiding by the API server itself gives pods what the webhook's hiding would give them."""

import random
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jsonpatch
import msgspec
import pytest
import pytest_asyncio

from fairslice.kube.objects import PodSpec
from fairslice.v1alpha1.policy import HidingSpec
from fairslice_webhook.hiding import hide_pod

from .harness.client import Api, Refused
from .harness.installation import get_policy, set_policy
from .harness.kinds import Obj
from .harness.manifests import pod
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.waiting import eventually

_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_EXTRA = "DOCKER_RESOURCE_GPU"
_NAMES = (
    *("NVIDIA_VISIBLE_DEVICES",) * 3,
    *("NVIDIA_GDS", "NVIDIA_MIG_CONFIG_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", _EXTRA),
    *("NVIDIA_DRIVER_CAPABILITIES", "CUDA_VERSION", "PATH", "HOME"),
)
_VALUES = ("all", "none", "void", "void", "", "0,1", "$(HOME)")
_PODS = 150


@pytest_asyncio.fixture(loop_scope="session")
async def hiding(scene: Scene, fairslice: Fairslice) -> AsyncIterator[Scene]:
    """A scene on a cluster that hides by itself, one more variable than usual."""
    if scene.target.name != "real":
        pytest.skip("the sandbox's API server evaluates no MutatingAdmissionPolicy")
    before = await get_policy(scene.api)
    assert before is not None
    if int((await scene.api.call("GET", "/version")).obj["minor"].rstrip("+")) < 36:
        pytest.skip("this API server is older than 1.36")
    changed = {**before, "spec": {**before["spec"], "hiding": {"extraEnv": [_EXTRA]}}}
    await set_policy(scene.api, changed)

    namespace = await scene.namespace()
    peeping = pod("probe", namespace, 0)
    peeping["spec"]["containers"][0]["env"] = [{"name": _EXTRA, "value": "all"}]

    async def in_force() -> bool:
        made = (await scene.api.create(peeping, dry_run=True)).obj
        return _EXTRA not in str(made["spec"])

    await eventually("the policy hides the extra variable", in_force, within=10)
    for name in ("nvidia", "nvidia-overhead"):
        body: Obj = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
        body["metadata"] = {"name": name}
        if name.endswith("overhead"):
            body["overhead"] = {"podFixed": {"memory": "64Mi"}}
        await scene.api.call("POST", _RUNTIME_CLASSES, body)
    yield scene
    for name in ("nvidia", "nvidia-overhead"):
        await scene.api.call("DELETE", f"{_RUNTIME_CLASSES}/{name}")
    await set_policy(scene.api, before)


async def _policy(api: Api) -> Obj | None:
    try:
        return (await api.call("GET", f"{_POLICIES}/fairslice-hide")).obj
    except Refused as refusal:
        if refusal.status == 404:
            return None
        raise


async def _seen_by_webhook(fairslice: Fairslice) -> float:
    """Count the reviews that the webhook has answered."""
    url = f"http://{fairslice.webhook_health}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    counts = [line for line in lines if line.startswith("fairslice_admission_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def _variable(chance: random.Random) -> Obj:
    name = chance.choice(_NAMES)
    if chance.random() < 0.15:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    value = chance.choice(_VALUES)
    return {"name": name, "value": value} if value else {"name": name}


def _containers(chance: random.Random, stem: str, least: int) -> list[Obj]:
    made = []
    for index in range(chance.randint(least, least + 2)):
        container: Obj = {"name": f"{stem}{index}", "image": "x"}
        if chance.random() < 0.8:
            many = 60 if chance.random() < 0.1 else 6
            container["env"] = [_variable(chance) for _ in range(chance.randint(0, many))]
        if stem == "init" and chance.random() < 0.3:
            container["restartPolicy"] = "Always"
        made.append(container)
    return made


def _generated(chance: random.Random, namespace: str) -> Obj:
    spec: Obj = {"containers": _containers(chance, "app", 1)}
    if chance.random() < 0.6:
        spec["initContainers"] = _containers(chance, "init", 0)
    if chance.random() < 0.3:
        spec["runtimeClassName"] = chance.choice(("nvidia", "nvidia-overhead"))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "made-", "namespace": namespace},
        "spec": spec,
    }


def _hidden_by_webhook(spec: Obj) -> Obj:
    """Apply what the webhook's hiding would do to a spec."""
    hidden = hide_pod(msgspec.convert(spec, PodSpec), HidingSpec(extra_env=(_EXTRA,)))
    patch = [
        {
            key: getattr(op, key)
            for key in ("op", "path", "value")
            if getattr(op, key) is not msgspec.UNSET
        }
        for op in hidden.ops
    ]
    done: Obj = jsonpatch.apply_patch({"spec": spec}, patch)["spec"]
    return done


def _shown(spec: Obj) -> Obj:
    """What hiding is about: each container's environment, and the runtime class."""
    env = {
        container["name"]: [_plain(item) for item in container.get("env") or ()]
        for field in ("containers", "initContainers")
        for container in spec.get(field) or ()
    }
    return {"env": env, "runtimeClassName": spec.get("runtimeClassName")}


def _plain(variable: Obj) -> Any:
    source = (variable.get("valueFrom") or {}).get("fieldRef")
    return variable["name"], variable.get("value", ""), source["fieldPath"] if source else None


async def test_generated_pods_come_out_as_from_the_webhook(
    hiding: Scene, fairslice: Fairslice
) -> None:
    namespace = await hiding.namespace()
    chance = random.Random(20261130)
    before = await _seen_by_webhook(fairslice)
    for _ in range(_PODS):
        asked = _generated(chance, namespace)
        overhead = str(asked["spec"].get("runtimeClassName", "")).endswith("overhead")
        wanted = _hidden_by_webhook(
            # The API server writes the class's overhead before anyone is asked.
            {**asked["spec"], **({"overhead": {"memory": "64Mi"}} if overhead else {})}
        )
        made = (await hiding.api.create(asked, dry_run=True)).obj
        assert _shown(made["spec"]) == _shown(wanted), asked
        # What comes out goes in again unchanged.
        again = {**asked, "spec": made["spec"]}
        assert _shown((await hiding.api.create(again, dry_run=True)).obj["spec"]) == _shown(wanted)
    assert await _seen_by_webhook(fairslice) == before


async def test_new_ephemeral_containers_are_hidden_and_old_ones_kept(
    hiding: Scene, fairslice: Fairslice
) -> None:
    namespace = await hiding.namespace()
    await hiding.api.create(pod("host", namespace, 0))
    before = await _seen_by_webhook(fairslice)
    for number in (1, 2):
        peeping = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        debug = {"name": f"debug-{number}", "image": "x", "env": peeping}
        found = await hiding.api.get("Pod", "host", namespace)
        others = found["spec"].get("ephemeralContainers") or []
        body = {"spec": {"ephemeralContainers": [*others, debug]}}
        made = await hiding.api.patch(
            "Pod", "host", body, namespace, subresource="ephemeralcontainers"
        )
        for container in made.obj["spec"]["ephemeralContainers"]:
            assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert await _seen_by_webhook(fairslice) == before


async def test_exempt_pods_are_left_alone(hiding: Scene) -> None:
    asked = pod("exempt", hiding.target.exempt_namespace, 0)
    made = (await hiding.api.create(asked, dry_run=True)).obj
    assert "env" not in made["spec"]["containers"][0]


async def test_a_pod_that_asks_for_gpus_is_still_the_webhooks(
    hiding: Scene, fairslice: Fairslice
) -> None:
    namespace = await hiding.namespace()
    before = await _seen_by_webhook(fairslice)
    asked = pod("asks", namespace, 1)
    asked["spec"]["containers"].append({"name": "beside", "image": "x"})
    made = (await hiding.api.create(asked, dry_run=True)).obj
    assert "env" not in made["spec"]["containers"][0]
    assert made["spec"]["containers"][1]["env"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    ]
    assert await _seen_by_webhook(fairslice) > before


async def test_guards_see_pods_without_gpus_that_open_a_way_to_devices(hiding: Scene) -> None:
    team = await hiding.team("nlp", {"a100": ("1", "1")})
    opening = pod("opening", team.namespace, 0)
    opening["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(Refused, match="privileged"):
        await team.create(opening)
    volumes = [{"name": "d", "hostPath": {"path": "/dev"}}]
    with pytest.raises(Refused, match="/dev"):
        await team.create(pod("mounting", team.namespace, 0, volumes=volumes))


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize(
    ("containers", "variables"), [(1, 256), (32, 8), (1, 257), (1, 5_000), (1, 50_000)]
)
async def test_absurd_environments_are_hidden_in_good_time(
    hiding: Scene, containers: int, variables: int
) -> None:
    """Up to the size guards in the API server, beyond them by the webhook."""
    namespace = await hiding.namespace()
    names = ("CUDA_MPS_X", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_GDS", "OTHER")
    asked = pod("absurd", namespace, 0)
    asked["spec"]["containers"] = [
        {
            "name": f"c{number}",
            "image": "x",
            "env": [{"name": names[n % 4], "value": "1"} for n in range(variables)],
        }
        for number in range(containers)
    ]
    started = time.monotonic()
    made = (await hiding.api.create(asked, dry_run=True)).obj
    assert time.monotonic() - started < 10.0
    for container in made["spec"]["containers"]:
        left = {(item["name"], item["value"]) for item in container["env"]}
        assert left == {("NVIDIA_VISIBLE_DEVICES", "void"), ("OTHER", "1")}


async def test_a_manifest_that_was_hidden_can_be_applied_again(
    hiding: Scene, fairslice: Fairslice
) -> None:
    namespace = await hiding.namespace()
    asked = pod("again", namespace, 0)
    peeping = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": _EXTRA, "value": "1"}]
    asked["spec"]["containers"][0]["env"] = [{"name": "MODEL", "value": "bert"}, *peeping]
    asked["spec"]["runtimeClassName"] = "nvidia"
    before = await _seen_by_webhook(fairslice)
    first = (await hiding.api.apply(asked)).obj
    again = (await hiding.api.apply(asked)).obj
    assert again["spec"] == first["spec"]
    assert await _seen_by_webhook(fairslice) == before
    asked["spec"]["containers"][0]["env"][0]["value"] = "gpt"
    with pytest.raises(Refused, match="may not change fields"):
        await hiding.api.apply(asked)


async def test_what_was_there_before_hiding_is_not_changed_by_an_update(hiding: Scene) -> None:
    exempt = hiding.target.exempt_namespace
    asked = pod("before", exempt, 0)
    asked["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    made = (await hiding.api.create(asked)).obj
    policy = await get_policy(hiding.api)
    assert policy is not None
    spec = {**policy["spec"], "exempt": policy["spec"]["exempt"][:1]}
    await set_policy(hiding.api, {**policy, "spec": spec})

    async def hides() -> bool:
        probe = pod("probe", exempt, 0)
        return "void" in str((await hiding.api.create(probe, dry_run=True)).obj["spec"])

    await eventually("the namespace is hidden", hides, within=10)
    # Tolerations may be added, finalizers too.
    more = {"key": "x", "operator": "Exists", "effect": "NoSchedule"}
    body = {"spec": {"tolerations": [*(made["spec"].get("tolerations") or []), more]}}
    answer = await hiding.api.patch("Pod", "before", body, exempt)
    assert answer.obj["spec"]["containers"] == made["spec"]["containers"]
    await set_policy(hiding.api, policy)


async def test_a_team_that_is_not_hidden_brings_the_webhooks_entry_back(
    hiding: Scene, fairslice: Fairslice
) -> None:
    off = await hiding.team("open", {"a100": ("1", "1")}, mode={"hide": "Off"})
    hidden = await hiding.namespace()
    await eventually("the policy is gone", lambda: _policy(hiding.api), lambda found: not found)

    async def env_in(namespace: str) -> Any:
        made = (await hiding.api.create(pod("plain", namespace, 0), dry_run=True)).obj
        return made["spec"]["containers"][0].get("env")

    await eventually("the team is left alone", lambda: env_in(off.namespace), lambda env: not env)
    assert await env_in(hidden) == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    await hiding.target.disown("Team", off.name)
    hiding.teams.remove(off.name)
    await eventually("the policy is back", lambda: _policy(hiding.api))
    await eventually("it hides", lambda: env_in(off.namespace))


def _awkward() -> dict[str, list[Obj]]:
    """Environments that cost most of what the API server grants an expression."""
    seen = "NVIDIA_VISIBLE_DEVICES"
    long = [{"name": f"{seen}{'X' * 10_000}{n}", "value": "all"} for n in range(255)]
    pipes = [{"name": f"CUDA_MPS_{'X' * 10_000}{n}", "value": "all"} for n in range(255)]
    wide = [{"name": seen, "value": "void" + " " * 10_000}] * 256
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    return {
        "long names": [*long, {"name": seen, "value": "all"}],
        "long names that are hidden": [*pipes, {"name": seen, "value": "all"}],
        "long values": wide,
        "one name": [{"name": seen, "value": "all"}] * 256,
        "sources": [{"name": seen, "valueFrom": source}] * 256,
    }


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("what", _awkward())
async def test_no_environment_costs_so_much_that_it_is_left_as_it_is(
    hiding: Scene, what: str
) -> None:
    namespace = await hiding.namespace()
    asked = pod("awkward", namespace, 0)
    asked["spec"]["containers"][0]["env"] = _awkward()[what]
    started = time.monotonic()
    made = (await hiding.api.create(asked, dry_run=True)).obj
    assert time.monotonic() - started < 10.0
    env = made["spec"]["containers"][0]["env"]
    values = [item.get("value") for item in env if item["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert values == ["void"]
