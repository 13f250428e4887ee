"""What nodes have of each pool, in milli-GPU: what those in service offer, what is paid for."""

from collections import Counter
from collections.abc import Mapping

from fairslice.inventory import Inventory
from fairslice.node_offers import PRODUCT

__all__ = ["pool_capacity", "pool_hardware"]

_COUNT = "nvidia.com/gpu.count"


def pool_capacity(inventory: Inventory) -> Mapping[str, int]:
    """Sum up the pools that have any."""
    offers = {offer.key: offer for offer in inventory.offers}
    capacity: Counter[str] = Counter()
    for key, nodes in inventory.capacity().items():
        offer = offers.get(key)
        if offer is not None:
            capacity[offer.pool] += offer.milli * sum(nodes.values())
    return +capacity


def pool_hardware(inventory: Inventory) -> Mapping[str, int]:
    """Sum up the GPUs of all nodes there are, in service or not, however they are cut up.

    A node's own label counts, unless what is offered needs more: under MIG's single strategy,
    GPU feature discovery counts slices there, which are weighed instead.
    """
    hardware: Counter[str] = Counter()
    for facts in inventory.nodes.values():
        offered = sum(offer.milli * units for offer, units in facts.shares)
        text = facts.labels.get(_COUNT, "")
        counted = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if "-MIG-" in facts.labels.get(PRODUCT, ""):
            counted = 0
        hardware[facts.pool] += max(counted, -(-offered // 1000)) * 1000
    return +hardware
