"""Objects of one template are answered as each by itself would be."""

import asyncio
import itertools
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import CollectorRegistry

from fairslice.booking import Booking
from fairslice_queue.ledger import (
    Attachment,
    BookingForm,
    BookRequest,
    Held,
    LedgerUnavailable,
    Outcome,
    Verdict,
)
from fairslice_queue.ledger_asking import book_arguments
from fairslice_webhook import admission
from fairslice_webhook.admission import Admission
from fairslice_webhook.decide import Phase
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.review import decode_review
from fairslice_webhook.templates import Template, Templates
from fairslice_webhook.view import Call, View

from .scene import NOW, Kept, container, job, modes, notebook, pod, policy, review, view
from .test_idempotence import NODES, TEAM, pods


class _Never(Templates):
    def of(self, *_: Any) -> Template | None:
        return None


@dataclass
class Books:
    """A ledger that answers as it is told, and keeps what it was asked."""

    answers: list[str]
    asked: list[list[bytes]] = field(default_factory=list)

    async def book(self, request: BookRequest) -> Outcome:
        self.asked.append(book_arguments(request))
        return self._next(request.booking)

    async def book_alike(
        self, form: BookingForm, booking_id: str, name: str, now: float
    ) -> Outcome:
        self.asked.append(form.filled(booking_id, name, now))
        return self._next(structs.replace(form.request.booking, id=booking_id))

    def _next(self, booking: Booking) -> Outcome:
        match self.answers[len(self.asked) - 1]:
            case "first" | "last" as which:
                chosen = 0 if which == "first" else len(booking.options) - 1
                option = booking.options[chosen]
                place = {"node": booking.pods}
                return Outcome(
                    verdict=Verdict.BOOKED, id=booking.id, chosen=chosen, option=option, place=place
                )
            case "earlier":
                option = booking.options[0]
                return Outcome(verdict=Verdict.BOOKED, id="b" + "e" * 20, chosen=0, option=option)
            case "queued":
                return Outcome(verdict=Verdict.QUEUED, id=booking.id, cause="capacity")
            case "denied":
                return Outcome(
                    verdict=Verdict.DENIED, id=booking.id, cause="limit", subject="a100", limit=4000
                )
        raise LedgerUnavailable("away")

    async def attach(self, *_: Any, **__: Any) -> Attachment:
        return Attachment(accepted=False, cause="gone")

    async def held(self, _: str) -> Held:
        return Held()


def answered(
    bodies: list[bytes], seen: View, books: Books, templates: Templates
) -> tuple[list[bytes], list[Any]]:
    numbers = itertools.count()

    def call() -> Call:
        number = next(numbers)
        return Call(NOW + number * 2.5, f"b{number:020x}", f"p{number:020x}")

    metrics, sink = WebhookMetrics(CollectorRegistry()), Kept()
    place = Admission(books, metrics, sink, call=call, templates=templates)  # type: ignore[arg-type]

    async def run() -> list[bytes]:
        return [await place.answer(body, seen, Phase.MUTATE, 5.0) for body in bodies]

    return asyncio.run(run()), sink.records


def copies(obj: dict[str, Any], count: int, *, user: str = "alice") -> list[bytes]:
    """Make objects of one template: other names, other token volumes, other times of writing."""
    made = []
    for number in range(count):
        copy = deepcopy(obj)
        if "name" in copy["metadata"]:
            copy["metadata"]["name"] += f"-{number}"
        copy["metadata"]["managedFields"] = [{"time": f"2026-11-30T10:00:{number:02}Z"}]
        if copy["kind"] == "Pod":
            token = f"kube-api-access-{number:05}"
            copy["spec"]["volumes"] = [{"name": token, "projected": {}}]
            mount = {"name": token, "mountPath": "/var/run/secrets"}
            copy["spec"]["containers"][0].setdefault("volumeMounts", []).append(mount)
        made.append(review(copy, user=user))
    return made


outcomes = st.lists(
    st.sampled_from(["first", "first", "first", "last", "earlier", "queued", "denied", "away"]),
    min_size=6,
    max_size=6,
)
seen_by = st.sampled_from(
    [
        view(teams=(TEAM,), nodes=NODES),
        view(policy(modes("Audit")), teams=(TEAM,), nodes=NODES),
        view(policy(modes("Enforce", rewrite="Audit", hide="Off")), teams=(TEAM,), nodes=NODES),
    ]
)
jobs = st.builds(
    lambda gpus, count, labels: job(gpus=gpus, pods=count, metadata={"labels": labels}),
    st.sampled_from([0, 1, 2]),
    st.integers(1, 3),
    st.sampled_from([{}, {"fairslice.io/class": "training"}, {"fairslice.io/class": "x"}]),
)


@settings(max_examples=150, deadline=None)
@given(pods() | jobs, seen_by, outcomes)
def test_a_repeated_answer_is_the_fresh_one(
    obj: dict[str, Any], seen: View, told: list[str]
) -> None:
    bodies = copies(obj, len(told))
    repeated, fresh = Books(told), Books(told)
    assert answered(bodies, seen, repeated, Templates()) == answered(bodies, seen, fresh, _Never())
    assert repeated.asked == fresh.asked


@pytest.mark.parametrize("obj", [pod("p", container()), notebook(), job()])
def test_from_the_second_on_nothing_is_decided_afresh(
    obj: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = 0
    real = admission.decide

    def counting(*arguments: Any) -> Any:
        nonlocal decided
        decided += 1
        return real(*arguments)

    monkeypatch.setattr(admission, "decide", counting)
    answered(copies(obj, 20), view(), Books(["first"] * 20), Templates())
    assert decided == 1


def test_nothing_is_kept_beyond_its_minute_or_its_view() -> None:
    known, first, second = Templates(), view(), view()
    one = decode_review(review(notebook()))

    def of(seen: View, now: float) -> Template | None:
        return known.of(one, seen, Call(now, "b", "p"), Phase.MUTATE)

    assert NOW % 60 == 0
    template = of(first, NOW)
    assert template is not None
    assert of(first, NOW + 59.9) is template
    later = of(first, NOW + 60)
    assert later is not template
    assert of(first, NOW + 60.1) is later
    assert of(second, NOW + 60.2) is not later


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "bob"},
        {"namespace": "vision"},
        {"userInfo": {"username": "alice", "groups": ["system:nodes"]}},
        {"dryRun": True},
        {"subResource": "ephemeralcontainers"},
        {"operation": "UPDATE"},
    ],
)
def test_another_sender_place_or_kind_of_request_is_another_template(
    fields: dict[str, Any],
) -> None:
    known, seen = Templates(), view()
    usual, other = (decode_review(review(notebook(), **more)) for more in ({}, fields))
    first, again, third = (
        known.of(one, seen, Call(NOW, "b", "p"), Phase.MUTATE) for one in (usual, usual, other)
    )
    assert first is not None
    assert again is first
    assert third is not first


def test_the_memory_of_templates_is_bounded() -> None:
    known, seen, call = Templates(), view(), Call(NOW, "b", "p")
    for number in range(3000):
        one = decode_review(review(notebook(labels={"n": str(number)})))
        known.of(one, seen, call, Phase.MUTATE)
        known.of(one, seen, call, Phase.MUTATE)
    assert len(known) <= 2048
    large = decode_review(review(notebook(annotations={"x": "y" * 20_000})))
    for _ in range(3):
        assert Templates().of(large, seen, call, Phase.MUTATE) is None
