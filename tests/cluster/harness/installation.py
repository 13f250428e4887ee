"""fairslice installed for a run, and the cluster as it was before once the run is over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from .client import Api
from .kinds import Obj
from .policy import suite_policy
from .serving import Fairslice
from .target import Target
from .waiting import eventually

__all__ = ["get_policy", "installed", "leftovers", "set_policy"]

_CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_OTHERS = (
    "CustomResourceDefinition",
    "PriorityClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
)
_CRDS = ("teams.fairslice.io", "sharingpolicies.fairslice.io")


@asynccontextmanager
async def installed(target: Target, directory: Path) -> AsyncIterator[Fairslice]:
    """Install and serve; afterwards uninstall, or restore the policy that was there before."""
    await _refuse_if_served(target.api)
    crds = [await target.api.find("CustomResourceDefinition", name) for name in _CRDS]
    was_installed = any(crds)
    before = await get_policy(target.api) if was_installed else None
    serving = Fairslice(target.kubeconfig, directory, may_uninstall=not was_installed)
    try:
        await serving.start()
        await set_policy(target.api, suite_policy(target.run_id, target.exempt_namespace))
        yield serving
    finally:
        try:
            await target.clean_up()
            if before is not None:
                await set_policy(target.api, before)
            if serving.may_uninstall:
                await uninstall(target.api, serving)
        finally:
            await serving.stop()


async def set_policy(api: Api, policy: Obj) -> None:
    """Make the policy's spec what this one says, whole."""
    found = await get_policy(api)
    if found is None:
        await api.create({**policy, "metadata": {"name": "default"}})
    else:
        await api.replace({**found, "spec": policy["spec"]})


async def uninstall(api: Api, serving: Fairslice) -> None:
    """Take fairslice away by its own command, and fail if it leaves anything behind."""
    for program in serving.programs:
        await program.stop()
    result = await serving.command("uninstall", "--yes", within=60)
    assert result.code == 0, result
    await eventually("nothing of fairslice is left", lambda: leftovers(api), lambda left: not left)


async def leftovers(api: Api) -> list[str]:
    """Name what is there of an installation."""
    return [
        f"{kind} {name}"
        for kind in (*_CONFIGURATIONS, *_OTHERS)
        for name in [obj["metadata"]["name"] for obj in await api.list(kind)]
        if name.startswith("fairslice") or name in _CRDS
    ]


async def _ours(api: Api, kind: str) -> list[Obj]:
    return [obj for obj in await api.list(kind) if obj["metadata"]["name"].startswith("fairslice")]


async def get_policy(api: Api) -> Obj | None:
    """Read the policy, None if there is none or its kind is unknown."""
    return await api.find("SharingPolicy", "default")


async def _refuse_if_served(api: Api) -> None:
    for kind in _CONFIGURATIONS:
        if await _ours(api, kind):
            raise RuntimeError(
                f"fairslice is already registered on {api.endpoint.url}: the suite brings its own; "
                "run `fairslice uninstall` first, or use another cluster"
            )
