"""Guards: ways to devices that no environment variable closes, refused in team namespaces.

Sources: nvidia-container-toolkit (volume-mount requests, CDI annotations, NRI plugin),
containerd's device-injector, kubelet's plugin socket.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from posixpath import normpath

from fairslice import messages
from fairslice.hidden_env import (
    ALWAYS_HIDDEN,
    INJECTING_DOMAINS,
    INJECTING_PREFIXES,
    MPS_PREFIX,
    VISIBLE_DEVICES,
)
from fairslice.kube.objects import Container, Pod
from fairslice.v1alpha1.policy import DeviceListStrategy, HidingSpec
from fairslice_webhook.hiding import containers_of, holds_gpu

__all__ = [
    "annotation_breaches",
    "breaches",
    "container_breaches",
    "opens_devices",
    "sets_devices",
]

_DEVICE_MOUNTS = "/var/run/nvidia-container-devices"

# A process's root directory under /proc is the node's.
_DANGEROUS = ("/dev", "/proc")
_DANGEROUS_PREFIXES = (
    "/etc/cdi",
    # What the kubelet runs by itself, and how runtimes hand devices out.
    "/etc/containerd",
    "/etc/crio",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/nvidia-container-runtime",
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common",
    *(
        f"{run}/{name}"
        for run in ("/run", "/var/run")
        for name in (
            "cdi",
            "containerd",
            "cri-dockerd.sock",
            "crio",
            "docker.sock",
            "dockershim.sock",
            "k3s",
            "nvidia",
            "podman",
        )
    ),
)
_BELOW = (*(f"{path}/" for path in _DANGEROUS), *_DANGEROUS_PREFIXES)
# With the paths themselves.
_PARENTS = frozenset(
    str(parent)
    for path in map(PurePosixPath, (*_DANGEROUS, *_DANGEROUS_PREFIXES))
    for parent in (path, *path.parents)
)


def breaches(pod: Pod, hiding: HidingSpec, *, gpu: bool) -> Iterator[str]:
    """Yield a denial for each way by which a pod could reach devices it was not given."""
    spec = pod.spec
    yield from annotation_breaches(pod.metadata.annotations)
    for _, container in containers_of(spec):
        yield from container_breaches(container, hiding)
    for volume in spec.volumes or ():
        if volume.host_path is not None and opens_devices(volume.host_path.path):
            yield messages.guard_host_path(volume.name, volume.host_path.path)
    if gpu and spec.host_pid:
        yield messages.guard_host_namespace("hostPID")
    if gpu and spec.host_ipc:
        yield messages.guard_host_namespace("hostIPC")
    if gpu and spec.node_name:
        yield messages.guard_node_name(spec.node_name)


def container_breaches(container: Container, hiding: HidingSpec) -> Iterator[str]:
    """Yield the denials that one container earns."""
    security = container.security_context
    if security is not None:
        if security.privileged:
            yield messages.guard_privileged(container.name, "privileged")
        added = (security.capabilities.add if security.capabilities is not None else None) or ()
        # The API takes names with and without the prefix, and ALL for every one.
        if any(name.upper().removeprefix("CAP_") in ("SYS_ADMIN", "ALL") for name in added):
            yield messages.guard_privileged(container.name, "CAP_SYS_ADMIN")
    for mount in container.volume_mounts or ():
        # The toolkit takes whatever follows, be it after a slash or not.
        if _clean(mount.mount_path).startswith(_DEVICE_MOUNTS):
            yield messages.guard_device_mount(container.name, mount.mount_path)
    envvar = hiding.device_list_strategy is DeviceListStrategy.ENVVAR
    if (
        hiding.strict_env_from
        and envvar
        and sets_devices(container, hiding)
        and holds_gpu(container)
    ):
        yield messages.guard_env_from(container.name)


def opens_devices(path: str) -> bool:
    """Say whether a host path leads to devices, to what hands them out, or to a parent of it."""
    clean = _clean(path)
    return clean in _PARENTS or clean.startswith(_BELOW)


def sets_devices(container: Container, hiding: HidingSpec) -> bool:
    """Say whether envFrom may set a variable that chooses devices; a prefix can rule that out."""
    return any(_may_name(source.prefix, hiding) for source in container.env_from or ())


def _may_name(prefix: str, hiding: HidingSpec) -> bool:
    names = (VISIBLE_DEVICES, *ALWAYS_HIDDEN, *hiding.extra_env)
    return (
        MPS_PREFIX.startswith(prefix)
        or prefix.startswith(MPS_PREFIX)
        or any(name.startswith(prefix) for name in names)
    )


def annotation_breaches(annotations: Mapping[str, str] | None) -> Iterator[str]:
    """Yield a denial for each annotation by which a runtime injects devices."""
    for key in annotations or ():
        domain = key.partition("/")[0]
        if key.startswith(INJECTING_PREFIXES) or domain.endswith(INJECTING_DOMAINS):
            yield messages.guard_annotation(key)


def _clean(path: str) -> str:
    # normpath keeps a leading double slash, which Linux takes for a single one.
    return "/" + normpath("/" + path).lstrip("/")
