"""Several processes answer as one: their figures, their orders, what they may use."""

import asyncio
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fairslice.settings import Address, Settings
from fairslice_certs.authority import ServingNames, create_authority, issue_certificate
from fairslice_certs.replicas import served_serial
from fairslice_webhook import workers
from fairslice_webhook.answering import Answering
from fairslice_webhook.audit import LedgerAuditSink
from fairslice_webhook.figures import counted, page
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.server import WebhookServer
from fairslice_webhook.view import View
from fairslice_webhook.worker import _Worker
from fairslice_webhook.worker_link import Certificate, Drain, Link, Look, Report, Start

from .conftest import MakeCluster


def process(*outcomes: str, seconds: float = 0.002) -> tuple[CollectorRegistry, WebhookMetrics]:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)
    for outcome in outcomes:
        metrics.answered("mutate", "Pod", "CREATE", outcome, seconds)
    return registry, metrics


def test_what_all_have_counted_is_added_up() -> None:
    own, metrics = process("allowed", "denied")
    metrics.ready.set(1)
    others = [process("allowed", "allowed", seconds=0.2)[0], process("patched")[0]]
    text = page(own, [counted(registry) for registry in others]).decode()
    values = {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("phase") != "validate"
    }
    total = "fairslice_admission_requests_total"
    assert {key[1]: value for key, value in values.items() if key[0] == total} == {
        "allowed": 3,
        "denied": 1,
        "patched": 1,
    }
    bucket = "fairslice_admission_duration_seconds_bucket"
    assert values[bucket, "0.005"] == 3
    assert values[bucket, "+Inf"] == 5
    assert values["fairslice_webhook_ready", ""] == 1
    assert text.count("# TYPE fairslice_admission_requests_total") == 1


def test_one_process_alone_shows_its_own_figures() -> None:
    own, _ = process("allowed")
    assert b'outcome="allowed"' in page(own, [])


async def test_orders_and_reports_arrive_as_they_were_sent() -> None:
    settings = Settings(
        redis_url="redis://host",
        listen=Address("127.0.0.1", 9443),
        data_dir=Path("elsewhere"),
    )
    near, far = socket.socketpair()
    first, worker = await Link.over(near), await Link.over(far)
    orders = (
        Start(settings, "path", 9443),
        Certificate(b"-----BEGIN", b"\x00key"),
        Look(),
        Drain(1.5),
    )
    for order in orders:
        first.send(order)
    for order in orders:
        assert await worker.order() == order
    report = Report(("not listening yet",), "7", counted(process("allowed")[0]))
    worker.send(report)
    assert await first.report() == report
    first.close()
    assert await worker.order() is None
    worker.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000\n", None), ("150000 100000\n", 2), ("50000 100000\n", 1), ("odd", None)],
)
def test_a_quota_counts_as_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    limits = tmp_path / "cpu.max"
    limits.write_text(text)
    found = workers._quota(limits)
    assert found == cores if cores is not None else found > 1000
    assert workers._quota(tmp_path / "nothing") > 1000


def test_two_processes_answer_by_default_and_one_where_no_core_would_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores, expected in ((1, 1), (2, 1), (3, 2), (64, 2)):
        monkeypatch.setattr(workers, "usable_cores", lambda cores=cores: cores)
        assert workers.usual_count() == expected


@dataclass
class _Views:
    """A view that is there already."""

    view: View

    async def run(self) -> None:
        await asyncio.Event().wait()


def _certificate(name: str) -> tuple[Certificate, int]:
    now = datetime.now(UTC)
    authority = create_authority(now, timedelta(days=1))
    leaf = issue_certificate(authority, ServingNames.of_hosts((name,)), now, timedelta(days=1))
    serial = leaf.certificate.serial_number
    return Certificate(leaf.certificate_pem(), leaf.key_pem()), serial


async def test_a_worker_serves_each_certificate_that_it_is_given_and_drains_when_told(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    server = WebhookServer(place.admission, lambda: place.view, place.metrics, "path")
    parts: Any = Answering(
        _Views(place.view),  # type: ignore[arg-type]
        LedgerAuditSink(place.ledger),
        place.metrics.registry,
        place.metrics,
        server,
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    near, far = socket.socketpair()
    first, link = await Link.over(near), await Link.over(far)
    start = Start(Settings(listen=Address("127.0.0.1", port)), "path", port)
    working = asyncio.create_task(_Worker(link, start, parts).run())

    async def reported() -> Report:
        first.send(Look())
        found = await first.report()
        assert found is not None
        return found

    assert (await reported()).problems == ("not listening yet",)
    for name in ("one", "two"):
        certificate, serial = _certificate(name)
        first.send(certificate)
        report = await reported()
        assert report.problems == ()
        assert report.serial == str(serial)
        assert await served_serial("127.0.0.1", port) == serial
    first.send(Drain(0.0))
    await asyncio.wait_for(working, 5)
    assert await served_serial("127.0.0.1", port) is None
    first.close()
    link.close()
    await asyncio.sleep(0)
