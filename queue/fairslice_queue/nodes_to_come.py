"""Pools that an autoscaler fills: what may be released for nodes to come, and what they turn
out to be.

An autoscaler adds nodes only for pods that it sees waiting for them, so work is let go although no
node has room, as far as its pool's declared size goes. Before the first node, what such a pool
offers is a stand-in of unknown model; it is replaced as soon as real nodes show what it is.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from fairslice.booking import Booking, Option
from fairslice.devices import Offer
from fairslice.inventory import Inventory
from fairslice.placement import GangNeeds, Placement
from fairslice.policy import Policy
from fairslice_queue.order import Waiting
from fairslice_queue.scene import Scene
from fairslice_queue.victims import Candidate

__all__ = ["NodesToCome", "without_stand_ins"]


class NodesToCome:
    """What pools may still grow by, in one round."""

    def __init__(self, scene: Scene, holders: Iterable[Candidate]) -> None:
        self._scene = scene
        self._holders = holders
        self._sizes = {
            pool.name: pool.autoscale_max_gpus * 1000
            for pool in scene.policy.pools
            if pool.autoscale_max_gpus
        }
        self._promised: Counter[str] | None = None

    def may_serve(self, options: Iterable[Option]) -> bool:
        """Say whether any of these options is of a pool that can grow."""
        return bool(self._sizes) and any(option.pool in self._sizes for option in options)

    def fit(self, item: Waiting, indices: Sequence[int]) -> Placement | None:
        """Find an option whose pool can still grow by so much; its pods have no place yet."""
        booking = item.booking
        if not self.may_serve(booking.options) or isinstance(item.needs, GangNeeds):
            return None
        for index in indices:
            option = booking.options[index]
            asked = option.milli * booking.pods
            if option.pool in self._sizes and asked <= self._left(option.pool):
                self._counted[option.pool] += asked
                return Placement(chosen=index, place={})
        return None

    def _left(self, pool: str) -> int:
        capacity = self._scene.capacity.get(pool, 0)
        return self._sizes[pool] - capacity - self._counted[pool]

    @property
    def _counted(self) -> Counter[str]:
        """What is let go for nodes to come already, in milli-GPU by pool."""
        if self._promised is None:
            self._promised = Counter()
            for holder in self._holders:
                booking, option = holder.booking, holder.booking.option
                if option is not None and option.pool in self._sizes:
                    missing = booking.pods - sum(booking.place.values())
                    self._promised[option.pool] += max(0, missing) * option.milli
        return self._promised


def without_stand_ins(
    booking: Booking, inventory: Inventory, policy: Policy
) -> tuple[Option, ...] | None:
    """Write a booking's options for what nodes really offer; None: there is nothing to change."""
    growing = {pool.name for pool in policy.pools if pool.autoscale_max_gpus}
    if not any(_is_stand_in(option, growing) for option in booking.options):
        return None
    found: list[Option] = []
    for index, option in enumerate(booking.options):
        real = _real(option, inventory) if _is_stand_in(option, growing) else []
        if not real:
            found.append(option)
        elif booking.chosen < 0:
            found += real
        else:  # what it was given keeps its place among the options
            products = _products(booking, inventory) if index == booking.chosen else set()
            found.append(next((each for each in real if each.product in products), real[0]))
    fresh = tuple(found)
    return fresh if fresh != booking.options else None


def _is_stand_in(option: Option, growing: set[str]) -> bool:
    return option.product == option.pool and option.pool in growing


def _products(booking: Booking, inventory: Inventory) -> set[str]:
    nodes = inventory.nodes
    return {nodes[name].product for name in booking.place if name in nodes}


def _real(option: Option, inventory: Inventory) -> list[Option]:
    return [
        _as(option, offer)
        for offer in inventory.offers
        if offer.pool == option.pool
        and offer.product != option.pool
        and set(option.units) == {offer.resource}
    ]


def _as(option: Option, offer: Offer) -> Option:
    return structs.replace(
        option,
        product=offer.product,
        milli=offer.milli * sum(option.units.values()),
        mode=offer.mode.value,
        memory_mib=offer.memory_mib,
        isolated=offer.isolated,
        requirements=offer.requirements or option.requirements,
    )
