import pytest

from fairslice.inventory import Inventory
from fairslice.v1alpha1.policy import SharingMode

from .clusters import A100_40, A100_80, H100, T4, h100_node, mig_node, node, pod, policy, t4_node

GPU = "nvidia.com/gpu"


def test_offers_take_names_from_allocatable_and_weights_from_the_model() -> None:
    inventory = Inventory.build([mig_node(), h100_node(), t4_node()], policy())
    shown = {
        (offer.pool, offer.resource, offer.product): (offer.mode, offer.milli, offer.memory_mib)
        for offer in inventory.offers
    }
    assert shown == {
        ("a100", GPU, A100_80): (SharingMode.WHOLE, 1000, 81920),
        ("a100", "nvidia.com/mig-1g.10gb", A100_80): (SharingMode.MIG, 125, 9728),
        ("a100", "nvidia.com/mig-2g.20gb", A100_80): (SharingMode.MIG, 250, 19968),
        ("a100", "nvidia.com/mig-3g.40gb", A100_80): (SharingMode.MIG, 500, 40192),
        ("h100", GPU, H100): (SharingMode.WHOLE, 1000, 81559),
        ("t4", GPU, f"{T4}:1/4"): (SharingMode.TIMESLICE, 250, 3840),
    }
    assert [offer.key for offer in inventory.offers] == sorted(o.key for o in inventory.offers)


def test_one_slice_name_weighs_differently_on_different_models() -> None:
    name = "nvidia.com/mig-1g.10gb"
    large, small = node("l", A100_80, {name: 7}), node("s", A100_40, {name: 4})
    offers = {o.product: o for o in Inventory.build([large, small], policy()).offers}
    assert offers[A100_80].milli == 125
    assert offers[A100_40].milli == 250
    assert offers[A100_80].requirements[0].values == (A100_80,)


def test_affinity_is_asked_for_only_where_the_name_does_not_decide() -> None:
    offers = Inventory.build([mig_node(), h100_node()], policy()).offers
    for offer in offers:
        if offer.resource == GPU:
            assert [r.key for r in offer.requirements] == ["nvidia.com/gpu.product"]
        else:
            assert offer.requirements == ()
    assert all(not o.requirements for o in Inventory.build([mig_node()], policy()).offers)


def test_replicas_that_feature_discovery_missed_are_told_by_the_count() -> None:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "1"}
    shared = node("t", T4, {GPU: 8}, labels=labels)
    (offer,) = Inventory.build([shared], policy()).offers
    assert (offer.mode, offer.milli, offer.isolated) == (SharingMode.TIMESLICE, 250, False)


def test_replicas_beside_whole_gpus_of_one_unlabelled_model_are_told_by_host() -> None:
    bare = {"nvidia.com/gpu.count": "1"}
    whole = node("whole", T4, {GPU: 1}, labels=bare)
    shared = node("shared", T4, {GPU: 4}, labels=bare)
    offers = {o.mode: o for o in Inventory.build([whole, shared], policy()).offers}
    (pinned,) = offers[SharingMode.WHOLE].requirements
    assert (pinned.key, pinned.values) == ("kubernetes.io/hostname", ("whole",))
    assert offers[SharingMode.WHOLE].key != offers[SharingMode.TIMESLICE].key


@pytest.mark.parametrize(
    ("labels", "gpus", "mode", "milli", "memory"),
    [
        (
            {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"},
            {GPU: 4},
            SharingMode.MPS,
            250,
            3840,
        ),
        (
            {"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
            {"nvidia.com/gpu.shared": 2},
            SharingMode.TIMESLICE,
            500,
            7680,
        ),
    ],
)
def test_sharing_is_read_with_and_without_renaming(
    labels: dict[str, str], gpus: dict[str, int], mode: SharingMode, milli: int, memory: int
) -> None:
    shared = node("t", T4, gpus, labels={**labels, "nvidia.com/gpu.memory": "15360"})
    (offer,) = Inventory.build([shared], policy()).offers
    assert (offer.mode, offer.milli, offer.memory_mib) == (mode, milli, memory)
    assert offer.pool == "t4"


def test_under_the_single_strategy_a_gpu_is_a_slice() -> None:
    single = node(
        "s",
        f"{A100_40}-MIG-1g.5gb",
        {GPU: 7},
        labels={
            "nvidia.com/gpu.memory": "4864",
            "nvidia.com/gpu.count": "7",
            "nvidia.com/mig.strategy": "single",
        },
    )
    (offer,) = Inventory.build([single], policy()).offers
    assert (offer.mode, offer.milli, offer.size_gb, offer.memory_mib) == (
        SharingMode.MIG,
        125,
        5,
        4864,
    )
    assert offer.product == f"{A100_40}:1g.5gb"
    assert offer.pool == "a100"
    broken = node("b", f"{A100_40}-MIG-INVALID", {GPU: 1})
    assert Inventory.build([broken], policy()).offers == ()


@pytest.mark.parametrize(
    "change",
    [
        {"cordoned": True},
        {"ready": False},
        {"labels": {"nvidia.com/mig.config.state": "pending"}},
        {"labels": {"nvidia.com/mig.config.state": "failed"}},
    ],
)
def test_nodes_out_of_service_offer_nothing_new_but_stay_possible(
    change: dict[str, object],
) -> None:
    out = node("h", H100, {GPU: 8}, **change)  # type: ignore[arg-type]
    inventory = Inventory.build([out], policy())
    (offer,) = inventory.offers
    assert inventory.capacity() == {}
    assert inventory.node_states() == {}
    assert inventory.reach(offer.key).total == 8


def test_what_was_seen_once_stays_within_reach_until_its_node_shows_otherwise() -> None:
    rules = policy()
    before = Inventory.build([mig_node("m")], rules)
    key = next(o.key for o in before.offers if "1g.10gb" in o.resource)
    gone = before.without_node("m")
    assert gone.reach(key).total == 7
    assert [o.key for o in gone.offers] == [o.key for o in before.offers]
    changing = before.with_node(node("m", A100_80, {}, ready=False))
    assert key in {o.key for o in changing.offers}
    recut = before.with_node(node("m", A100_80, {"nvidia.com/mig-7g.80gb": 4}))
    assert [o.resource for o in recut.offers] == ["nvidia.com/mig-7g.80gb"]
    rebuilt = Inventory.build([], rules, before=before)
    assert rebuilt.reach(key).total == 7


def test_an_autoscaled_pool_reaches_as_far_as_it_declares() -> None:
    rules = policy(pools=[{"name": "t4", "products": [T4], "autoscaleMaxGpus": 8}])
    inventory = Inventory.build([t4_node()], rules)
    (offer,) = inventory.offers
    assert inventory.reach(offer.key).total == 32
    (promised,) = Inventory.build([], rules).offers
    assert (promised.pool, promised.mode) == ("t4", SharingMode.WHOLE)
    assert Inventory.build([], rules).reach(promised.key).total == 8


def test_a_change_that_changes_nothing_keeps_the_inventory_and_offers() -> None:
    inventory = Inventory.build([mig_node(), t4_node()], policy())
    offers = inventory.offers
    assert inventory.with_node(mig_node()) is inventory
    assert inventory.with_node(mig_node("another")).offers is offers
    grown = inventory.with_node(mig_node("another"))
    key = next(o.key for o in offers if "1g.10gb" in o.resource)
    assert grown.capacity()[key] == {"mig-1": 7, "another": 7}
    assert inventory.capacity()[key] == {"mig-1": 7}
    assert grown.without_node("another").capacity() == inventory.capacity()


def test_a_pod_that_selects_nodes_sees_only_their_offers() -> None:
    inventory = Inventory.build([mig_node(), h100_node(), t4_node()], policy())
    chosen = inventory.offers_for(pod({GPU: "1"}, nodeSelector={"nvidia.com/gpu.product": H100}))
    assert [offer.product for offer in chosen] == [H100]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["81000"]}
                        ]
                    }
                ]
            }
        }
    }
    spec = pod({GPU: "1"}, affinity=affinity)
    assert {offer.product for offer in inventory.offers_for(spec)} == {A100_80, H100}
    assert inventory.offers_for(spec) is inventory.offers_for(spec)
    assert inventory.offers_for(pod({GPU: "1"})) is inventory.offers


def test_pools_by_selector_are_pinned_by_their_labels() -> None:
    rules = policy(
        pools=[
            {"name": "spot", "products": ["NVIDIA-H100-*"], "nodeSelector": {"capacity": "spot"}},
            {"name": "own", "products": ["NVIDIA-H100-*"]},
        ]
    )
    spot = node("s", H100, {GPU: 8}, labels={"capacity": "spot"})
    own = node("o", H100, {GPU: 8}, labels={"capacity": "own"})
    offers = {o.pool: o for o in Inventory.build([spot, own], rules).offers}
    assert [(r.key, r.values) for r in offers["spot"].requirements] == [("capacity", ("spot",))]
    assert [(r.key, r.values) for r in offers["own"].requirements] == [("capacity", ("own",))]


def test_a_node_state_holds_all_that_the_node_can_allocate() -> None:
    rdma = node("n", H100, {GPU: 8}, cpu="1500m", memory="1Gi", pods="3")
    assert rdma.status.allocatable is not None
    rdma.status.allocatable["rdma/hca"] = "4"
    state = Inventory.build([rdma], policy()).node_states()["n"]
    assert (state.cpu_milli, state.memory, state.pods) == (1500, 2**30, 3)
    assert state.units == {f"h100|{H100}|{GPU}": 8}
    assert state.extended == {"rdma/hca": 4}
