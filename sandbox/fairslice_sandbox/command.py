"""`fairslice sandbox`: the cluster in a box, fairslice on it, and a day to watch."""

import asyncio
import logging
import socket
import ssl
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp

from fairslice.install import install
from fairslice.kube.connection import connect
from fairslice.redis_embedded import EmbeddedRedis
from fairslice.service import ServiceError
from fairslice.settings import Address, Settings
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.service import serve as serve_queue
from fairslice_webhook.service import serve as serve_webhook

from .box import Box, cluster_in_a_box
from .day import Day
from .model.cluster import ClusterSettings
from .narrator import Narrator
from .person import Person
from .promises import Promise
from .users import ADMIN, UserInfo

__all__ = ["BrokenPromises", "run"]

_log = logging.getLogger(__name__)

_PACE = 0.05
_STARTED_SECONDS = 30.0
_EDITORS = {"alice": "nlp", "bob": "cv"}


class BrokenPromises(ServiceError):
    """The day did not go as promised."""


async def run(settings: Settings, *, once: bool = False) -> None:
    """Run the sandbox and play the day; then end (`once`), or stay until cancelled.

    Raises BrokenPromises when a day played once went wrong.
    """
    narrator = Narrator()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairslice-")))
        people = {name: UserInfo(name, ("system:authenticated",)) for name in _EDITORS}
        narrator.chapter("A cluster in a box, with fairslice in front of it")
        box = await stack.enter_async_context(
            cluster_in_a_box(
                directory,
                people=[(user, _EDITORS[name]) for name, user in people.items()],
                settings=ClusterSettings(pace=_PACE),
            )
        )
        if settings.redis_url is None:
            redis = await stack.enter_async_context(EmbeddedRedis(directory / "redis"))
            settings = replace(settings, redis_url=redis.url)
        webhook = Address("127.0.0.1", _free_port())
        settings = replace(
            settings,
            kubeconfig=str(box.kubeconfig),
            context=None,
            listen=webhook,
            advertise=f"https://{webhook}",
            workers=1,
            status_listen=_free(settings.status_listen),
            health_listen=_free(settings.health_listen),
            data_dir=directory / "data",
        )
        async with asyncio.TaskGroup() as tasks:
            await _prepare(box)
            async with connect(settings) as client:
                await install(client, namespace=settings.namespace, mode=Mode.ENFORCE)
            services = [
                tasks.create_task(serve_queue(settings), name="queue"),
                tasks.create_task(serve_webhook(settings), name="webhook"),
            ]
            await _until_registered(box)
            status = f"http://{settings.status_listen}"
            narrator.happens(f"status page: {status}")
            narrator.happens(f"kubeconfig:  {box.kubeconfig}")
            promises = await _play(box, people, narrator)
            broken = _summary(narrator, promises)
            if not once:
                narrator.plain("")
                narrator.plain(f"The cluster keeps running until Ctrl-C. Status page: {status}")
                narrator.plain(f"Try it: export KUBECONFIG={box.kubeconfig}; kubectl get teams")
                await asyncio.Event().wait()
            for service in services:
                service.cancel()
        if broken:
            raise BrokenPromises(f"{broken} of {len(promises)} promises were broken")


async def _prepare(box: Box) -> None:
    """Make the teams' namespaces, and let their people edit there."""
    for user, namespace in _EDITORS.items():
        await box.api.create(
            "namespaces", "", {"apiVersion": "v1", "kind": "Namespace",
                               "metadata": {"name": namespace}}, user=ADMIN,
        )  # fmt: skip
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "edit",
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        await box.api.create(
            "rolebindings.rbac.authorization.k8s.io", namespace, binding, user=ADMIN
        )


async def _until_registered(box: Box) -> None:
    """Wait until the webhook has told the API server about itself."""
    kind = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
    with box.api.subscribe(kind) as events:
        if any(box.api.store.list(kind)):
            return
        async with asyncio.timeout(_STARTED_SECONDS):
            await events.get()


async def _play(box: Box, people: dict[str, UserInfo], narrator: Narrator) -> list[Promise]:
    timeout = aiohttp.ClientTimeout(total=20)
    connector = aiohttp.TCPConnector(
        ssl=ssl.create_default_context(cadata=box.server.authority.pem.decode())
    )
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        admin = Person(session, box.server, ADMIN, "default")
        alice, bob = (
            Person(session, box.server, people[name], _EDITORS[name]) for name in _EDITORS
        )
        return list(await Day(box, admin, alice, bob, narrator).play())


def _summary(narrator: Narrator, promises: list[Promise]) -> int:
    narrator.plain("")
    narrator.table(
        "The promises of the day",
        ("", "Promise", "Seen"),
        (("kept" if item.kept else "BROKEN", item.text, item.evidence) for item in promises),
    )
    return sum(1 for item in promises if not item.kept)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free(address: Address) -> Address:
    """Take the address asked for, or another port of the host if that one is taken."""
    with socket.socket() as probe:
        try:
            probe.bind((address.host, address.port))
        except OSError:
            return Address(address.host, _free_port())
    return address
