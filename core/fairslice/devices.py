"""Offers: the kinds of GPU share that a cluster's nodes advertise."""

from dataclasses import dataclass

from fairslice.booking import NodeRequirement, offer_key
from fairslice.v1alpha1.policy import SharingMode

__all__ = ["Offer", "model_name"]


def model_name(product: str) -> str:
    """Return the GPU model of an offer's or option's product, without its variant."""
    return product.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of share: a resource name on one GPU model.

    `product` is the model, plus the variant where neither name nor model tells the share
    apart: `Tesla-T4:1/4` for one of four replicas, `NVIDIA-A30:1g.6gb` for slices that go by
    nvidia.com/gpu.
    `milli` is the weight of one unit in milli-GPU of its pool, `memory_mib` its usable memory
    (0: unknown). `size_gb` is the number in a MIG slice's name, 0 otherwise. `requirements`
    is the node affinity that tells these nodes from others that advertise the same name;
    empty where the name alone decides.
    """

    pool: str
    product: str
    resource: str
    mode: SharingMode
    milli: int
    memory_mib: int
    size_gb: int
    isolated: bool
    requirements: tuple[NodeRequirement, ...] = ()

    @property
    def key(self) -> str:
        """The offer's name in ledger and planner."""
        return offer_key(self.pool, self.product, self.resource)
