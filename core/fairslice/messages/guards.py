"""What is said of ways to GPUs that were not asked for."""

from collections.abc import Iterable

from fairslice.messages.wording import line, listed, named

__all__ = [
    "env_from_open",
    "guard_admin_access",
    "guard_admin_label",
    "guard_annotation",
    "guard_device_mount",
    "guard_env_from",
    "guard_host_namespace",
    "guard_host_path",
    "guard_node_name",
    "guard_privileged",
    "hidden",
    "watcher_blinded",
]


def env_from_open(container: str) -> str:
    """Warn: envFrom could overrule the device plugin on a GPU container."""
    return line(
        f"{named(container)}: envFrom must not set NVIDIA_VISIBLE_DEVICES on a container with GPUs"
    )


def guard_admin_access(name: str) -> str:
    """Deny: a DRA claim that reaches devices in use by others."""
    return line(f"device request {name}: adminAccess opens GPUs that others use: leave it out")


def guard_admin_label(namespace: str, team: str) -> str:
    """Deny: the label by which a namespace's claims may reach devices in use by others."""
    return line(
        f"label resource.kubernetes.io/admin-access on namespace {namespace} of team {team} opens "
        f"GPUs that others use: leave it out, or exempt the namespace in the SharingPolicy"
    )


def guard_annotation(key: str) -> str:
    """Deny: an annotation by which a runtime injects devices."""
    return line(
        f"annotation {key} injects devices past the scheduler: remove it and ask for GPUs under "
        f"resources.limits"
    )


def guard_device_mount(container: str, path: str) -> str:
    """Deny: a mount by which the container toolkit selects GPUs."""
    return line(
        f"{named(container)}: a mount at {path} selects GPUs past the scheduler: remove it "
        f"and ask for GPUs under resources.limits"
    )


def guard_env_from(container: str) -> str:
    """Deny: envFrom on a GPU container, whose keys could overrule the device plugin."""
    return line(
        f"{named(container)}: envFrom could set NVIDIA_VISIBLE_DEVICES on a container with "
        f"GPUs: name the variables you need under env with valueFrom"
    )


def guard_host_namespace(field: str) -> str:
    """Deny: a GPU pod in the node's process or IPC namespace."""
    return line(f"{field} with GPUs opens other people's GPU processes: remove {field}")


def guard_host_path(volume: str, path: str) -> str:
    """Deny: a directory of the node that holds devices or the sockets that hand them out."""
    return line(
        f"volume {volume}: hostPath {path} opens the node's devices: use an emptyDir (medium: "
        f"Memory in place of /dev/shm) or a persistent volume"
    )


def guard_node_name(node: str) -> str:
    """Deny: a GPU pod that names its node."""
    return line(
        f"nodeName {node} skips scheduler and queue: use nodeSelector kubernetes.io/hostname: "
        f"{node}"
    )


def guard_privileged(container: str, what: str) -> str:
    """Deny: a container that sees all the node's devices."""
    return line(
        f"{named(container)}: {what} opens every GPU of the node: remove it, or ask the "
        f"platform team for an exempt ServiceAccount"
    )


def hidden(what: Iterable[str]) -> str:
    """Warn: variables that reach for GPUs were set aside."""
    return line(f"set aside, since containers see only the GPUs they ask for: {listed(what)}")


def watcher_blinded(container: str, namespace: str, account: str) -> str:
    """Warn: something that watches all GPUs of its node asks for none, and would see none."""
    return line(
        f"{named(container)} would see no GPU: if it is to watch its node's, exempt ServiceAccount "
        f"{account} of namespace {namespace} in the SharingPolicy"
    )
