"""CEL that decides in the API server which requests the webhook sees at all.

Every loop has a size guard that matches when exceeded: without one, 50,000 env entries hold
the API server for half a minute, and with one that skipped, they would be a way around. An
error counts by failurePolicy (Ignore skips the webhook), so everything optional is read with
`.?`, and `hide` is literally the negation of `gpu`.
"""

from collections.abc import Collection, Mapping

from msgspec import json

from fairslice import stamps
from fairslice.hidden_env import (
    INJECTING_DOMAINS,
    INJECTING_PREFIXES,
    MPS_PREFIX,
    RUNTIME_CLASS_PREFIX,
    VISIBLE_DEVICES,
    VOID,
)

__all__ = [
    "admin_access_granted",
    "app_wrapper_asks",
    "asks_for_gpus",
    "by_others",
    "changes",
    "claims_gpus",
    "names_beyond_prefixes",
    "not_asking",
    "not_exempt",
    "not_mirrored",
    "opens_devices",
    "pod_asks",
    "spark_asks",
    "stamped",
    "text",
    "train_job_asks",
]

_MAX_LIST = 32
_MAX_MAP = 32
_MAX_ENV = 256
_MAX_META = 128

_RESOURCES = ("nvidia.com/", "deviceclass.resource.kubernetes.io/")
_ENV = ("NVIDIA_", MPS_PREFIX)


def names_beyond_prefixes(names: Collection[str]) -> tuple[str, ...]:
    """Leave the resource names that are GPUs here but nowhere else, such as a DeviceClass's."""
    return tuple(sorted(name for name in names if not name.startswith(_RESOURCES)))


def pod_asks(names: Collection[str] = (), *, hidden_in_process: bool = False) -> str:
    """Match a pod that asks for GPUs in any form, tries a channel to them, or is in the books.

    `names` are further resources that stand for GPUs.
    Where the API server itself hides, variables and runtime classes of pods without GPUs are
    dealt with before the webhook could see them; then only their number counts.
    """
    lists = [f"object.?spec.?{name}.orValue([])" for name in _POD_LISTS]
    annotations = "object.?metadata.?annotations.orValue({})"
    if hidden_in_process:
        channels = [_containers(lists, _asks("c", names)), *map(_too_much_env, lists)]
    else:
        channels = [
            _containers(lists, _any(_asks("c", names), _env("c"))),
            f"object.?spec.?runtimeClassName.orValue('').startsWith('{RUNTIME_CLASS_PREFIX}')",
        ]
    return _any(
        *channels,
        "size(object.?spec.?resourceClaims.orValue([])) > 0",
        _some("object.?spec.?schedulingGates.orValue([])", "g", f"g.name == '{stamps.GATE}'"),
        stamped(),
        _some(annotations, "k", _INJECTS, _MAX_META),
    )


def not_asking(names: Collection[str] = (), *, hidden_in_process: bool = False) -> str:
    """Match exactly the pods that `pod_asks` does not."""
    return f"!({pod_asks(names, hidden_in_process=hidden_in_process)})"


def opens_devices() -> str:
    """Match a pod that a guard may have something to say about, GPUs or not."""
    lists = [f"object.?spec.?{name}.orValue([])" for name in _POD_LISTS]
    mounts = "c.?volumeMounts.orValue([])"
    opens = _any(
        "c.?securityContext.?privileged.orValue(false)",
        "size(c.?securityContext.?capabilities.?add.orValue([])) > 0",
        _some(mounts, "m", "m.mountPath.contains('nvidia-container-devices')", _MAX_META),
    )
    return _any(
        _some("object.?spec.?volumes.orValue([])", "v", "has(v.hostPath)", _MAX_META),
        _containers(lists, opens),
    )


def not_exempt(exempt: Mapping[str, frozenset[str]]) -> str:
    """Match pods but those of the exempt ServiceAccounts of each namespace; `*` is all."""
    rows = ", ".join(
        f"{text(namespace)}: [{', '.join(map(text, sorted(accounts)))}]"
        for namespace, accounts in sorted(exempt.items())
    )
    # The webhook takes an account that is not named for the default one, too.
    account = "object.?spec.?serviceAccountName.orValue('')"
    found = f"a == '*' || a == ({account} == '' ? 'default' : {account})"
    return f"!({{{rows}}}[?request.namespace].orValue([]).exists(a, {found}))"


def not_mirrored() -> str:
    """Match pods but those by which a kubelet shows what it runs by itself."""
    mark = "'kubernetes.io/config.mirror' in object.?metadata.?annotations.orValue({})"
    return f"!({mark} && 'system:nodes' in request.?userInfo.?groups.orValue([]))"


def text(value: str) -> str:
    """Write a CEL string."""
    return json.encode(value).decode()


def asks_for_gpus(*templates: str, names: Collection[str] = ()) -> str:
    """Match a workload whose pod templates ask for GPUs, or that is in the books.

    `templates` are paths such as `spec.replicatedJobs[].template.spec.template`; `[]` after a
    name means each of a list, `{}` each value of a map.
    """
    return _any(*(_template("object", path.split("."), 0, names) for path in templates), stamped())


def spark_asks(names: Collection[str] = ()) -> str:
    """Match a SparkApplication whose driver or executors ask for GPUs, or that is in the books."""
    return _any(_spark("object", names), stamped())


def train_job_asks(names: Collection[str] = ()) -> str:
    """Match a TrainJob whose own trainer asks for GPUs, or that is in the books.

    What its runtime asks for is booked pod by pod.
    """
    return _any(_trainer("object", names), stamped())


def app_wrapper_asks(*templates: str, names: Collection[str] = ()) -> str:
    """Match an AppWrapper that may wrap what asks for GPUs, or that is in the books.

    Wrapped objects are searched at the paths of all kinds; one that declares pod sets elsewhere,
    or that wraps again, can't be.
    """
    declared = "|".join(("template", *sorted(map(_declared_path, templates))))
    found = _any(
        "i.?template.?kind.orValue('') == 'AppWrapper'",
        _some("i.?podSets.orValue([])", "p", f"!p.?path.orValue('').matches('^({declared})$')"),
        _pod_spec("i.?template.?spec", names),
        *(_template("i.?template", path.split("."), 1, names) for path in templates),
        _spark("i.?template", names),
        _trainer("i.?template", names),
    )
    return _any(_some("object.?spec.?components.orValue([])", "i", found), stamped())


def _declared_path(template: str) -> str:
    """Write a path as AppWrappers declare it, as a regular expression."""
    escaped = f"template.{template}".replace(".", "[.]")
    return escaped.replace("[]", r"\\[[0-9]+\\]").replace("{}", "[.][A-Za-z]+")


def _spark(root: str, names: Collection[str]) -> str:
    parts = []
    for role in ("driver", "executor"):
        part = f"{root}.?spec.?{role}"
        lists = [f"{part}.?{field}.orValue([])" for field in ("sidecars", "initContainers")]
        parts += [
            f"{part}.?gpu.hasValue()",
            _containers(lists, _asks("c", names)),
            _pod_spec(f"{part}.?template.?spec", names),
        ]
    return _any(*parts)


def _trainer(root: str, names: Collection[str]) -> str:
    return _resources_ask(f"{root}.?spec.?trainer.?resourcesPerNode", names)


def claims_gpus() -> str:
    """Match a claim or template that may be about GPUs: by the class's name, or with adminAccess.

    A class may bear any name; what this leaves out is still sent, under Ignore.
    """
    parts = []
    for root in ("object.?spec.?devices", "object.?spec.?spec.?devices"):
        found = _any(
            _class_may_hold_gpus("r"),
            _class_may_hold_gpus("r.?exactly"),
            _some("r.?firstAvailable.orValue([])", "f", _class_may_hold_gpus("f")),
        )
        parts.append(_some(f"{root}.?requests.orValue([])", "r", found))
    return _any(*parts, stamped())


def admin_access_granted() -> str:
    """Match a namespace that gets the label by which claims in it may reach devices in use."""
    label = "object.?metadata.?labels[?'resource.kubernetes.io/admin-access'].orValue('')"
    before = label.replace("object.", "oldObject.", 1)
    return f"{label} != '' && (request.operation == 'CREATE' || {label} != {before})"


def _class_may_hold_gpus(request: str) -> str:
    name = f"{request}.?deviceClassName.orValue('')"
    return _any(
        *(f"{name}.contains('{part}')" for part in ("nvidia", "gpu", "mig")),
        f"{request}.?adminAccess.orValue(false)",
    )


def stamped() -> str:
    """Match an object with a label or annotation of ours, or more of them than can be searched."""
    found = f"k.contains('{stamps.USER_PREFIX}')"
    return _any(*(_some(each, "k", found, _MAX_META) for each in _meta_of("object")))


def changes(*, devices: bool = False) -> str:
    """Match a CREATE, new ephemeral containers, and an UPDATE of the spec or of our stamps.

    `devices` adds annotations by which runtimes inject devices. Status, finalizers and deletion
    must never wait for the webhook.
    """
    ours = f"(k.contains('{stamps.USER_PREFIX}')"
    ours += f" || {_INJECTS})" if devices else ")"
    parts = [
        "request.operation == 'CREATE'",
        "request.?subResource.orValue('') == 'ephemeralcontainers'",
        "object.?spec != oldObject.?spec",
    ]
    for new, old in zip(_meta_of("object"), _meta_of("oldObject"), strict=True):
        parts.append(f"size({new}) > {_MAX_META} || size({old}) > {_MAX_META}")
        parts.append(f"{new}.exists(k, {ours} && {new}[k] != {old}[?k].orValue(''))")
        parts.append(f"{old}.exists(k, {ours} && !(k in {new}))")
    return _any(*parts)


def by_others(account: str) -> str:
    """Match a CREATE, and what this ServiceAccount (`system:serviceaccount:…`) doesn't update.

    The queue's own patches are no news; each would cost the API server a call.
    """
    return (
        f"request.operation == 'CREATE' || "
        f"request.?userInfo.?username.orValue('') != {text(account)}"
    )


_POD_LISTS = ("containers", "initContainers", "ephemeralContainers")
_TEMPLATE_LISTS = ("containers", "initContainers")


def _meta_of(root: str) -> tuple[str, str]:
    return (
        f"{root}.?metadata.?labels.orValue({{}})",
        f"{root}.?metadata.?annotations.orValue({{}})",
    )


def _template(root: str, path: list[str], depth: int, names: Collection[str]) -> str:
    """Search below `root`, descending into the lists and maps on the path."""
    for index, segment in enumerate(path):
        if segment.endswith(("[]", "{}")):
            name, kind = segment[:-2], segment[-2:]
            group = ".?".join([root, *path[:index], name]) + f".orValue({kind})"
            item = f"i{depth}"
            found = _template(
                item if kind == "[]" else f"{group}[{item}]", path[index + 1 :], depth + 1, names
            )
            return _some(group, item, found, _MAX_LIST)
    return _pod_spec(".?".join([root, *path, "spec"]), names)


def _pod_spec(spec: str, names: Collection[str]) -> str:
    lists = [f"{spec}.?{name}.orValue([])" for name in _TEMPLATE_LISTS]
    return _any(
        _containers(lists, _asks("c", names)), f"size({spec}.?resourceClaims.orValue([])) > 0"
    )


def _containers(lists: list[str], found: str) -> str:
    return f"[{', '.join(lists)}].exists(l, {_some('l', 'c', found, _MAX_LIST)})"


def _asks(container: str, names: Collection[str]) -> str:
    return _resources_ask(f"{container}.?resources", names)


def _resources_ask(resources: str, names: Collection[str]) -> str:
    maps = [f"{resources}.?{name}.orValue({{}})" for name in ("limits", "requests")]
    gpu = _starts("k", _RESOURCES)
    if names:
        gpu = _any(gpu, f"k in [{', '.join(map(text, names))}]")
    return _any(
        *(_some(each, "k", gpu, _MAX_MAP) for each in maps),
        f"size({resources}.?claims.orValue([])) > 0",
    )


def _env(container: str) -> str:
    # What hiding left behind asks for nothing: a hidden pod is not sent again.
    hidden = f"(e.name == '{VISIBLE_DEVICES}' && e.?value.orValue('') == '{VOID}')"
    found = _any(f"({_starts('e.name', _ENV)}) && !{hidden}", "e.name == 'CUDA_VERSION'")
    return _some(f"{container}.?env.orValue([])", "e", found, _MAX_ENV)


def _too_much_env(containers: str) -> str:
    """Match more variables, in all containers of a list, than may be gone through in process."""
    return f"{containers}.map(c, size(c.?env.orValue([]))).sum() > {_MAX_ENV}"


def _some(group: str, item: str, found: str, most: int = _MAX_LIST) -> str:
    return f"size({group}) > {most} || {group}.exists({item}, {found})"


def _starts(text: str, prefixes: tuple[str, ...]) -> str:
    return _any(*(f"{text}.startsWith('{prefix}')" for prefix in prefixes))


def _any(*parts: str) -> str:
    return " || ".join(parts)


_INJECTS = _any(
    _starts("k", INJECTING_PREFIXES),
    *(_any(f"k.endsWith('{domain}')", f"k.contains('{domain}/')") for domain in INJECTING_DOMAINS),
)
