"""Reviews posted to the webhook as the API server posts them, and its answers checked."""

import base64
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import jsonpatch
from msgspec import json

from .client import Api
from .kinds import Obj

__all__ = ["Entry", "Verdict", "ask", "entries", "post", "review"]

_LONGEST_LINE = 256


@dataclass(frozen=True)
class Entry:
    """A webhook as it is registered."""

    name: str
    mutates: bool
    rules: tuple[Obj, ...]
    url: str
    ca: str

    def sees(self, request: Obj) -> bool:
        """Say whether the rules send this request here."""
        what = request["resource"]
        plural = "/".join(filter(None, (what["resource"], request.get("subResource", ""))))
        return any(
            what["group"] in rule["apiGroups"]
            and plural in rule["resources"]
            and request["operation"] in rule["operations"]
            for rule in self.rules
        )


@dataclass(frozen=True)
class Verdict:
    """A valid answer: what it says, and the object after its patch."""

    allowed: bool
    message: str
    warnings: tuple[str, ...]
    obj: Any


async def entries(api: Api) -> list[Entry]:
    """Read fairslice's webhooks from the API server."""
    found: list[Entry] = []
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in await api.list(kind):
            if not configuration["metadata"]["name"].startswith("fairslice"):
                continue
            for hook in configuration["webhooks"]:
                client = hook["clientConfig"]
                ca = base64.b64decode(client["caBundle"]).decode()
                mutates = kind.startswith("Mutating")
                entry = Entry(hook["name"], mutates, tuple(hook["rules"]), client["url"], ca)
                found.append(entry)
    return found


def review(kind: str, obj: Obj, *, user: str, old: Obj | None = None) -> Obj:
    """Make the review of a core object's creation, or of its update if there is an old one."""
    version = {"group": "", "version": "v1"}
    resource = {**version, "resource": f"{kind.lower()}s"}
    options = {"kind": "UpdateOptions" if old else "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-4000-8000-000000000000",
            "kind": {**version, "kind": kind},
            "resource": resource,
            "requestKind": {**version, "kind": kind},
            "requestResource": resource,
            "name": obj["metadata"].get("name", ""),
            "namespace": obj["metadata"]["namespace"],
            "operation": "UPDATE" if old else "CREATE",
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": old,
            "dryRun": False,
            "options": options,
        },
    }


async def post(entry: Entry, body: Obj | bytes) -> tuple[int, bytes]:
    """Post a body to a webhook, trusting only the CA that is registered with it."""
    trust = ssl.create_default_context(cadata=entry.ca)
    data = body if isinstance(body, bytes) else json.encode(body)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.post(
            entry.url, data=data, ssl=trust, headers={"Content-Type": "application/json"}
        ) as response,
    ):
        return response.status, await response.read()


async def ask(entry: Entry, body: Obj) -> Verdict:
    """Post a review. Raises AssertionError for an answer that the API server would not take."""
    status, raw = await post(entry, body)
    where = f"{entry.name} on {body['request']['kind']['kind']}"
    assert status == 200, f"{where}: {status} {raw[:500]!r}"
    answer = json.decode(raw)
    assert answer["apiVersion"] == "admission.k8s.io/v1", where
    assert answer["kind"] == "AdmissionReview", where
    response = answer["response"]
    assert response["uid"] == body["request"]["uid"], where
    assert isinstance(response["allowed"], bool), where
    message = (response.get("status") or {}).get("message", "")
    warnings = tuple(response.get("warnings") or ())
    _check_lines(where, [message, *warnings])
    obj = body["request"]["object"]
    if "patch" in response:
        assert entry.mutates, where
        assert response["allowed"], where
        assert response["patchType"] == "JSONPatch", where
        operations = json.decode(base64.b64decode(response["patch"]))
        obj = jsonpatch.JsonPatch(operations).apply(obj)
    return Verdict(response["allowed"], message, warnings, obj)


def _check_lines(where: str, texts: Iterable[str]) -> None:
    for text in texts:
        assert len(text) <= _LONGEST_LINE, f"{where}: {text!r} is too long"
        assert "\n" not in text, f"{where}: {text!r} is not one line"
        assert "Traceback" not in text, f"{where}: {text!r}"
