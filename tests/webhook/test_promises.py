"""Whatever a pod asks for, on whatever cluster: it never ends with less than it was promised.

Through the whole admission, mutating and validating, on books that answer as they please; judged
by what a unit on the nodes is that the stored pod may land on.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairslice.booking import Booking, State
from fairslice.inventory import Inventory
from fairslice.kube.objects import Node
from fairslice.policy import Policy
from fairslice.workloads import adapter_for
from fairslice_queue.ledger import Attachment, Outcome, Verdict
from fairslice_queue.release_patch import release_patch
from fairslice_webhook.decide import Phase, conclude, decide, without_ledger
from fairslice_webhook.decision import Answer, Attach, Bind, BindPod, Book
from fairslice_webhook.patching import apply
from fairslice_webhook.pod_edits import read_assignment
from fairslice_webhook.review import decode_review
from fairslice_webhook.view import Call, View

from .hardware import A100, KINDS, MIG, SHARED, T4, Share
from .scene import GPU, JOB_CONTROLLER, owner, policy, review, team, view

CALL = Call(1_800_000_000.0, "b" + "1" * 20, "p" + "1" * 20)
AWAY = "away"

CLASSES = (
    {"name": "production", "memory": "20G", "modes": ["mig", "whole"], "isolation": "Required"},
    {"name": "training", "modes": ["whole"]},
    {"name": "experiment", "memory": "10G", "modes": ["mig", "mps", "timeslice", "whole"],
     "overflow": "Reject"},
    {"name": "tiny", "modes": ["timeslice", "mps", "mig", "whole"]},
)  # fmt: skip
EVERY = [str(item["name"]) for item in CLASSES]
POOLS = [
    {"name": "a100", "products": ["NVIDIA-A100-*"]},
    {"name": "small", "products": ["Tesla-T4*", "NVIDIA-A30*"]},
]
RULES: Policy = policy(pools=POOLS, classes=list(CLASSES), rewrite={"fractions": "Memory"})
TEAM = team(
    pools=[{"pool": "a100", "limit": "40"}, {"pool": "small", "limit": "40"}],
    allowedClasses=EVERY,
)


@dataclass(frozen=True)
class Cluster:
    """Nodes, and the kind of hardware that each is."""

    nodes: dict[str, str]

    def seen(self) -> View:
        made = [KINDS[kind].made(name) for name, kind in self.nodes.items()]
        return view(RULES, (TEAM,), tuple(made))

    def landing(self, spec: dict[str, Any]) -> Iterator[dict[str, Share]]:
        """The shares of each node that the kube-scheduler may choose for a pod."""
        names = {name for item in _all(spec) for name in _amounts(item)}
        for name, kind in self.nodes.items():
            found = KINDS[kind]
            if names <= set(found.shares) and _allowed(spec, found.made(name)):
                yield dict(found.shares)


def _allowed(spec: dict[str, Any], node: Node) -> bool:
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(
        all(labels.get(rule["key"]) in rule["values"] for rule in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


def _all(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def _amounts(item: dict[str, Any]) -> dict[str, str]:
    limits = item.get("resources", {}).get("limits", {})
    assert limits == item.get("resources", {}).get("requests", {})
    return {name: str(amount) for name, amount in limits.items() if name.startswith("nvidia.com/")}


def _number(text: str) -> Fraction:
    return Fraction(int(text[:-1]), 1000) if text.endswith("m") else Fraction(text)


NAMES = (GPU, GPU, GPU, GPU, f"{MIG}1g.10gb", f"{MIG}3g.40gb", SHARED, f"{MIG}1g.10gb.shared")
amounts = st.sampled_from(["1", "1", "1", "2", "500m", "125m", "900m", "0"])
resources = st.none() | st.dictionaries(st.sampled_from(NAMES), amounts, min_size=1, max_size=1)


def _container(name: str, asked: dict[str, str] | None, **fields: Any) -> dict[str, Any]:
    found = {"limits": dict(asked), "requests": dict(asked)} if asked else {}
    return {"name": name, "image": "x", "resources": found, **fields}


TERM = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In",
                              "values": [A100, f"{T4}-SHARED", T4]}]}  # fmt: skip
AFFINITIES: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"nodeSelector": {"nvidia.com/gpu.product": A100}},
    {"nodeSelector": {"kubernetes.io/hostname": "n0"}},
    {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
            }
        }
    },
]


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    apps = draw(st.lists(resources, min_size=1, max_size=2))
    inits = draw(st.lists(st.tuples(resources, st.booleans()), max_size=2))
    work_class = draw(st.sampled_from(["", *EVERY]))
    memory = draw(st.sampled_from(["", "", "4Gi", "9500Mi", "10G", "11Gi", "18Gi", "20GB", "70Gi"]))
    meta: dict[str, Any] = {"name": "p", "namespace": "nlp"}
    if work_class:
        meta["labels"] = {"fairslice.io/class": work_class}
    if memory:
        meta["annotations"] = {"fairslice.io/gpu-memory": memory}
    sidecar = {"restartPolicy": "Always"}
    spec: dict[str, Any] = {
        "containers": [_container(f"c{n}", asked) for n, asked in enumerate(apps)],
        **draw(st.sampled_from(AFFINITIES)),
    }
    if inits:
        spec["initContainers"] = [
            _container(f"i{n}", asked, **(sidecar if stays else {}))
            for n, (asked, stays) in enumerate(inits)
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


clusters = st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4, unique=True).map(
    lambda kinds: Cluster({f"n{n}": kind for n, kind in enumerate(kinds)})
)
# Which of its options the books give, or whether it waits, or that they are away.
whims = st.sampled_from([0, 0, 0, 1, 2, 3, "queued", AWAY])


class Books:
    """Books that answer as they please, but keep to what they were asked."""

    def __init__(self, whim: int | str) -> None:
        self.whim = whim
        self.wish: Book | None = None
        self.booking: Booking | None = None

    def book(self, wish: Book) -> Answer:
        self.wish = wish
        request = wish.request
        options = request.booking.options
        if self.whim == AWAY:
            return without_ledger(wish)
        if self.whim == "queued" or not request.start:
            verdict = Verdict.QUEUED if request.overflow_queue else Verdict.DENIED
            outcome = Outcome(verdict=verdict, id=request.booking.id, cause="capacity")
        else:
            chosen = int(self.whim) % len(options)
            outcome = Outcome(
                verdict=Verdict.BOOKED,
                id=request.booking.id,
                chosen=chosen,
                option=options[chosen],
            )
            self.booking = replace(request.booking, state=State.RELEASED, chosen=chosen)
        return conclude(wish, outcome)


def admit(obj: dict[str, Any], seen: View, whim: int | str) -> dict[str, Any] | None:
    """The pod as it is stored; None if it is refused."""
    books = Books(whim)
    stored = _mutated(obj, seen, "alice", books)
    if stored is not None:
        _validated(stored, seen, "alice", books)
    return stored


def admit_together(
    objs: list[dict[str, Any]], seen: View, whim: int | str
) -> list[dict[str, Any]] | None:
    """Pods as a JobSet's Jobs make them, one of each of its sets, whatever it was given."""
    books = Books(0 if whim == AWAY else whim)
    whole = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "nlp", "uid": "u", "resourceVersion": "1"},
        "spec": {"replicatedJobs": [_set(n, obj) for n, obj in enumerate(objs)]},
    }
    started = _mutated(whole, seen, "alice", books)
    if started is None:
        return None
    if started["spec"].get("suspend"):
        assert books.wish is not None
        # The queue lets it go with any of its options.
        booking = books.wish.request.booking
        option = booking.options[len(str(objs)) % len(booking.options)]
        row = adapter_for(whole["apiVersion"], "JobSet")
        assert row is not None
        patch = release_patch(row, started, booking.id, option)
        started = apply(patch, json.dumps(started).encode())
    made = []
    for obj, item in zip(objs, started["spec"]["replicatedJobs"], strict=True):
        template = item["template"]["spec"]["template"]
        meta = {**template["metadata"], "name": "p", "namespace": "nlp"}
        meta["ownerReferences"] = [owner("Job", "train-0", uid="uid-of-train-0")]
        one = Books(whim)
        stored = _mutated({**obj, "metadata": meta}, seen, JOB_CONTROLLER, one)
        if stored is None:
            return None
        _validated(stored, seen, JOB_CONTROLLER, one)
        made.append(stored)
    return made


def _set(number: int, obj: dict[str, Any]) -> dict[str, Any]:
    meta = {key: dict(obj["metadata"].get(key, {})) for key in ("labels", "annotations")}
    template = {"metadata": meta, "spec": obj["spec"]}
    return {"name": f"s{number}", "template": {"spec": {"template": template}}}


def _mutated(obj: dict[str, Any], seen: View, user: str, books: Books) -> dict[str, Any] | None:
    answer = decide(decode_review(review(obj, user=user)), seen, CALL, Phase.MUTATE)
    if isinstance(answer, Book):
        answer = books.book(answer)
    elif isinstance(answer, Attach):
        # What it says that it was given is what it was: the template is the queue's.
        assignment = read_assignment(answer.plan.pod.metadata)
        assert assignment is not None
        attached = Attachment(accepted=True, pod=CALL.pod, option=assignment.option)
        answer = conclude(answer, attached)
    assert isinstance(answer, Answer)
    if answer.denial is not None:
        assert len(answer.denial.message) <= 256
        return None
    stored: dict[str, Any] = apply(answer.ops, json.dumps(obj).encode())
    return stored


def _validated(stored: dict[str, Any], seen: View, user: str, books: Books) -> None:
    stored["metadata"]["uid"] = "u"
    checked = decide(decode_review(review(stored, user=user)), seen, CALL, Phase.VALIDATE)
    if isinstance(checked, Bind):
        checked = conclude(checked, books.booking)
    elif isinstance(checked, BindPod):
        checked = conclude(checked, True)
    assert isinstance(checked, Answer)
    assert checked.denial is None, checked.denial.message


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(clusters, pods(), whims)
def test_no_pod_ends_with_less_than_it_was_promised(
    cluster: Cluster, obj: dict[str, Any], whim: int | str
) -> None:
    stored = admit(obj, cluster.seen(), whim)
    if stored is None:
        event("refused")
    else:
        _judge_pod(obj, stored, cluster)


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(clusters, st.lists(pods(), min_size=1, max_size=3), whims)
def test_no_pod_of_a_workload_ends_with_less_than_it_was_promised(
    cluster: Cluster, objs: list[dict[str, Any]], whim: int | str
) -> None:
    made = admit_together(objs, cluster.seen(), whim)
    if made is None:
        event("refused")
        return
    event(f"{len(made)} sets")
    for obj, stored in zip(objs, made, strict=True):
        _judge_pod(obj, stored, cluster)


def _judge_pod(obj: dict[str, Any], stored: dict[str, Any], cluster: Cluster) -> None:
    if not any(_amounts(item) for item in _all(stored["spec"])):
        event("no GPUs")
        return
    event("stored")
    nodes = list(cluster.landing(stored["spec"]))
    assert nodes, "it could never be scheduled"
    for shares in nodes:
        for asked, given_ in zip(_all(obj["spec"]), _all(stored["spec"]), strict=True):
            _judge(obj, asked, given_, shares, cluster)
        _weighs(stored, shares)


def _judge(
    obj: dict[str, Any],
    asked: dict[str, Any],
    given_: dict[str, Any],
    shares: dict[str, Share],
    cluster: Cluster,
) -> None:
    wanted = {name: _number(text) for name, text in _amounts(asked).items() if text != "0"}
    got = _amounts(given_)
    assert len(wanted) == len(got)
    for (name, amount), (given_name, text) in zip(wanted.items(), got.items(), strict=True):
        fraction = amount if amount.denominator > 1 else Fraction(0)
        count = 1 if fraction else int(amount)
        assert text == str(count)
        share = shares[given_name]
        labels = obj["metadata"].get("labels", {})
        work_class = next((c for c in CLASSES if c["name"] == labels.get("fairslice.io/class")), {})
        declared = obj["metadata"].get("annotations", {}).get("fairslice.io/gpu-memory", "")
        if work_class.get("isolation") == "Required":
            assert share.isolated
        if declared:
            assert _has(share, declared)
        if name != GPU:
            assert given_name == name
            continue
        assert share.milli >= 1000 * fraction
        if count > 1:
            assert share.mode == "whole"
        if work_class:
            assert share.mode in work_class["modes"]
            promised = str(work_class.get("memory", ""))
            if promised and not declared and not fraction and share.mode != "whole":
                whole_card = share.mode == "timeslice" and share.card_mib >= _mib(promised)
                assert whole_card or _has(share, promised)
        elif declared or fraction:
            assert share.isolated
        else:
            # Nobody chose anything: as it was before.
            assert given_name == GPU
            before = list(cluster.landing(obj["spec"]))
            had_whole = any(item[GPU].mode == "whole" for item in before)
            assert share.mode == "whole" or not had_whole


def _mib(text: str) -> Fraction:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi?)B?", text).groups()  # type: ignore[union-attr]
    return Fraction(int(number) * {"Mi": 2**20, "Gi": 2**30, "G": 10**9}[unit], 2**20)


def _has(share: Share, memory: str) -> bool:
    """Whether a share has a memory; 20G, 20Gi and 20GB also name the slice of that name."""
    named = re.fullmatch(r"(\d+)Gi?B?", memory)
    if named and share.isolated and int(named[1]) in (10, 20, 40):
        return share.named_gb >= int(named[1])
    return share.memory_mib >= _mib(memory)


def _weighs(stored: dict[str, Any], shares: dict[str, Share]) -> None:
    """What is booked is what the kubelet will count, at its weight on that hardware."""
    option = json.loads(stored["metadata"]["annotations"]["system.fairslice.io/assignment"])
    counted = _kubelet(stored["spec"])
    assert option["option"]["units"] == counted
    weight = sum(shares[name].milli * amount for name, amount in counted.items())
    assert option["option"]["milli"] == weight


def _kubelet(spec: dict[str, Any]) -> dict[str, int]:
    """Play the pod's life: the most of each resource that it holds at any time."""
    running: list[dict[str, str]] = []
    peak: dict[str, int] = {}

    def note(items: Iterable[dict[str, str]]) -> None:
        total: dict[str, int] = {}
        for item in items:
            for name, text in item.items():
                total[name] = total.get(name, 0) + int(text)
        for name, amount in total.items():
            peak[name] = max(peak.get(name, 0), amount)

    for item in spec.get("initContainers") or ():
        note([*running, _amounts(item)])
        if item.get("restartPolicy") == "Always":
            running.append(_amounts(item))
    note([*running, *(_amounts(item) for item in spec["containers"])])
    return peak


def test_the_model_tells_hardware_apart() -> None:
    seen = Inventory.build([kind.made(f"n{n}") for n, kind in enumerate(KINDS.values())], RULES)
    assert len(seen.offers) >= len(KINDS)
