"""The webhook on the wire: TLS, odd requests, deadlines, draining, health."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairslice.settings import Address
from fairslice_webhook.decide import Phase
from fairslice_webhook.server import HealthServer

from .conftest import MakeCluster
from .scene import container, no_figures, notebook, pod, review
from .serving import SECRET, Served, serve


@pytest_asyncio.fixture
async def served(cluster: MakeCluster) -> AsyncIterator[Served]:
    async with serve(await cluster()) as found:
        yield found


async def test_a_review_is_answered_over_tls(served: Served) -> None:
    status, body = await served.post(review(notebook()), f"/{SECRET}/mutate?timeout=5s")
    assert status == 200
    response = json.loads(body)["response"]
    assert response["uid"] == "review-1"
    assert response["patchType"] == "JSONPatch"


@pytest.mark.parametrize(
    "path",
    ["/", "/mutate", "/wrong/mutate", f"/{SECRET}", f"/{SECRET}/other", f"/{SECRET}x/mutate"],
)
async def test_a_wrong_path_is_not_found(served: Served, path: str) -> None:
    assert (await served.post(review(notebook()), path))[0] == 404


async def test_only_posts_are_answered(served: Served) -> None:
    async with served.session.get(f"{served.base}/{SECRET}/mutate", ssl=served.tls) as response:
        assert response.status == 405


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{}}',
        b'{"kind":"Pod","apiVersion":"v1"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
async def test_what_is_no_review_is_refused_in_one_line(served: Served, body: bytes) -> None:
    status, text = await served.post(body)
    assert status == 400
    assert text.count(b"\n") == 0


async def test_a_body_beyond_the_limit_is_refused_and_a_large_one_answered(
    served: Served,
) -> None:
    big = pod("big", container(), annotations={f"k{n}": "x" * 100_000 for n in range(28)})
    assert (await served.post(review(big)))[0] == 200
    assert (await served.post(b"x" * (8 * 1024 * 1024 + 1)))[0] == 413


async def test_one_broken_review_breaks_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patched:
        patched.setattr("fairslice_webhook.admission.decide", explode)
        assert (await served.post(review(notebook())))[0] == 500
    assert (await served.post(review(notebook())))[0] == 200


async def test_draining_loses_no_request_and_closes_every_connection(served: Served) -> None:
    results: list[int] = []
    stop = asyncio.Event()

    async def customer(number: int) -> None:
        # One connection each, as a busy API server keeps them.
        connector = aiohttp.TCPConnector(limit=1, ssl=served.tls)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not stop.is_set():
                body = review(pod(f"p{number}", container()))
                try:
                    async with session.post(f"{served.base}/{SECRET}/hide", data=body) as reply:
                        results.append(reply.status)
                        await reply.read()
                except aiohttp.ClientConnectorError:
                    # The listener is gone: a new connection goes to another replica.
                    return

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(customer(number))
        await asyncio.sleep(0.3)
        await served.server.drain(0.5)
        await served.server.stop()
        stop.set()
    assert len(results) > 50
    assert set(results) == {200}


async def test_health_tells_what_is_missing(served: Served) -> None:
    problems = ["the cluster is not listed yet"]
    health = HealthServer(lambda: problems, no_figures, served.place.metrics)
    address = await health.start(Address("127.0.0.1", 0))
    base = f"http://{address}"
    async with served.session.get(f"{base}/livez") as response:
        assert response.status == 200
    async with served.session.get(f"{base}/readyz") as response:
        assert response.status == 503
        assert "not listed yet" in await response.text()
    problems.clear()
    async with served.session.get(f"{base}/readyz") as response:
        assert response.status == 200
    await health.stop()


async def test_figures_are_counted(served: Served) -> None:
    await served.post(review(notebook()))
    await served.post(review(pod("odd", container(gpus="-1"))))
    registry = served.place.metrics.registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    common = {"phase": "mutate", "kind": "Pod", "operation": "CREATE"}
    assert value("fairslice_admission_requests_total", outcome="patched", **common) == 1
    assert value("fairslice_admission_requests_total", outcome="denied", **common) == 1
    assert value("fairslice_bookings_total", kind="Pod", verdict="booked") == 1
    assert value("fairslice_rewrites_total", pool="a100", mode="mig") == 1


async def test_an_answer_comes_within_the_deadline_though_redis_hangs(cluster: MakeCluster) -> None:
    place = await cluster()

    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    place.ledger.book = hang  # type: ignore[method-assign,assignment]
    started = asyncio.get_running_loop().time()
    raw = await place.admission.answer(review(notebook()), place.view, Phase.MUTATE, 0.1)
    assert asyncio.get_running_loop().time() - started < 1
    assert json.loads(raw)["response"]["status"]["code"] == 503


scraps = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
async def test_no_mangled_review_breaks_the_webhook(served: Served, data: st.DataObject) -> None:
    recorded = json.loads(review(notebook()))
    spot = recorded
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        inner = spot[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            spot = inner
            continue
        spot[key] = data.draw(scraps)
        break
    status, _ = await served.post(json.dumps(recorded).encode())
    assert status in (200, 400)
