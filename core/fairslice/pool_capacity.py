"""What nodes in service offer of each pool, in milli-GPU."""

from collections import Counter
from collections.abc import Mapping

from fairslice.inventory import Inventory

__all__ = ["pool_capacity"]


def pool_capacity(inventory: Inventory) -> Mapping[str, int]:
    """Sum up the pools that have any."""
    offers = {offer.key: offer for offer in inventory.offers}
    capacity: Counter[str] = Counter()
    for key, nodes in inventory.capacity().items():
        offer = offers.get(key)
        if offer is not None:
            capacity[offer.pool] += offer.milli * sum(nodes.values())
    return +capacity
