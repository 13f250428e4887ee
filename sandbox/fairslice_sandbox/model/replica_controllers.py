"""The ReplicaSet and Deployment controllers' hands."""

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.objects import Key, Obj, controller_ref, key_of, labels, matches, uid
from fairslice_sandbox.model.replicas import (
    build_pod,
    decide_deployment,
    decide_replicaset,
    is_owned,
    with_failure,
)

__all__ = ["DeploymentController", "ReplicaSetController"]


class ReplicaSetController:
    """Keeps the pods of ReplicaSets at the number they ask for."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused pod creations."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_replicaset(self, replicaset: Obj) -> None:
        """Look at a ReplicaSet that changed."""
        self.queue.add(key_of(replicaset))

    def on_pod(self, pod: Obj) -> None:
        """Look at the ReplicaSet of a pod that changed."""
        ref = controller_ref(pod)
        if ref is not None and ref["kind"] == "ReplicaSet":
            self.queue.add(Key(key_of(pod).namespace, ref["name"]))

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._client.get("replicasets.apps", key)
        if owner is None:
            return None
        pods = [
            pod
            for pod in self._client.list("pods", key.namespace)
            if is_owned(pod, owner) and matches(owner["spec"].get("selector"), labels(pod))
        ]
        plan = decide_replicaset(owner, pods)
        for pod in plan.delete:
            await self._client.delete("pods", key_of(pod), uid=uid(pod))
            text = f"Deleted pod: {key_of(pod).name}"
            await self._event(owner, "Normal", "SuccessfulDelete", text)
        refusal = await self._create(owner, plan.create)
        message = str(refusal) if refusal else None
        status = with_failure(plan.status, message, self._client.clock.now())
        if status != owner.get("status"):
            await self._client.write_status("replicasets.apps", owner, status)
        if refusal is not None:
            raise refusal
        return None

    async def _create(self, owner: Obj, count: int) -> ApiError | None:
        body = build_pod(owner, "apps/v1", "ReplicaSet", owner["spec"]["template"])
        for _ in range(count):
            try:
                pod = await self._client.create("pods", key_of(owner).namespace, body)
            except ApiError as error:
                await self._event(owner, "Warning", "FailedCreate", f"Error creating: {error}")
                return error
            text = f"Created pod: {key_of(pod).name}"
            await self._event(owner, "Normal", "SuccessfulCreate", text)
        return None

    async def _event(self, owner: Obj, kind: str, reason: str, message: str) -> None:
        key = key_of(owner)
        await self._client.event("apps/v1", "ReplicaSet", key, uid(owner), kind, reason, message)


class DeploymentController:
    """Moves Deployments from one template to the next."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused API calls."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_deployment(self, deployment: Obj) -> None:
        """Look at a Deployment that changed."""
        self.queue.add(key_of(deployment))

    def on_replicaset(self, replicaset: Obj) -> None:
        """Look at the Deployment of a ReplicaSet that changed."""
        ref = controller_ref(replicaset)
        if ref is not None and ref["kind"] == "Deployment":
            self.queue.add(Key(key_of(replicaset).namespace, ref["name"]))

    def on_pod_gone(self, pod: Obj) -> None:
        """Look at the Deployment of a pod that is gone: Recreate waits for that."""
        ref = controller_ref(pod)
        if ref is not None and ref["kind"] == "ReplicaSet":
            owner = self._client.get("replicasets.apps", Key(key_of(pod).namespace, ref["name"]))
            if owner is not None:
                self.on_replicaset(owner)

    async def _reconcile(self, key: Key) -> float | None:
        deployment = self._client.get("deployments.apps", key)
        if deployment is None:
            return None
        sets = [
            item
            for item in self._client.list("replicasets.apps", key.namespace)
            if is_owned(item, deployment)
        ]
        owners = {uid(item) for item in sets}
        pods = [
            pod
            for pod in self._client.list("pods", key.namespace)
            if (controller_ref(pod) or {}).get("uid") in owners
        ]
        plan = decide_deployment(deployment, sets, pods, self._client.clock.now())
        if plan.create is not None:
            await self._client.create("replicasets.apps", key.namespace, plan.create)
            made = plan.create
            await self._event(deployment, made["metadata"]["name"], made["spec"]["replicas"])
        for item in sets:
            size = plan.scale.get(item["metadata"]["name"])
            if size is not None:
                spec = {**item["spec"], "replicas": size}
                await self._client.update("replicasets.apps", {**item, "spec": spec})
                await self._event(deployment, item["metadata"]["name"], size)
        for item in plan.delete:
            await self._client.delete("replicasets.apps", key_of(item), uid=uid(item))
        if plan.status != deployment.get("status"):
            await self._client.write_status("deployments.apps", deployment, plan.status)
        return None

    async def _event(self, deployment: Obj, name: str, size: int) -> None:
        await self._client.event(
            "apps/v1",
            "Deployment",
            key_of(deployment),
            uid(deployment),
            "Normal",
            "ScalingReplicaSet",
            f"Scaled replica set {name} to {size}",
        )
