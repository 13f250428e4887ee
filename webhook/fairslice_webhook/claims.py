"""DRA claims: access for administrators opens devices that others use.

Fields: resource.k8s.io/v1 (`exactly`), v1beta1 (flat), `firstAvailable` never has the field.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from fairslice import messages
from fairslice.kube.objects import ObjectMeta
from fairslice.v1alpha1.scalars import Mode
from fairslice_webhook.decision import Answer, Denial
from fairslice_webhook.review import Review
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["CLAIM_KINDS", "decide_claim"]

CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")

_PLAIN = msgspec.json.Decoder(dict[str, Any])


def decide_claim(review: Review, view: View, call: Call) -> Answer:
    """Refuse administrators' access to devices in a team's namespace."""
    subject = Subject.of(review, ObjectMeta(name=review.name), view, call)
    mode = subject.modes.guards
    if subject.team is None or subject.own or mode is Mode.OFF:
        return Answer()
    try:
        found = list(_administrative(_PLAIN.decode(review.object)))
    except msgspec.DecodeError:
        return Answer()
    if not found:
        return Answer()
    message = messages.guard_admin_access(found[0])
    if mode is Mode.ENFORCE:
        return Answer(denial=Denial(message))
    notes = Notes(subject)
    notes.audit("guards", "deny", message)
    return Answer((), notes.warnings, records=notes.records)


def _administrative(obj: dict[str, Any]) -> Iterator[str]:
    """Name the device requests that ask for it."""
    spec = obj.get("spec")
    # A template holds the claim's spec one level down.
    for holder in (spec, spec.get("spec") if isinstance(spec, dict) else None):
        devices = holder.get("devices") if isinstance(holder, dict) else None
        requests = devices.get("requests") if isinstance(devices, dict) else None
        for request in requests if isinstance(requests, list) else ():
            if isinstance(request, dict):
                exactly = request.get("exactly")
                inner = exactly if isinstance(exactly, dict) else {}
                if request.get("adminAccess") or inner.get("adminAccess"):
                    yield str(request.get("name", ""))
