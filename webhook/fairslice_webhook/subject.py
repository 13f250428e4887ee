"""Whose object is under review: its team, its maker, its stamps, and what is said about it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from fairslice import messages, stamps
from fairslice.kube.objects import ObjectMeta, OwnerReference
from fairslice.lead_marks import author_stamp
from fairslice.policy import Modes, Team
from fairslice.rollouts import rollout_of
from fairslice.v1alpha1.scalars import Mode
from fairslice_webhook.decision import AuditRecord
from fairslice_webhook.review import Review
from fairslice_webhook.view import Call, View

__all__ = ["Notes", "Subject"]

_BOOKING_ID = re.compile(r"b[0-9a-f]{20}", re.ASCII)
# A large pod's says how many of its booking's it counts for, which the ledger adds.
_POD_ID = re.compile(r"(p[0-9a-f]{20})(?:x[0-9]+)?", re.ASCII)

# A reinvocation follows within the API server's time limit for webhooks.
_REPLAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Subject:
    """An object under review, with what decisions about it rest on."""

    review: Review
    view: View
    call: Call
    meta: ObjectMeta
    team: Team | None
    modes: Modes

    @classmethod
    def of(cls, review: Review, meta: ObjectMeta, view: View, call: Call) -> "Subject":
        """Look an object's team up."""
        team = view.teams.of(review.namespace)
        return cls(review, view, call, meta, team, view.modes(team))

    @property
    def controller(self) -> OwnerReference | None:
        """The object's controller, if it has one that can be believed."""
        owner = next((ref for ref in self.meta.owner_references or () if ref.controller), None)
        if owner is None or not owner.api_version.startswith("apps/"):
            return owner
        # Pods of these kinds are made by the cluster alone: an ordinary user who names one as
        # owner would pass for a rollout.
        return owner if self.own or self.review.user_info.of_cluster else None

    @property
    def own(self) -> bool:
        """Say whether fairslice itself sent the request."""
        return self.review.user in self.view.own_users

    @property
    def person(self) -> bool:
        """Say whether the object was created directly, rather than by a controller."""
        return not self.own and self.controller is None

    @property
    def work_enforced(self) -> bool:
        """Say whether GPU work is rewritten, counted or queued, rather than only watched."""
        modes = self.modes
        return Mode.ENFORCE in (modes.rewrite, modes.quota, modes.queue)

    @property
    def enforces_anything(self) -> bool:
        """Say whether the object may be changed at all, stamps included."""
        modes = self.modes
        return Mode.ENFORCE in (modes.hide, modes.guards, modes.rewrite, modes.quota, modes.queue)

    @property
    def work_off(self) -> bool:
        """Say whether nobody wants to know about GPU work at all."""
        modes = self.modes
        return modes.rewrite is modes.quota is modes.queue is Mode.OFF

    @property
    def books(self) -> bool:
        """Say whether work is written into the ledger."""
        return Mode.ENFORCE in (self.modes.quota, self.modes.queue)

    def stamp(self, key: str) -> str:
        """Return a stamp among the annotations; empty if absent."""
        return (self.meta.annotations or {}).get(key, "")

    @property
    def user(self) -> str:
        """Whose work it is. A controller's pods count for the controller: no person is known."""
        controller = self.controller
        if self.own or controller is None or not self._may_speak_for_others:
            return (self.own and self.stamp(stamps.USER)) or self.review.user
        # "Deployment nlp/serve" where a rollout is known.
        kind, _, name = rollout_of(self.meta)[0].partition(" ")
        if not kind:
            return f"{controller.kind}/{controller.name}"
        return f"{kind}/{name.partition('/')[2]}"

    @property
    def _may_speak_for_others(self) -> bool:
        """Say whether the sender can be a controller: the cluster's, or installed elsewhere.

        Whoever may create pods may name any object as their owner, and so leave his own cap.
        """
        sender = self.review.user_info
        return sender.of_cluster or sender.account_elsewhere(self.review.namespace)

    @property
    def submitter(self) -> dict[str, str | None]:
        """The stamps by which the queue asks later whether its submitter may still create it."""
        if self.own:
            groups = self.stamp(stamps.GROUPS) or None
        elif self.controller is None and self.review.user_info.groups:
            groups = msgspec.json.encode(self.review.user_info.groups).decode()
        else:
            groups = None
        return {stamps.USER: self.user, stamps.GROUPS: groups, stamps.MARKED: self.marked()}

    def marked(self, old: Mapping[str, str] | None = None) -> str | None:
        """The stamp that says who wrote the lead's marks; `old` are the annotations before."""
        new = self.meta.annotations
        if self.own:
            return (new or {}).get(stamps.MARKED)
        return author_stamp(new, old, self.review.user, self.review.user_info.groups)

    @property
    def booking_id(self) -> str:
        """The id to book under: the stamped one, of which the ledger knows whether it is ours."""
        stamped = self.stamp(stamps.BOOKING)
        return stamped if _BOOKING_ID.fullmatch(stamped) else self.call.booking

    def pod_stamp(self, booking: str) -> str:
        """The id of a pod among those attached to a booking."""
        stamped = self.stamp(stamps.POD_STAMP)
        found = _POD_ID.fullmatch(stamped)
        if self.stamp(stamps.BOOKING) == booking and found is not None:
            return found[1]
        return self.call.pod

    @property
    def restarts(self) -> int:
        """How often the queue has made this work anew."""
        text = self.stamp(stamps.RESTARTS) if self.own else ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0

    @property
    def queued_at(self) -> float:
        """When the work came into line first, in Unix seconds."""
        stamped = _unix(self.stamp(stamps.QUEUED_AT))
        if self.own and stamped:
            return stamped
        replayed = _BOOKING_ID.fullmatch(self.stamp(stamps.BOOKING)) is not None
        # Were any stamp believed, people would write themselves to the front of the line.
        if replayed and 0.0 <= self.call.now - stamped <= _REPLAY_SECONDS:
            return stamped
        return self.call.now

    @property
    def queued_at_text(self) -> str:
        """The same as RFC 3339, to the second."""
        return _rfc3339(self.queued_at)

    @property
    def now_text(self) -> str:
        """The time of the call as RFC 3339, to the second."""
        return _rfc3339(self.call.now)


class Notes:
    """What is to be told to the submitter, and to those who read the audit report."""

    def __init__(self, subject: Subject) -> None:
        self.warnings: list[str] = []
        self.records: list[AuditRecord] = []
        self._subject = subject

    def warn(self, text: str) -> None:
        """Tell the submitter."""
        if text not in self.warnings:
            self.warnings.append(text)

    def audit(self, feature: str, outcome: str, text: str) -> None:
        """Keep what Enforce would have done; tell the submitter if the policy wants that."""
        subject = self._subject
        if subject.view.policy.warnings:
            self.warn(messages.audit(text))
        self.records.append(
            AuditRecord(
                feature=feature,
                outcome=outcome,
                kind=subject.review.kind.kind,
                namespace=subject.review.namespace,
                name=subject.meta.name or subject.meta.generate_name + "*",
                team=subject.team.name if subject.team is not None else "",
                user=subject.user,
                message=text,
                at=subject.call.now,
            )
        )


def _unix(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
