"""Admission webhooks: which of them a request meets, what they are told, what they may answer.

Source: k8s.io/apiserver/pkg/admission/plugin/webhook (predicates, matchconditions, request,
mutating/dispatcher.go, validating/dispatcher.go), pkg/util/webhook.
"""

import asyncio
import base64
import binascii
import hashlib
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import jsonpatch
import jsonpointer
import msgspec

from .attributes import Attributes
from .cel import CelError, evaluate
from .errors import ApiError, bad_request, forbidden, internal
from .patching import apply_json_patch
from .selectors import matches_selector
from .store import Obj, Store

__all__ = ["MUTATING", "VALIDATING", "Hook", "WebhookCaller", "find_hooks", "validate_all"]

_GROUP = "admissionregistration.k8s.io"
MUTATING = f"mutatingwebhookconfigurations.{_GROUP}"
VALIDATING = f"validatingwebhookconfigurations.{_GROUP}"
_MAX_WARNINGS = 4096


class CallFailed(Exception):
    """The webhook couldn't be reached, or broke the protocol."""


@dataclass(frozen=True)
class Hook:
    """One registered webhook."""

    uid: str
    webhook: Obj

    @property
    def name(self) -> str:
        return str(self.webhook["name"])

    @property
    def ignores_failure(self) -> bool:
        return bool(self.webhook["failurePolicy"] == "Ignore")


def find_hooks(store: Store, configurations: str, request: Attributes) -> list[Hook]:
    """Give the hooks whose rules and selectors a request matches, in order of their names.

    Match conditions come later, against the object as the hooks before have left it.
    """
    if request.resource.group in (_GROUP, "authentication.k8s.io", "authorization.k8s.io"):
        return []
    found = []
    for configuration in sorted(
        store.list(configurations), key=lambda item: str(item["metadata"]["name"])
    ):
        for index, webhook in enumerate(configuration.get("webhooks", ())):
            if _rules_match(webhook, request) and _in_namespace(store, webhook, request):
                uid = f"{configuration['metadata']['name']}/{webhook['name']}/{index}"
                found.append(Hook(uid, webhook))
    return found


def _rules_match(webhook: Obj, request: Attributes) -> bool:
    resource = request.resource
    for rule in webhook.get("rules", ()):
        groups, versions = rule.get("apiGroups", ()), rule.get("apiVersions", ())
        operations, scope = rule.get("operations", ()), rule.get("scope", "*")
        cluster_scoped = not resource.namespaced
        if (
            ("*" in groups or resource.group in groups)
            and ("*" in versions or resource.version in versions)
            and ("*" in operations or request.operation in operations)
            and scope in ("*", "Cluster" if cluster_scoped else "Namespaced")
            and any(_names(spelled, request) for spelled in rule.get("resources", ()))
        ):
            return True
    return False


def _names(spelled: str, request: Attributes) -> bool:
    resource, _, subresource = spelled.partition("/")
    if spelled == "*/*":
        return True
    matches = resource in ("*", request.resource.plural)
    return matches and subresource in (request.subresource, "*" if request.subresource else "")


def _in_namespace(store: Store, webhook: Obj, request: Attributes) -> bool:
    selector = webhook.get("namespaceSelector")
    if not selector:
        return True
    if request.resource.key == "namespaces":
        subject = request.object or request.old
    elif not request.resource.namespaced:
        return True
    else:
        subject = store.get("namespaces", "", request.namespace)
    labels = (subject or {"metadata": {}})["metadata"].get("labels") or {}
    return matches_selector(selector, labels)


def _object_matches(webhook: Obj, request: Attributes) -> bool:
    selector = webhook.get("objectSelector")
    if not selector:
        return True
    return any(
        matches_selector(selector, obj["metadata"].get("labels") or {})
        for obj in (request.object, request.old)
        if obj is not None
    )


def _conditions_hold(hook: Hook, request: Attributes, review: Obj) -> bool:
    conditions = hook.webhook.get("matchConditions")
    if not conditions:
        return True
    # Name, namespace and subResource are absent where they are empty, as in the JSON.
    about = {k: v for k, v in review.items() if k not in ("object", "oldObject")}
    data = {"object": request.object, "oldObject": request.old, "request": about}
    errors = []
    for condition in conditions:
        try:
            if evaluate(condition["expression"], data) is not True:
                return False
        except CelError as error:
            errors.append(f"expression '{condition['expression']}' resulted in error: {error}")
    if errors and not hook.ignores_failure:
        raise forbidden(request.resource.key, request.name, errors[0])
    return not errors


def _review(request: Attributes) -> Obj:
    resource = request.resource
    kind = request.gvk
    gvr = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    review: Obj = {"uid": str(uuid.uuid4()), "kind": kind, "resource": gvr}
    if request.subresource:
        review["subResource"] = request.subresource
    review |= {"requestKind": kind, "requestResource": gvr}
    if request.subresource:
        review["requestSubResource"] = request.subresource
    if request.name:
        review["name"] = request.name
    if request.namespace:
        review["namespace"] = request.namespace
    return review | {
        "operation": request.operation,
        "userInfo": request.call.user.as_json(),
        "object": request.object,
        "oldObject": request.old,
        "dryRun": request.call.dry_run,
        "options": request.options,
    }


class WebhookCaller:
    """Calls webhooks over HTTPS, exactly as they are registered.

    `services` says where a Service is reached: (namespace, name) to host:port.
    """

    def __init__(self, services: Mapping[tuple[str, str], str] | None = None) -> None:
        self.services: dict[tuple[str, str], str] = dict(services or {})
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, hook: Hook, request: Attributes) -> bool:
        """Let a hook change request.object; say whether it was called.

        Raises ApiError: what the hook answered, or 500 if it failed and failurePolicy is Fail.
        """
        response = await self._ask(hook, request, mutating=True)
        if response is None:
            return False
        patch = response.get("patch")
        if patch:
            if request.object is None:
                raise internal(
                    f'admission webhook "{hook.name}" attempted to modify the object, which is not '
                    "supported for this operation"
                )
            try:
                operations = msgspec.json.decode(base64.b64decode(patch, validate=True))
                request.object = apply_json_patch(request.object, operations)
            except (msgspec.DecodeError, binascii.Error) as error:
                raise internal(str(error)) from error
            except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
                raise internal(str(error)) from error
        return True

    async def validate(self, hook: Hook, request: Attributes) -> None:
        """Ask a validating hook. Raises ApiError as `mutate` does."""
        await self._ask(hook, request, mutating=False)

    async def _ask(self, hook: Hook, request: Attributes, *, mutating: bool) -> Obj | None:
        if not _object_matches(hook.webhook, request):
            return None
        review = _review(request)
        if not _conditions_hold(hook, request, review):
            return None
        if request.call.dry_run and hook.webhook["sideEffects"] not in ("None", "NoneOnDryRun"):
            raise bad_request(f"admission webhook {hook.name!r} does not support dry run")
        try:
            response = await self._call(hook, review)
            _check_response(response, review["uid"], mutating=mutating)
        except CallFailed as error:
            if hook.ignores_failure:
                return None
            raise internal(f'failed calling webhook "{hook.name}": {error}') from error
        _warn(request, response.get("warnings") or [])
        if not response.get("allowed"):
            raise _denial(hook.name, response.get("status") or {})
        return response

    async def _call(self, hook: Hook, review: Obj) -> Obj:
        seconds = int(hook.webhook["timeoutSeconds"])
        url, server_name = self._address(hook.webhook["clientConfig"], seconds)
        body = msgspec.json.encode(
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": review}
        )
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                ssl=self._context(hook.webhook["clientConfig"].get("caBundle", "")),
                server_hostname=server_name,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                payload = await response.read()
                if response.status != 200:
                    raise CallFailed(f"failed to call webhook: the server responded with the "
                                     f"status code {response.status}")  # fmt: skip
        except TimeoutError as error:
            why = "context deadline exceeded"
            raise CallFailed(f'failed to call webhook: Post "{url}": {why}') from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise CallFailed(f'failed to call webhook: Post "{url}": {error}') from error
        try:
            answer = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise CallFailed(f"failed to call webhook: {error}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("response"), dict):
            raise CallFailed("webhook response was absent")
        if (answer.get("apiVersion"), answer.get("kind")) != (
            "admission.k8s.io/v1",
            "AdmissionReview",
        ):
            raise CallFailed(
                "received invalid webhook response: expected webhook response of "
                "admission.k8s.io/v1, Kind=AdmissionReview, got "
                f"{answer.get('apiVersion', '')}, Kind={answer.get('kind', '')}"
            )
        result: Obj = answer["response"]
        return result

    def _address(self, config: Obj, seconds: int) -> tuple[str, str | None]:
        query = f"timeout={seconds}s"
        if "url" in config:
            url = str(config["url"])
            return f"{url}{'&' if '?' in url else '?'}{query}", None
        service = config["service"]
        namespace, name = service["namespace"], service["name"]
        place = self.services.get((namespace, name))
        host = f"{name}.{namespace}.svc"
        if place is None:
            port = service.get("port", 443)
            raise CallFailed(
                f'failed to call webhook: Post "https://{host}:{port}{service.get("path", "/")}'
                f'?{query}": service "{name}" not found'
            )
        return f"https://{place}{service.get('path', '/')}?{query}", host

    def _context(self, bundle: str) -> ssl.SSLContext:
        digest = hashlib.sha256(bundle.encode()).hexdigest()
        context = self._contexts.get(digest)
        if context is None:
            try:
                pem = base64.b64decode(bundle).decode()
                context = ssl.create_default_context(cadata=pem or None)
            except (ssl.SSLError, ValueError) as error:
                raise CallFailed(f"unable to load root certificates: {error}") from error
            self._contexts[digest] = context
        return context


def _check_response(response: Obj, uid: str, *, mutating: bool) -> None:
    if response.get("uid") != uid:
        raise CallFailed(
            f"received invalid webhook response: expected response.uid={uid!r}, "
            f"got {response.get('uid', '')!r}"
        )
    patch, kind = response.get("patch"), response.get("patchType")
    if not mutating and (patch or kind):
        raise CallFailed("received invalid webhook response: validating webhooks may not patch")
    if bool(patch) != bool(kind) or kind not in (None, "", "JSONPatch"):
        raise CallFailed(
            "received invalid webhook response: response.patch and response.patchType of JSONPatch "
            "must come together"
        )


def _warn(request: Attributes, warnings: list[str]) -> None:
    known = request.call.warnings
    for text in warnings:
        clean = "".join(letter if letter.isprintable() else " " for letter in text)
        if clean not in known:
            known.append(clean)
    if sum(map(len, known)) > _MAX_WARNINGS:
        known[:] = [text[:256] for text in known]


def _denial(name: str, status: dict[str, Any]) -> ApiError:
    by = f'admission webhook "{name}" denied the request'
    reason = str(status.get("reason") or "")
    if message := status.get("message") or reason:
        text = f"{by}: {message}"
    else:
        text = f"{by} without explanation"
    code = max(int(status.get("code") or 0), 400)
    return ApiError(code, reason, text, status.get("details"))


async def validate_all(caller: WebhookCaller, hooks: list[Hook], request: Attributes) -> None:
    """Ask all validating hooks at once; the first refusal in their order is the answer."""
    results = await asyncio.gather(
        *(caller.validate(hook, request) for hook in hooks), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
