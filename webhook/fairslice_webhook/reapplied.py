"""Manifests that are applied again: what admission changed at creation stays as it is stored.

The API server lets no update change these fields of a pod, and would refuse the manifest that it
took a minute ago. Whatever is put back here ends as what is stored, or is left for the API server
to refuse: nothing else can come of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairslice import messages, stamps
from fairslice.booking import Option
from fairslice.hidden_env import RUNTIME_CLASS_PREFIX, VISIBLE_DEVICES, VOID
from fairslice.kube.objects import Container, Pod
from fairslice.policy import Policy
from fairslice.quantity import QuantityError, parse_quantity
from fairslice.v1alpha1.policy import HidingSpec
from fairslice_webhook.hiding import containers_of, hides, holds_gpu, is_device
from fairslice_webhook.patching import InapplicablePatch, Op, add, apply, escape, remove
from fairslice_webhook.pod_edits import affinity_ops, gate_ops, is_gated, read_assignment
from fairslice_webhook.review import Review

__all__ = ["put_back"]

_PLAIN = msgspec.json.Decoder(dict[str, Any])
_Amounts = Mapping[str, str | int | float]


def put_back(
    review: Review, new: Pod, old: Pod, policy: Policy
) -> tuple[tuple[Op, ...], tuple[str, ...]]:
    """Undo in `new` what only undoes admission's own changes; the operations, and what to say."""
    if new.spec == old.spec:
        return (), ()
    assignment = read_assignment(old.metadata)
    option = assignment.option if assignment is not None else None
    ops: list[Op] = []
    told: list[str] = []
    before = dict(containers_of(old.spec))
    for path, container in containers_of(new.spec):
        was = before.get(path)
        # Ephemeral containers have a call of their own.
        if was is None or was.name != container.name or "/ephemeralContainers/" in path:
            continue
        ops += _env_ops(path, container, was, policy.hiding, review)
        for text, op in _resource_ops(path, container, was, option):
            ops.append(op)
            told += [text] if text else []
    if option is not None:
        ops += _affinity(review, new, option)
    ops += _class_ops(new, old)
    if is_gated(new.spec) and not is_gated(old.spec):
        ops += gate_ops(new.spec, gate=False)
    for text, op in _priority_ops(new, old, policy):
        ops.append(op)
        told.append(text)
    return tuple(ops), tuple(dict.fromkeys(told))


def _env_ops(
    path: str, container: Container, was: Container, hiding: HidingSpec, review: Review
) -> Iterator[Op]:
    """Put the stored variables back where only those differ that are hidden."""
    now, then = container.env or (), was.env or ()
    if now == then:
        return
    kept = [item for item in now if not hides(item.name, hiding)]
    if kept != [item for item in then if not hides(item.name, hiding)]:
        return
    # What was stored as it came was not hidden, and is not ours to keep.
    hidden = [item for item in then if hides(item.name, hiding)]
    if any((item.name, item.value) != (VISIBLE_DEVICES, VOID) for item in hidden):
        return
    stored = _at(_PLAIN.decode(review.old_object), path).get("env")
    yield remove(f"{path}/env") if stored is None else add(f"{path}/env", stored)


def _resource_ops(
    path: str, container: Container, was: Container, option: Option | None
) -> Iterator[tuple[str, Op]]:
    """Take away the request that was replaced, and zeros; another number stays, to be refused."""
    now, then = container.resources, was.resources
    if now is None:
        return
    for name, has, had in (
        ("limits", now.limits or {}, (then.limits if then is not None else None) or {}),
        ("requests", now.requests or {}, (then.requests if then is not None else None) or {}),
    ):
        for key, amount in has.items():
            if amount == had.get(key) or not is_device(key):
                continue
            served = _served(key, amount, had, option)
            if served is None:
                continue
            at = f"{path}/resources/{name}/{escape(key)}"
            yield served, remove(at) if key not in had else add(at, had[key])


def _served(
    key: str, amount: str | int | float, had: _Amounts, option: Option | None
) -> str | None:
    """Say whether a request is what the stored one was made of; a text if that is worth one."""
    try:
        asked = parse_quantity(str(amount))
        given = option.rename.get(key, "") if option is not None else ""
        held = parse_quantity(str(had[given])) if given in had else None
    except QuantityError:
        return None
    if asked == 0 and key not in had:
        return ""
    if held is None or (key in had and key != given):
        return None
    if asked == held:
        return ""
    if 0 < asked < 1 and held == 1:
        return messages.request_kept(key, str(amount), given)
    return None


def _affinity(review: Review, new: Pod, option: Option) -> tuple[Op, ...]:
    """Require the option's nodes again, if that is all that is missing."""
    ops = tuple(affinity_ops(new.spec.affinity, option.requirements))
    if not ops:
        return ()
    stored = _at(_PLAIN.decode(review.old_object), "/spec").get("affinity")
    try:
        done = _at(apply(ops, review.object), "/spec").get("affinity")
    except InapplicablePatch:
        return ()
    return ops if done == stored else ()


def _class_ops(new: Pod, old: Pod) -> Iterator[Op]:
    """Take the GPU runtime class away again from a pod that lost it for want of GPUs."""
    wanted = new.spec.runtime_class_name or ""
    if not wanted.startswith(RUNTIME_CLASS_PREFIX) or old.spec.runtime_class_name:
        return
    if not any(holds_gpu(container) for _, container in containers_of(old.spec)):
        yield remove("/spec/runtimeClassName")


def _priority_ops(new: Pod, old: Pod, policy: Policy) -> Iterator[tuple[str, Op]]:
    """Keep the class's PriorityClass where the manifest names one that no class owns."""
    asked, given = new.spec.priority_class_name, old.spec.priority_class_name
    owner = policy.class_of_priority(given)
    if not asked or asked == given or owner is None or policy.class_of_priority(asked) is not None:
        return
    if stamps.BOOKING in (old.metadata.annotations or {}):
        text = messages.priority_class_replaced(asked, given, owner.name)
        yield text, add("/spec/priorityClassName", given)


def _at(obj: Any, path: str) -> dict[str, Any]:
    for step in path.split("/")[1:]:
        obj = obj[int(step)] if isinstance(obj, list) else (obj or {}).get(step)
    return obj if isinstance(obj, dict) else {}
