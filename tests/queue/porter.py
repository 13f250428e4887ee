"""The real webhook, in-process: registered as it registers itself, asked as the API server asks."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import json
from prometheus_client import CollectorRegistry

from fairslice.webhook_configuration import Target, mutating_configuration, validating_configuration
from fairslice_sandbox.attributes import Attributes
from fairslice_sandbox.store import Obj
from fairslice_sandbox.webhooks import Hook, WebhookCaller
from fairslice_webhook.admission import Admission
from fairslice_webhook.decide import Phase
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.view import View

from .doorman import QUEUE_USER, Doorman

_TARGET = Target(namespace="fairslice-system", secret_path="s", url="https://127.0.0.1:1")
HOOKS = (mutating_configuration(_TARGET), validating_configuration(_TARGET))


class _Sink:
    def keep(self, records: Any) -> None:
        """Audit is not what is tried here."""


@dataclass
class Porter(Doorman):
    """Answers with what the webhook decides, from the view that the queue's watch has."""

    admission: Admission = field(init=False)
    _last: View | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.admission = Admission(self.ledger, WebhookMetrics(CollectorRegistry()), _Sink())

    async def mutate(self, hook: Hook, request: Attributes) -> bool:
        return await WebhookCaller.mutate(self, hook, request)

    async def validate(self, hook: Hook, request: Attributes) -> None:
        await WebhookCaller.validate(self, hook, request)

    async def _call(self, hook: Hook, review: Obj) -> Obj:
        body = json.encode(
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": review}
        )
        last = hook.webhook["clientConfig"]["url"].rpartition("/")[2]
        phase = Phase.MUTATE if last in ("mutate", "hide") else Phase.VALIDATE
        answer = json.decode(await self.admission.answer(body, self._view(), phase, 5.0))
        found: Obj = answer["response"]
        return found

    def _view(self) -> View:
        watch = self.watch
        assert watch is not None
        if not watch.is_synced:  # the queue's process has changed; the webhook's goes on
            assert self._last is not None
            return self._last
        self._last = View(
            policy=watch.policy,
            teams=watch.teams,
            inventory=watch.inventory,
            own_users=frozenset({QUEUE_USER}),
            priority_classes={},
        )
        return self._last
