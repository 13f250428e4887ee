"""kube-scheduler: one pass decides for every waiting pod, a loop carries the verdicts out."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Signal
from fairslice_sandbox.model.fit import (
    PREEMPTED,
    Misfit,
    NodeState,
    PodView,
    Snapshot,
    misfit,
    score,
)
from fairslice_sandbox.model.objects import Obj, key_of, rfc3339, uid
from fairslice_sandbox.model.preemption import Budget, Victims, ineligible, preempt

__all__ = ["Bind", "Gated", "Scheduler", "Unschedulable", "schedule"]

_LOG = logging.getLogger(__name__)
NAME = "default-scheduler"
# What the plugin for resource claims adds since 1.34.
_NO_CLAIMS = "no new claims to deallocate,"
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


@dataclass(frozen=True, slots=True)
class Bind:
    """Put the pod on the node."""

    pod: PodView
    node: str


@dataclass(frozen=True, slots=True)
class Gated:
    """Leave the pod alone: it has scheduling gates."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """Tell the pod why it waits; evict the victims, if any, to make room on `nominated`."""

    pod: PodView
    message: str
    nominated: str = ""
    victims: tuple[PodView, ...] = ()


Verdict = Bind | Gated | Unschedulable


def schedule(
    nodes: Iterable[NodeState], pods: Sequence[PodView], budgets: Sequence[Budget] = ()
) -> list[Verdict]:
    """Decide for every pod without a node: highest priority first, then oldest.

    The nodes given are used up: what is bound here counts for the pods that follow.
    """
    snapshot = Snapshot.of(nodes, pods)
    waiting = [
        pod
        for pod in pods
        if not (pod.node or pod.terminal or pod.deleting)
        and pod.spec.get("schedulerName", NAME) == NAME
    ]
    waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.key))
    return [Gated(pod) if pod.gated else _place(pod, snapshot, budgets) for pod in waiting]


def _place(pod: PodView, snapshot: Snapshot, budgets: Sequence[Budget]) -> Verdict:
    refusals: dict[str, Misfit] = {}
    fitting: list[NodeState] = []
    for node in snapshot.nodes.values():
        refusal = misfit(pod, node, snapshot)
        if refusal is None:
            fitting.append(node)
        else:
            refusals[node.name] = refusal
    if fitting:
        best = min(fitting, key=lambda node: (node.name != pod.nominated, score(pod, node)))
        best.place(pod)
        _forget(pod, snapshot)
        return Bind(pod, best.name)
    if not snapshot.nodes:
        return Unschedulable(pod, "no nodes available to schedule pods")
    total = len(snapshot.nodes)
    message = _tally(total, (reason for item in refusals.values() for reason in item.reasons))
    barred = ineligible(pod, snapshot)
    if barred is not None:
        return Unschedulable(pod, f"{message} {_NO_CLAIMS} preemption: {barred}", pod.nominated)
    outcome = preempt(pod, snapshot, refusals, budgets)
    if not isinstance(outcome, Victims):
        why = _tally(total, outcome.values())
        return Unschedulable(pod, f"{message} {_NO_CLAIMS} preemption: {why}")
    _forget(pod, snapshot)
    promised = replace(pod, nominated=outcome.node)
    snapshot.nominated.setdefault(outcome.node, []).append(promised)
    return Unschedulable(pod, message, outcome.node, outcome.pods)


def _forget(pod: PodView, snapshot: Snapshot) -> None:
    for promised in snapshot.nominated.values():
        promised[:] = [item for item in promised if item.uid != pod.uid]


def _tally(total: int, reasons: Iterable[str]) -> str:
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{total} nodes are available: {', '.join(counted)}."


class Scheduler:
    """Runs a pass whenever pods, nodes or budgets changed."""

    def __init__(self, client: Client, retry_seconds: float = 1.0) -> None:
        """Act as `client`; a pass in which a write failed is repeated after a while."""
        self._client = client
        self._retry_seconds = retry_seconds
        self._views: dict[str, tuple[str, PodView]] = {}
        self.changed = Signal(client.clock)

    async def run(self) -> None:
        """Schedule until cancelled."""
        done = True
        while True:
            await self.changed.wait(None if done else self._retry_seconds)
            done = await self._pass()

    async def _pass(self) -> bool:
        verdicts = schedule(
            [NodeState.of(node) for node in self._client.list("nodes")],
            self._read_pods(),
            [_budget(item) for item in self._client.list("poddisruptionbudgets.policy")],
        )
        done = True
        evicted: set[str] = set()
        for verdict in verdicts:
            try:
                match verdict:
                    case Bind():
                        await self._bind(verdict)
                    case Gated(pod=pod):
                        await self._say(pod, "SchedulingGated", GATED_MESSAGE)
                    case Unschedulable():
                        await self._refuse(verdict, evicted)
            except ApiError as error:
                # A pod that is gone, changed or refused: the next pass sees it as it is then.
                done = done and error.code == 404
                _LOG.info("%s: %s", verdict.pod.key, error)
        return done

    def _read_pods(self) -> list[PodView]:
        seen: dict[str, tuple[str, PodView]] = {}
        for pod in self._client.list("pods"):
            version = pod["metadata"]["resourceVersion"]
            known = self._views.get(uid(pod))
            seen[uid(pod)] = known if known and known[0] == version else (version, PodView.of(pod))
        self._views = seen
        return [view for _, view in seen.values()]

    async def _bind(self, verdict: Bind) -> None:
        pod = verdict.pod
        await self._client.bind(pod.key, pod.uid, verdict.node)
        if pod.nominated:
            await self._client.patch(
                "pods", pod.key, {"status": {"nominatedNodeName": None}}, "status"
            )
        text = f"Successfully assigned {pod.key.namespace}/{pod.key.name} to {verdict.node}"
        await self._event(pod, "Normal", "Scheduled", text)

    async def _refuse(self, verdict: Unschedulable, evicted: set[str]) -> None:
        pod = verdict.pod
        for victim in verdict.victims:
            if victim.deleting or victim.uid in evicted:
                continue
            evicted.add(victim.uid)
            await self._evict(victim, verdict)
        changed = await self._say(pod, "Unschedulable", verdict.message, verdict.nominated)
        if changed:
            await self._event(pod, "Warning", "FailedScheduling", verdict.message)

    async def _evict(self, victim: PodView, verdict: Unschedulable) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastTransitionTime": rfc3339(self._client.clock.now()),
            "reason": PREEMPTED,
            "message": f"{NAME}: preempting to accommodate a higher priority pod",
        }
        try:
            await self._client.patch(
                "pods", victim.key, {"status": {"conditions": [condition]}}, "status"
            )
            await self._client.delete("pods", victim.key, uid=victim.uid)
        except ApiError as error:
            if error.code != 404:
                raise
            return
        text = f"Preempted by pod {verdict.pod.uid} on node {verdict.nominated}"
        await self._event(victim, "Normal", "Preempted", text)

    async def _say(self, pod: PodView, reason: str, message: str, nominated: str = "") -> bool:
        known = pod.condition or {}
        same = known.get("reason") == reason and known.get("message") == message
        if same and pod.nominated == nominated:
            return False
        status: Obj = {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastTransitionTime": known.get("lastTransitionTime")
                    or rfc3339(self._client.clock.now()),
                    "reason": reason,
                    "message": message,
                }
            ]
        }
        if pod.nominated != nominated:
            status["nominatedNodeName"] = nominated or None
        await self._client.patch("pods", pod.key, {"status": status}, "status")
        return not same

    async def _event(self, pod: PodView, kind: str, reason: str, message: str) -> None:
        await self._client.event("v1", "Pod", pod.key, pod.uid, kind, reason, message)


def _budget(item: Obj) -> Budget:
    allowed = (item.get("status") or {}).get("disruptionsAllowed") or 0
    return Budget(key_of(item).namespace, (item.get("spec") or {}).get("selector"), allowed)
