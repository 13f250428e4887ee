"""Spoilt reviews over HTTP: each gets a proper answer, in time, and breaks nothing.

FAIRSLICE_FUZZ_SECONDS says for how long; FAIRSLICE_FUZZ_SEED where to begin.
"""

import asyncio
import base64
import io
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonpatch
import pytest
import pytest_asyncio
import yaml

from .conftest import MakeCluster
from .mangling import Mangler
from .scene import deployment, job, modes, notebook, pod, policy, replica, review, view
from .serving import SECRET, Served, serve
from .test_policy_objects import resource

SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
RECORDED = SHARED / "fixtures/admission"
KINDS = Path(__file__).parents[1] / "kinds"
SECONDS = float(os.environ.get("FAIRSLICE_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("FAIRSLICE_FUZZ_SEED", "20261130"))
# Machines under load stall; a hang is something else.
_HANG_SECONDS = 15.0
_AT_ONCE = 4


def reviews() -> list[bytes]:
    """What is spoilt: recorded reviews where they are, and some of each kind of our own."""
    recorded = [
        path.read_bytes() for path in sorted((SHARED / "fixtures/admission").glob("*.json"))
    ]
    own: list[Any] = [notebook(), job(pods=3), deployment(2), replica("a"), pod("plain")]
    for path in sorted(KINDS.glob("*.yaml")):
        own += [each for each in yaml.safe_load_all(path.read_text()) if each]
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    own += [
        claim("ResourceClaim", {"devices": devices}),
        claim("ResourceClaimTemplate", {"spec": {"devices": devices}}),
        resource("Team", {"pools": [{"pool": "a100", "guaranteed": "1", "limit": "2"}]}, "nlp"),
        resource("SharingPolicy", {"pools": [{"name": "a100", "products": ["NVIDIA-A100-*"]}]}),
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": "nlp",
                "labels": {"resource.kubernetes.io/admin-access": "true"},
            },
        },
    ]
    for obj in own:
        obj["metadata"].setdefault("namespace", "nlp")
    ephemeral = {"subResource": "ephemeralcontainers"}
    return [
        *recorded,
        *(review(obj) for obj in own),
        *(review(obj, obj) for obj in own),
        review(notebook(), notebook(), **ephemeral),
    ]


def claim(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": "gpu", "namespace": "nlp"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta, "spec": spec}


@pytest_asyncio.fixture(params=["Enforce", "Audit"])
async def served(cluster: MakeCluster, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    seen = view(policy(modes(request.param), hiding={"strictEnvFrom": True}))
    async with serve(await cluster(seen)) as found:
        yield found


async def test_no_spoilt_review_gets_a_500_or_no_answer(served: Served) -> None:
    corpus = reviews()
    ends = time.monotonic() + SECONDS
    numbers = iter(range(SEED, 2**63))
    statuses: Counter[int] = Counter()
    slowest: list[tuple[float, int]] = []

    async def customer() -> None:
        while time.monotonic() < ends:
            number = next(numbers)
            mangler = Mangler(number)
            body = mangler.spoil(corpus)
            path = mangler.chance.choice(("mutate", "mutate", "validate", "hide", "resources"))
            started = time.monotonic()
            async with asyncio.timeout(_HANG_SECONDS):
                status, answer = await served.post(body, f"/{SECRET}/{path}?timeout=5s")
            slowest.append((time.monotonic() - started, number))
            statuses[status] += 1
            assert status in ((413,) if len(body) > 2**23 else (200, 400)), (number, answer)
            if status == 200:
                check(body, answer, number)
            else:
                assert answer.count(b"\n") == 0, number

    async with asyncio.TaskGroup() as customers:
        for _ in range(_AT_ONCE):
            customers.create_task(customer())
    assert statuses[200] > statuses[400] > 0, statuses
    # It still answers as if nothing had been.
    assert (await served.post(review(notebook())))[0] == 200
    if SECONDS >= 10:
        print(dict(statuses), "slowest", sorted(slowest, reverse=True)[:3])


def check(body: bytes, answer: bytes, number: int) -> None:
    """Fail unless the API server would take this answer."""
    response = json.loads(answer)["response"]
    assert isinstance(response["allowed"], bool), number
    texts = [*response.get("warnings", ()), response.get("status", {}).get("message", "")]
    assert all(len(text) <= 256 and text.isprintable() for text in texts), (number, texts)
    assert ("patch" in response) == ("patchType" in response), number
    if "patch" in response:
        patch = json.loads(base64.b64decode(response["patch"]))
        # What nobody looked at may be no JSON.
        request = json.loads(body.decode(errors="replace"))["request"]
        assert response["uid"] == request["uid"], number
        # In place: copying goes as deep as the object is nested.
        jsonpatch.apply_patch(request["object"], patch, in_place=True)


_HEAD = f"POST /{SECRET}/mutate?timeout=5s HTTP/1.1\r\nHost: x\r\n".encode()
_BODY = review(notebook())


def spoilt_http(number: int) -> bytes:
    """Make a request, or several, that HTTP may or may not allow."""
    chance = Mangler(number).chance
    length = f"Content-Length: {len(_BODY)}\r\n\r\n".encode()
    good = _HEAD + length + _BODY
    chunked = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = f"{len(_BODY):x}\r\n".encode() + _BODY + b"\r\n0\r\n\r\n"
    raw = chance.choice(
        (
            good,
            good * 3,
            chunked + chunk,
            chunked + chunk + good,
            _HEAD + b"Content-Length: -1\r\n\r\n",
            _HEAD + b"Content-Length: 99999999999999999999\r\n\r\n" + _BODY,
            _HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + _BODY,
            _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
            _HEAD + b"Expect: 100-continue\r\n" + length + _BODY,
            _HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + length + _BODY,
            _HEAD + b"Connection: close\r\n" + length + _BODY,
            good.replace(b"HTTP/1.1", b"HTTP/1.0"),
            good.replace(b"POST", chance.choice((b"GET", b"CONNECT", b"PRI", b"\x16\x03"))),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
            _HEAD + b"".join(b"X%d: y\r\n" % n for n in range(5_000)) + b"\r\n",
            b"\r\n" * 1000 + good,
        )
    )
    spoilt = bytearray(raw)
    for _ in range(chance.choice((0, 0, 1, 3))):
        at = chance.randrange(len(spoilt) + 1)
        match chance.randrange(3):
            case 0:
                del spoilt[at:]
            case 1:
                spoilt[at : at + 1] = bytes([chance.randrange(256)])
            case _:
                spoilt[at:at] = chance.choice((b"\r\n", b"\n", b"\0", b" ", b":", b"\r\n\r\n"))
    return bytes(spoilt)


async def test_no_spoilt_http_stops_the_server(served: Served) -> None:
    ends = time.monotonic() + SECONDS
    numbers = iter(range(SEED, 2**63))

    async def customer() -> None:
        while time.monotonic() < ends:
            number = next(numbers)
            raw = spoilt_http(number)
            reader, writer = await asyncio.open_connection("localhost", served.port, ssl=served.tls)
            try:
                for part in (raw[: len(raw) // 2], raw[len(raw) // 2 :]):
                    writer.write(part)
                    await writer.drain()
                # What is whole is answered at once; what is not may wait for its rest.
                async with asyncio.timeout(0.2):
                    answer = await reader.read(65536)
                assert not answer or re.match(rb"HTTP/\d\.\d [1-4]", answer), (number, answer)
            except (TimeoutError, ConnectionError):
                pass
            finally:
                writer.transport.abort()

    async with asyncio.TaskGroup() as customers:
        for _ in range(_AT_ONCE):
            customers.create_task(customer())
    for _ in range(3):
        data = io.BytesIO(_BODY)
        url = f"{served.base}/{SECRET}/mutate"
        timeout = aiohttp.ClientTimeout(total=_HANG_SECONDS)
        async with served.session.post(url, data=data, ssl=served.tls, timeout=timeout) as reply:
            assert reply.status == 200
