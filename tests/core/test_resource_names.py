import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.resource_names import ResourceKind, ResourceNameError, parse_resource


@pytest.mark.parametrize(
    ("name", "kind", "profile", "size", "shared"),
    [
        ("nvidia.com/gpu", ResourceKind.WHOLE, "", 0, False),
        ("nvidia.com/gpu.shared", ResourceKind.WHOLE, "", 0, True),
        ("nvidia.com/mig-1g.10gb", ResourceKind.MIG, "1g.10gb", 10, False),
        ("nvidia.com/mig-7g.141gb", ResourceKind.MIG, "7g.141gb", 141, False),
        ("nvidia.com/mig-1g.5gb.me", ResourceKind.MIG, "1g.5gb.me", 5, False),
        ("nvidia.com/mig-1g.24gb.me.all", ResourceKind.MIG, "1g.24gb.me.all", 24, False),
        ("nvidia.com/mig-1g.24gb-me", ResourceKind.MIG, "1g.24gb-me", 24, False),
        ("nvidia.com/mig-2g.48gb.gfx", ResourceKind.MIG, "2g.48gb.gfx", 48, False),
        ("nvidia.com/mig-1g.10gb.shared", ResourceKind.MIG, "1g.10gb", 10, True),
        ("nvidia.com/mig-1g.5gb.me.shared", ResourceKind.MIG, "1g.5gb.me", 5, True),
    ],
)
def test_gpu_names_are_taken_apart(
    name: str, kind: ResourceKind, profile: str, size: int, shared: bool
) -> None:
    resource = parse_resource(name)
    assert resource is not None
    assert (resource.kind, resource.profile, resource.size_gb, resource.shared) == (
        kind,
        profile,
        size,
        shared,
    )


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig-1g-10gb",
        "nvidia.com/mig-1g.10gb+me",
        "nvidia.com/mig-9g.10gb",
        "nvidia.com/mig-1g.0gb",
        "nvidia.com/mig-1g.10GB",
        "nvidia.com/mig-1c.2g.10gb",
        "nvidia.com/mig-1g.10gb.me.me",
        "nvidia.com/mig-",
        "nvidia.com/mig-1g.10gb\n",
    ],
)
def test_a_mistyped_slice_is_told_apart_from_other_resources(name: str) -> None:
    with pytest.raises(ResourceNameError):
        parse_resource(name)


@pytest.mark.parametrize("name", ["cpu", "memory", "amd.com/gpu", "nvidia.com/hostdev", "rdma/hca"])
def test_other_resources_are_no_business_of_ours(name: str) -> None:
    assert parse_resource(name) is None


def test_implicit_device_class_names_of_gpus_are_known() -> None:
    whole = parse_resource("deviceclass.resource.kubernetes.io/gpu.nvidia.com")
    mig = parse_resource("deviceclass.resource.kubernetes.io/mig.nvidia.com")
    assert whole is not None
    assert whole.device_class == "gpu.nvidia.com"
    assert mig is not None
    assert mig.kind is ResourceKind.MIG
    assert parse_resource("deviceclass.resource.kubernetes.io/nic.example.com") is None
    assert parse_resource("deviceclass.resource.kubernetes.io/compute-domain.nvidia.com") is None


@given(st.text(max_size=80))
def test_any_text_is_answered(name: str) -> None:
    try:
        parse_resource("nvidia.com/" + name)
    except ResourceNameError:
        assert name.startswith("mig-")
