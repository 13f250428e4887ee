"""Offers and options in words: what a share is, its memory, how isolated it is."""

from collections.abc import Sequence

from fairslice.booking import Option
from fairslice.devices import Offer, model_name
from fairslice.v1alpha1.policy import SharingMode

__all__ = ["describe", "offered_names"]

_REPLICAS = (SharingMode.TIMESLICE, SharingMode.MPS)


def describe(option: Option) -> str:
    """Word an option for a warning: what it is, its memory, its isolation."""
    parts = [_describe(option, name, units) for name, units in option.units.items()]
    card = _with_article(model_name(option.product).replace("-", " "))
    for name, count in option.devices.items():
        parts.append(f"{count} × {name.removeprefix('nvidia.com/')} by claim, of {card}")
    return " and ".join(parts)


def _describe(option: Option, name: str, units: int) -> str:
    model, _, variant = option.product.partition(":")
    profile, replicas = _variant(variant)
    card = _with_article(model.replace("-", " "))
    short = name.removeprefix("nvidia.com/")
    times = f"{units} × " if units > 1 else ""
    if short.startswith("mig-"):
        profile = short.removeprefix("mig-").removesuffix(".shared")
    if profile and option.mode not in _REPLICAS:
        size = profile.partition("g.")[2].partition("gb")[0]
        given = short if short.startswith("mig-") else f"{profile} as {name}"
        return f"{times}{given}: hardware-isolated slice of {card}, {size} GB"
    if option.mode == SharingMode.WHOLE:
        return f"{units if units > 1 else 'a'} whole {model.replace('-', ' ')}"
    of = f"slice {profile} of {card}" if profile else card
    share = f"{times}1 of {replicas or 'several'}"
    if option.mode == SharingMode.MPS:
        memory = f", {option.memory_mib / 1024:.3g} GiB" if option.memory_mib else ""
        return f"{share} MPS shares of {of}{memory}: no fault isolation"
    return f"{share} time-slices of {of}: no memory isolation"


def _variant(text: str) -> tuple[str, str]:
    """Take `1g.5gb:1/2` apart: profile and number of replicas, each possibly empty."""
    profile, _, replicas = text.rpartition("1/")
    return (profile.rstrip(":"), replicas) if "1/" in text else (text, "")


def _with_article(model: str) -> str:
    return f"an {model}" if model.startswith(("A", "NVIDIA", "H")) else f"a {model}"


def offered_names(offers: Sequence[Offer]) -> tuple[str, ...]:
    """List what a cluster has, for messages: each kind of share once."""
    return tuple(dict.fromkeys(_short(offer) for offer in offers))


def _short(offer: Offer) -> str:
    # Models without a resource are those that claims are served from.
    name = offer.resource.removeprefix("nvidia.com/") or "devices"
    model, _, variant = offer.product.partition(":")
    shown = model.removeprefix("NVIDIA-")
    return f"{name} ({shown} {variant})" if variant else f"{name} ({shown})"
