"""The ways to serve a pod, in order of preference; never less than it was promised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from fairslice import messages
from fairslice.booking import NodeRequirement, Option
from fairslice.catalog import is_slice_size, model_of
from fairslice.device_claims import DeviceNeed, counted, milli_of
from fairslice.devices import Offer, model_name
from fairslice.option_words import describe, offered_names
from fairslice.policy import Policy, WorkClass
from fairslice.requests import (
    ContainerKind,
    MemoryAsk,
    PodAsk,
    parse_memory,
    sum_containers,
)
from fairslice.resource_names import GPU
from fairslice.v1alpha1.policy import CapacityType, IsolationNeed, SharingMode

__all__ = ["NoOption", "describe", "offered_names", "options_for"]

# What a declared memory may become where no class says how GPUs may be shared.
_MODES_BY_MEMORY = (SharingMode.MIG, SharingMode.WHOLE)
_REPLICAS = (SharingMode.TIMESLICE, SharingMode.MPS)
_MAX_CACHED = 2048


class NoOption(ValueError):
    """Nothing that this cluster offers serves the request: what was asked, what exists."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request in the terms that decide: what is asked, and what must not be undercut."""

    ask: PodAsk
    work_class: WorkClass | None
    floor: MemoryAsk | None
    policy: Policy

    @property
    def declared(self) -> MemoryAsk | None:
        return self.ask.memory

    @property
    def isolation(self) -> bool:
        return self.work_class is not None and self.work_class.isolation is IsolationNeed.REQUIRED

    @property
    def modes(self) -> tuple[SharingMode, ...]:
        """The modes for nvidia.com/gpu, in order; empty for unclassified work."""
        if self.work_class is not None:
            return self.work_class.modes
        return _MODES_BY_MEMORY if self.declared or self.only_fractions else ()

    @property
    def only_fractions(self) -> bool:
        """Say whether no container asks for nvidia.com/gpu as such, but for parts of one."""
        asking = self.ask.gpu_containers
        return self.ask.fraction_milli > 0 and all(
            item.fraction_milli for item in asking if item.resource and item.resource.name == GPU
        )


_Key = tuple[
    int,
    int,
    str,
    tuple[tuple[str, int], ...],
    MemoryAsk | None,
    int,
    int,
    int,
    frozenset[str],
    tuple[DeviceNeed, ...],
]
# Holds on to offers and policy, so that an identity in a key can't be taken over by another.
_cache: dict[_Key, tuple[Sequence[Offer], Policy, tuple[Option, ...]]] = {}


def options_for(
    ask: PodAsk,
    work_class: WorkClass | None,
    offers: Sequence[Offer],
    policy: Policy,
    *,
    closed_pools: frozenset[str] = frozenset(),
) -> tuple[Option, ...]:
    """List the options for a pod, best first. `closed_pools` have a limit of 0 for its team.

    `offers` comes from `Inventory.offers`, or `Inventory.offers_for(spec)` for a pod that
    selects nodes; for one whose GPUs all come through claims, from `Inventory.models_for(spec)`.
    Raises NoOption.
    """
    if len(ask.gpu_containers) > 1:
        return _options(ask, work_class, offers, policy, closed_pools)
    key = (
        id(offers),
        id(policy),
        work_class.name if work_class is not None else "",
        tuple(ask.units.items()),
        ask.memory,
        ask.most_in_one_container,
        ask.fraction_milli,
        len(offers),
        closed_pools,
        ask.needs,
    )
    cached = _cache.get(key)
    if cached is not None and cached[0] is offers and cached[1] is policy:
        return cached[2]
    options = _options(ask, work_class, offers, policy, closed_pools)
    if len(_cache) >= _MAX_CACHED:
        _cache.clear()
    _cache[key] = (offers, policy, options)
    return options


def _options(
    ask: PodAsk,
    work_class: WorkClass | None,
    offers: Sequence[Offer],
    policy: Policy,
    closed_pools: frozenset[str],
) -> tuple[Option, ...]:
    floor = ask.memory
    if floor is None and work_class is not None and work_class.memory:
        floor = parse_memory(work_class.memory)
    wish = _Wish(ask, work_class, floor, policy)
    open_offers = [offer for offer in offers if offer.pool not in closed_pools]
    if not ask.units:
        return _by_claims_alone(wish, offers, open_offers)
    lists: dict[str, list[Offer]] = {}
    for name in ask.units:
        found = _rewritten(wish, open_offers) if name == GPU else _explicit(wish, name, open_offers)
        if not found:
            raise NoOption(_no_option(wish, name, offers, open_offers))
        lists[name] = found
    options = tuple(_combine(ask, lists))
    if not options:
        asked = " + ".join(ask.units)
        why = "no single node offers them together"
        raise NoOption(messages.option_missing("", asked, why, offered_names(open_offers)))
    return tuple(_with_devices(option, ask.needs) for option in options) if ask.needs else options


def _by_claims_alone(
    wish: _Wish, offers: Sequence[Offer], open_offers: list[Offer]
) -> tuple[Option, ...]:
    """Make one option a GPU model: its claims say what a pod takes, only its weight is open."""
    if not open_offers:
        asked = " + ".join(f"{count} × {name}" for name, count in counted(wish.ask.needs).items())
        why = "no node with GPUs allows this pod"
        if offers:
            why = "the team's limit is 0 in every pool that could serve it"
        asked = f"claims for {asked}"
        raise NoOption(messages.option_missing("", asked, why, offered_names(offers)))
    found = sorted(open_offers, key=_preference(SharingMode.WHOLE, wish))
    options = [
        Option(
            pool=offer.pool,
            product=offer.product,
            mode=SharingMode.WHOLE.value,
            milli=0,
            units={},
            requirements=offer.requirements,
        )
        for offer in found
    ]
    return tuple(_with_devices(option, wish.ask.needs) for option in options)


def _with_devices(option: Option, needs: tuple[DeviceNeed, ...]) -> Option:
    weight = milli_of(needs, model_name(option.product))
    return structs.replace(option, milli=option.milli + weight, devices=counted(needs))


def _explicit(wish: _Wish, name: str, offers: list[Offer]) -> list[Offer]:
    """Find a slice or replica asked for by name: only isolation and memory are checked."""
    found = [
        offer
        for offer in offers
        if offer.resource == name
        and (offer.isolated or not wish.isolation)
        and _has_memory(offer, wish.declared)
    ]
    return sorted(
        found,
        key=lambda offer: (_is_unsteady(offer, wish), _cost(offer, wish.policy), offer.key),
    )


def _rewritten(wish: _Wish, offers: list[Offer]) -> list[Offer]:
    """Find what nvidia.com/gpu may become, best first."""
    several = wish.ask.most_in_one_container > 1
    if not wish.modes:
        return _unclassified(wish, offers, several)
    found: list[Offer] = []
    for mode in wish.modes:
        # Several GPUs of one container work together, which slices and replicas can't.
        if several and mode is not SharingMode.WHOLE:
            continue
        if wish.isolation and mode in _REPLICAS:
            continue
        candidates = [offer for offer in offers if offer.mode is mode and _suffices(offer, wish)]
        found += sorted(candidates, key=_preference(mode, wish))
    return sorted(found, key=lambda offer: _is_unsteady(offer, wish))


def _unclassified(wish: _Wish, offers: list[Offer], several: bool) -> list[Offer]:
    """Find what nvidia.com/gpu is today: whole GPUs; on clusters without any, what it names."""
    named = [offer for offer in offers if offer.resource == GPU]
    whole = [offer for offer in named if offer.mode is SharingMode.WHOLE]
    # Beside a whole GPU a part of one can't be told apart: it is one as well.
    found = whole or ([] if several or wish.ask.fraction_milli else named)
    return sorted(found, key=_preference(SharingMode.WHOLE, wish))


def _suffices(offer: Offer, wish: _Wish) -> bool:
    """Say whether an offer keeps every promise: declared memory, fraction, class's slice."""
    if offer.resource.endswith("-me") or offer.milli < wish.ask.fraction_milli:
        return False
    if wish.declared is not None:
        return _has_memory(offer, wish.declared)
    if wish.floor is None or offer.mode is SharingMode.WHOLE or wish.only_fractions:
        return True
    if offer.mode is SharingMode.TIMESLICE and not offer.size_gb:
        # Replicas of a whole GPU each see all of its memory: the class asks for a card.
        card = offer.memory_mib * 1000 // offer.milli
        return offer.memory_mib == 0 or card >= wish.floor.mib
    return _has_memory(offer, wish.floor)


def _has_memory(offer: Offer, memory: MemoryAsk | None) -> bool:
    """Compare declared with usable memory; a size that names a slice means that slice."""
    if memory is None:
        return True
    nominal = _nominal_gb(offer)
    if memory.names_gb and nominal:
        if memory.names_gb == offer.size_gb:
            return True
        if is_slice_size(memory.names_gb):
            return nominal >= memory.names_gb
    return _usable_mib(offer) >= memory.mib


def _nominal_gb(offer: Offer) -> int:
    """Return the size that an offer goes by, 0 for a replica, which has none of its own."""
    if not offer.isolated:
        return 0
    if offer.size_gb:
        return offer.size_gb
    if offer.memory_mib:
        return -(-offer.memory_mib // 1024)
    model = model_of(model_name(offer.product))
    return model.memory_gb if model is not None else 0


def _usable_mib(offer: Offer) -> int:
    """Return the memory of one unit; where no label tells it, a careful estimate, or 0."""
    if offer.memory_mib:
        return offer.memory_mib
    # Firmware and driver keep a part: slices show 90 to 98 % of the GiB they go by.
    return _nominal_gb(offer) * 900


def _is_unsteady(offer: Offer, wish: _Wish) -> bool:
    """Say whether machines that can be taken away would carry what must not be interrupted."""
    if wish.work_class is None or wish.work_class.preemptible:
        return False
    pool = wish.policy.pool_named(offer.pool)
    return pool is not None and pool.capacity_type is CapacityType.SPOT


def _cost(offer: Offer, policy: Policy) -> int:
    for pool in policy.pools:
        if pool.name == offer.pool:
            return offer.milli * pool.rate_millionths
    return offer.milli * 1_000_000


def _preference(mode: SharingMode, wish: _Wish) -> Callable[[Offer], tuple[int | str, ...]]:
    """Order the offers of one mode: smallest sufficient slice; whole GPUs in pools' order."""
    policy = wish.policy
    ranks = {pool.name: index for index, pool in enumerate(policy.pools)}

    def rank(offer: Offer) -> int:
        return ranks.get(offer.pool, len(ranks))

    if mode is SharingMode.WHOLE:
        return lambda offer: (
            not _has_memory(offer, wish.floor),
            rank(offer),
            offer.memory_mib,
            offer.key,
        )
    if mode is SharingMode.MIG:
        # Slices with media engines are scarce: one a GPU.
        return lambda offer: (
            offer.size_gb,
            offer.resource.endswith((".me", ".me.all", ".gfx")),
            _cost(offer, policy),
            rank(offer),
            offer.key,
        )
    return lambda offer: (offer.memory_mib, _cost(offer, policy), rank(offer), offer.key)


def _combine(ask: PodAsk, lists: dict[str, list[Offer]]) -> list[Option]:
    """Make options; where several names are asked, of one product of one pool each."""
    if len(lists) == 1:
        ((name, found),) = lists.items()
        return [_option(ask, {name: offer}) for offer in found]
    options = []
    first, *rest = lists
    for offer in lists[first]:
        chosen = {first: offer}
        for name in rest:
            for other in lists[name]:
                if (other.pool, other.product) == (offer.pool, offer.product):
                    chosen[name] = other
                    break
        if len(chosen) == len(lists):
            options.append(_option(ask, chosen))
    return options


def _option(ask: PodAsk, chosen: dict[str, Offer]) -> Option:
    given = {name: offer.resource for name, offer in chosen.items()}
    if len(ask.gpu_containers) == 1:
        units = {given[name]: amount for name, amount in ask.units.items()}
    else:
        amounts: dict[str, list[tuple[ContainerKind, int]]] = {}
        for item in ask.gpu_containers:
            if item.resource is not None:
                target = given[item.resource.name]
                amounts.setdefault(target, []).append((item.kind, item.count))
        units = {name: sum_containers(parts) for name, parts in amounts.items()}
    weights = {offer.resource: offer.milli for offer in chosen.values()}
    # A fraction must be rewritten even where the name stays: to 1.
    rename = {
        name: target for name, target in given.items() if name != target or ask.fraction_milli
    }
    first = next(iter(chosen.values()))
    return Option(
        pool=first.pool,
        product=first.product,
        mode=first.mode.value,
        milli=sum(weights[name] * amount for name, amount in units.items()),
        units=units,
        rename=rename,
        requirements=_join(tuple(chosen.values())),
        isolated=all(offer.isolated for offer in chosen.values()),
        memory_mib=min(offer.memory_mib for offer in chosen.values()),
    )


def _join(offers: tuple[Offer, ...]) -> tuple[NodeRequirement, ...]:
    if len(offers) == 1:
        return offers[0].requirements
    found: dict[NodeRequirement, None] = {}
    for offer in offers:
        found.update(dict.fromkeys(offer.requirements))
    return tuple(found)


def _no_option(wish: _Wish, name: str, offers: Sequence[Offer], open_offers: list[Offer]) -> str:
    ask = wish.ask
    # Of all that ask for it, the one that asks for most of it.
    asking = [item for item in ask.gpu_containers if item.resource and item.resource.name == name]
    most = max(asking, key=lambda item: item.count, default=None)
    container, count = (most.name, most.count) if most is not None else ("", 1)
    asked = f"{count} × {name}" if count > 1 else name
    if ask.memory is not None:
        asked += f" with {ask.memory.text} of memory"
    elif ask.fraction_milli:
        asked += f": {ask.fraction_milli / 1000:g}"
    if offers and not open_offers:
        why = "the team's limit is 0 in every pool that could serve it"
        return messages.option_missing(container, asked, why, offered_names(offers))
    given = f"class {wish.work_class.name}" if wish.work_class is not None else "no class"
    modes = ", ".join(wish.modes) or "whole GPUs"
    if name != GPU:
        named = [offer for offer in open_offers if offer.resource == name]
        if not named:
            why = "no node advertises it"
        elif ask.memory is not None:
            why = "it has less memory than declared"
        else:
            why = f"{given} requires isolation, which replicas lack"
    elif count > 1 and wish.modes and SharingMode.WHOLE not in wish.modes:
        why = f"several GPUs must be whole ones, {given} gives {modes}: ask for 1, or another class"
    elif count > 1:
        why = "several GPUs must be whole ones of one model"
    elif wish.floor is not None:
        why = f"nothing with {wish.floor.text} for {given} ({modes})"
    else:
        why = f"nothing for {given} ({modes})"
    return messages.option_missing(container, asked, why, offered_names(open_offers))
