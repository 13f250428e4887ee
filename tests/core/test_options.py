import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.booking import Option
from fairslice.devices import Offer
from fairslice.inventory import Inventory
from fairslice.options import NoOption, describe, options_for
from fairslice.policy import Policy
from fairslice.requests import PodAsk, read_pod
from fairslice.v1alpha1.policy import SharingMode

from .clusters import A100_40, A100_80, H100, T4, h100_node, mig_node, node, pod, policy, t4_node

GPU = "nvidia.com/gpu"
POLICY = policy()
CLUSTER = Inventory.build([mig_node(), h100_node(), t4_node()], POLICY)


def _ask(*containers: dict[str, str], memory: str = "", fractions: bool = False) -> PodAsk:
    annotations = {"fairslice.io/gpu-memory": memory} if memory else None
    return read_pod(pod(*containers), annotations, fractions=fractions)


def _for(
    ask: PodAsk,
    work_class: str = "",
    inventory: Inventory = CLUSTER,
    rules: Policy = POLICY,
    closed: frozenset[str] = frozenset(),
) -> tuple[Option, ...]:
    chosen = rules.classes[work_class] if work_class else None
    return options_for(ask, chosen, inventory.offers, rules, closed_pools=closed)


def test_unclassified_work_keeps_its_whole_gpu_pinned_to_one_model_at_a_time() -> None:
    options = _for(_ask({GPU: "1"}))
    assert [(o.pool, o.mode, o.rename, o.units) for o in options] == [
        ("a100", "whole", {}, {GPU: 1}),
        ("h100", "whole", {}, {GPU: 1}),
    ]
    assert [o.requirements[0].values for o in options] == [(A100_80,), (H100,)]


def test_nothing_pins_unclassified_work_where_all_gpus_are_alike() -> None:
    (option,) = _for(_ask({GPU: "1"}), inventory=Inventory.build([h100_node()], POLICY))
    assert option.requirements == ()


def test_on_a_cluster_of_replicas_unclassified_work_gets_what_it_got_before() -> None:
    replicas = Inventory.build([t4_node()], POLICY)
    (option,) = _for(_ask({GPU: "1"}), inventory=replicas)
    assert (option.mode, option.isolated, option.rename) == ("timeslice", False, {})
    with pytest.raises(NoOption, match="several GPUs must be whole ones"):
        _for(_ask({GPU: "2"}), inventory=replicas)


def test_an_experiment_gets_the_smallest_sufficient_slice_first() -> None:
    options = _for(_ask({GPU: "1"}), "experiment")
    assert [next(iter(o.units)) for o in options] == [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-2g.20gb",
        "nvidia.com/mig-3g.40gb",
        GPU,
        GPU,
        GPU,
    ]
    assert options[0].rename == {GPU: "nvidia.com/mig-1g.10gb"}
    assert options[0].milli == 125
    assert options[0].requirements == ()
    assert [o.mode for o in options[3:]] == ["timeslice", "whole", "whole"]


def test_production_gets_isolated_slices_or_whole_gpus_never_replicas() -> None:
    options = _for(_ask({GPU: "1"}), "production")
    assert [next(iter(o.units)) for o in options] == [
        "nvidia.com/mig-2g.20gb",
        "nvidia.com/mig-3g.40gb",
        GPU,
        GPU,
    ]
    assert all(o.isolated for o in options)


def test_on_a_t4_cluster_experiments_share_and_production_gets_the_whole_card() -> None:
    rules = POLICY
    cluster = Inventory.build([t4_node("shared"), t4_node("whole", replicas=1)], rules)
    experiment = _for(_ask({GPU: "1"}), "experiment", cluster)
    assert experiment[0].mode == "timeslice"
    assert [(r.key, r.values) for r in experiment[0].requirements] == [
        ("nvidia.com/gpu.product", (f"{T4}-SHARED",))
    ]
    (production,) = _for(_ask({GPU: "1"}), "production", cluster)
    assert (production.mode, production.product, production.isolated) == ("whole", T4, True)
    with pytest.raises(NoOption):
        _for(_ask({GPU: "1"}), "production", Inventory.build([t4_node()], rules))


def test_several_gpus_are_whole_ones_of_one_model() -> None:
    for options in (_for(_ask({GPU: "2"})), _for(_ask({GPU: "2"}), "training")):
        assert [(o.mode, o.units, o.milli) for o in options] == [
            ("whole", {GPU: 2}, 2000),
            ("whole", {GPU: 2}, 2000),
        ]
    rules = policy(classes=[{"name": "small", "memory": "10G", "modes": ["mig"]}])
    with pytest.raises(NoOption, match="must be whole ones, class small gives mig"):
        _for(_ask({GPU: "2"}), "small", rules=rules)


def test_containers_with_one_gpu_each_may_have_one_slice_each() -> None:
    option = _for(_ask({GPU: "1"}, {GPU: "1"}), "experiment")[0]
    assert option.units == {"nvidia.com/mig-1g.10gb": 2}
    assert option.milli == 250


def test_an_explicit_slice_is_respected_whatever_the_class_prefers() -> None:
    ask = _ask({"nvidia.com/mig-3g.40gb": "1"})
    for work_class in ("", "training", "experiment", "production"):
        (option,) = _for(ask, work_class)
        assert option.units == {"nvidia.com/mig-3g.40gb": 1}
        assert option.rename == {}


def test_what_no_node_advertises_is_refused_naming_what_exists() -> None:
    with pytest.raises(NoOption) as error:
        _for(_ask({"nvidia.com/mig-7g.79gb": "1"}))
    text = str(error.value)
    assert "mig-7g.79gb" in text
    assert "no node advertises it" in text
    assert "mig-1g.10gb (A100-SXM4-80GB)" in text
    assert len(text) <= 256


def test_pools_without_any_right_are_left_out() -> None:
    options = _for(_ask({GPU: "1"}), closed=frozenset({"a100"}))
    assert [o.pool for o in options] == ["h100"]
    with pytest.raises(NoOption, match="limit is 0"):
        _for(_ask({GPU: "1"}), closed=frozenset({"a100", "h100", "t4"}))


@pytest.mark.parametrize(
    ("memory", "first"),
    [
        ("8Gi", "nvidia.com/mig-1g.10gb"),
        ("9728Mi", "nvidia.com/mig-1g.10gb"),
        ("9729Mi", "nvidia.com/mig-2g.20gb"),
        ("10Gi", "nvidia.com/mig-1g.10gb"),
        ("11Gi", "nvidia.com/mig-2g.20gb"),
        ("12G", "nvidia.com/mig-2g.20gb"),
        ("18Gi", "nvidia.com/mig-2g.20gb"),
        ("20G", "nvidia.com/mig-2g.20gb"),
        ("20GB", "nvidia.com/mig-2g.20gb"),
        ("20Gi", "nvidia.com/mig-2g.20gb"),
        ("21Gi", "nvidia.com/mig-3g.40gb"),
        ("80Gi", GPU),
    ],
)
def test_declared_memory_picks_the_slice(memory: str, first: str) -> None:
    assert next(iter(_for(_ask({GPU: "1"}, memory=memory))[0].units)) == first
    assert next(iter(_for(_ask({GPU: "1"}, memory=memory), "experiment")[0].units)) == first


def test_declared_memory_never_becomes_a_replica_that_has_less() -> None:
    cluster = Inventory.build([t4_node()], POLICY)
    assert _for(_ask({GPU: "1"}, memory="3Gi"), "experiment", cluster)[0].mode == "timeslice"
    with pytest.raises(NoOption, match="8Gi"):
        _for(_ask({GPU: "1"}, memory="8Gi"), "experiment", cluster)


def test_more_memory_than_any_gpu_has_is_refused() -> None:
    with pytest.raises(NoOption, match="200Gi"):
        _for(_ask({GPU: "1"}, memory="200Gi"))


def test_a_fraction_becomes_at_least_that_share_of_a_gpu() -> None:
    options = _for(_ask({GPU: "0.5"}, fractions=True), "experiment")
    assert [o.milli for o in options] == [500, 1000, 1000]
    assert options[-1].rename == {GPU: GPU}


def test_a_whole_gpu_beside_a_fraction_stays_whole() -> None:
    ask = _ask({GPU: "1"}, {GPU: "125m"}, fractions=True)
    assert {o.mode for o in _for(ask)} == {"whole"}
    # Of a class that shares, each has the class's own slice at least.
    option = _for(ask, "production")[0]
    assert option.units == {"nvidia.com/mig-2g.20gb": 2}
    with pytest.raises(NoOption):
        _for(ask, inventory=Inventory.build([t4_node()], POLICY))


def test_two_names_in_one_pod_are_served_by_one_model() -> None:
    options = _for(_ask({GPU: "1"}, {"nvidia.com/mig-1g.10gb": "1"}))
    assert [(o.pool, o.units) for o in options] == [("a100", {GPU: 1, "nvidia.com/mig-1g.10gb": 1})]


def test_slices_with_media_engines_are_spared_and_those_without_any_never_given() -> None:
    model = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
    cut = node(
        "r",
        model,
        {
            "nvidia.com/mig-1g.24gb.me": 1,
            "nvidia.com/mig-1g.24gb-me": 2,
            "nvidia.com/mig-1g.24gb": 1,
        },
    )
    options = _for(_ask({GPU: "1"}), "experiment", Inventory.build([cut], POLICY))
    assert [next(iter(o.units)) for o in options] == [
        "nvidia.com/mig-1g.24gb",
        "nvidia.com/mig-1g.24gb.me",
    ]


def test_options_are_described_with_their_isolation() -> None:
    experiment = _for(_ask({GPU: "1"}), "experiment")
    assert describe(experiment[0]) == (
        "mig-1g.10gb: hardware-isolated slice of an NVIDIA A100 SXM4 80GB, 10 GB"
    )
    assert describe(experiment[3]) == "1 of 4 time-slices of a Tesla T4: no memory isolation"
    assert describe(_for(_ask({GPU: "2"}))[0]) == "2 whole NVIDIA A100 SXM4 80GB"
    mps = Inventory.build([t4_node(strategy="mps")], POLICY)
    assert describe(_for(_ask({GPU: "1"}, memory="3Gi"), "experiment", mps)[0]) == (
        "1 of 4 MPS shares of a Tesla T4, 3.75 GiB: no fault isolation"
    )


@pytest.mark.parametrize(
    ("product", "name", "mode", "words"),
    [
        (f"{A100_40}:1g.5gb", GPU, "mig", "1g.5gb as nvidia.com/gpu: hardware-isolated slice of"),
        (f"{A100_40}:1g.5gb:1/2", GPU, "timeslice", "1 of 2 time-slices of slice 1g.5gb of an NV"),
        (f"{A100_40}:1/2", "nvidia.com/mig-1g.5gb.shared", "timeslice", "1 of 2 time-slices of s"),
        (f"{T4}:1/10", "nvidia.com/gpu.shared", "timeslice", "1 of 10 time-slices of a Tesla T4"),
        (T4, GPU, "whole", "a whole Tesla T4"),
    ],
)
def test_variants_are_described(product: str, name: str, mode: str, words: str) -> None:
    option = Option(pool="p", product=product, mode=mode, milli=1, units={name: 1})
    assert describe(option).startswith(words)


def test_an_mps_share_caps_memory_so_the_class_must_find_its_slice_in_it() -> None:
    mps = Inventory.build([t4_node(strategy="mps")], POLICY)
    with pytest.raises(NoOption, match="nothing with 10G for class experiment"):
        _for(_ask({GPU: "1"}), "experiment", mps)


_OFFERS = st.builds(
    Offer,
    pool=st.sampled_from(["a100", "t4", "other"]),
    product=st.sampled_from([A100_40, A100_80, T4]),
    resource=st.sampled_from([GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.20gb"]),
    mode=st.sampled_from(SharingMode),
    milli=st.integers(1, 1000),
    memory_mib=st.integers(0, 90_000),
    size_gb=st.just(0),
    isolated=st.booleans(),
)


@given(
    st.lists(_OFFERS, max_size=8, unique_by=lambda offer: offer.key),
    st.sampled_from(["", "production", "training", "experiment"]),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(100, 90_000)),
    st.one_of(st.none(), st.integers(1, 999)),
)
def test_no_option_is_ever_less_than_what_was_promised(
    offers: list[Offer], work_class: str, count: int, memory: int | None, fraction: int | None
) -> None:
    value = str(count) if fraction is None else f"{fraction}m"
    text = f"{memory}Mi" if memory is not None else ""
    ask = _ask({GPU: value}, memory=text, fractions=True)
    chosen = POLICY.classes[work_class] if work_class else None
    given_offers = tuple(offers)
    try:
        options = options_for(ask, chosen, given_offers, POLICY)
    except NoOption:
        return
    by_key = {offer.key: offer for offer in offers}
    for option in options:
        (key,) = option.offers
        offer = by_key[key]
        assert sum(option.units.values()) == (count if fraction is None else 1)
        if memory is not None and chosen is None:
            assert (
                offer.isolated or offer.mode is SharingMode.MIG or offer.mode is SharingMode.WHOLE
            )
        if memory is not None:
            assert offer.memory_mib >= memory or offer.memory_mib == 0
        if fraction is not None:
            assert option.milli >= fraction
        if ask.most_in_one_container > 1:
            assert offer.mode is SharingMode.WHOLE
        if work_class == "production":
            assert offer.mode in (SharingMode.MIG, SharingMode.WHOLE)
        if chosen is not None:
            assert offer.mode in chosen.modes
