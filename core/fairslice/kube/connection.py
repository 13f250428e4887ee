"""Connecting under one of fairslice's own ServiceAccounts, from inside or outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairslice.kube.client import KubeClient
from fairslice.kube.configuration import is_in_cluster
from fairslice.kube.tokens import ServiceAccountTokens
from fairslice.settings import Settings

__all__ = ["QUEUE_ACCOUNT", "QUEUE_LEASE", "WEBHOOK_ACCOUNT", "connect", "connect_as"]

WEBHOOK_ACCOUNT = "fairslice-webhook"
QUEUE_ACCOUNT = "fairslice-queue"
QUEUE_LEASE = "fairslice-queue"
"""Name of the Lease, in our namespace, whose holder runs the queue."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[KubeClient]:
    """Connect as whoever started the command.

    Raises KubeconfigError.
    """
    async with await KubeClient.connect(settings.kubeconfig, settings.context) as client:
        yield client


@asynccontextmanager
async def connect_as(settings: Settings, account: str) -> AsyncIterator[KubeClient]:
    """Connect as a ServiceAccount of fairslice.

    In a pod, that is the pod's own. From outside, a token is asked for with the kubeconfig's
    user; so what the queue does can be told from what its starter does by hand.
    """
    async with connect(settings) as client:
        if settings.kubeconfig is None and settings.context is None and is_in_cluster():
            yield client
            return
        tokens = ServiceAccountTokens(client, settings.namespace, account)
        async with client.acting_as(tokens) as ours:
            yield ours
