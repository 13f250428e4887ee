"""Bringing back what nobody else would: bare pods that ask for it, Jobs that disruption failed.

The manifest is stored as a PodTemplate in the object's own namespace before it can be needed:
readable by whoever may read the pods, and deleting it cancels the return.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import DecodeError, Struct, ValidationError, json

from fairslice import stamps
from fairslice.booking import Option
from fairslice.kube.client import (
    MERGE_PATCH,
    AlreadyExists,
    ApiError,
    KubeClient,
    NotFound,
)
from fairslice.kube.objects import ObjectMeta
from fairslice.kube.reflector import Key
from fairslice.policy import Policy
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.history import RESTARTED, noted
from fairslice_queue.manifests import returning_job, returning_pod
from fairslice_queue.object_paths import ObjectPaths

__all__ = ["Restarts", "StoredManifest", "StoredTemplate", "asks_for_restart", "read_stored"]

_log = logging.getLogger(__name__)
_PATHS = ObjectPaths()  # Jobs and pods: these have one version


class StoredTemplate(Struct, frozen=True, kw_only=True):
    """A PodTemplate of ours, as it is decoded."""

    metadata: ObjectMeta = ObjectMeta()


class Subject(NamedTuple):
    """Whose manifest is stored. `restarts` is how often it was made again, this time included."""

    kind: str
    name: str
    restarts: int


class StoredManifest(Struct, frozen=True):
    """What is kept of a stored manifest: whose it is, and why its object went, if it did.

    A subject without a kind: not ours to read.
    """

    where: Key
    uid: str
    subject: Subject
    disrupted: str

    @property
    def namespace(self) -> str:
        """The namespace, of the manifest and its object."""
        return self.where.namespace


class _Manifest(Struct, frozen=True):
    kind: str
    metadata: ObjectMeta


class _Review(Struct, frozen=True):
    status: dict[str, Any] = {}


def read_stored(template: StoredTemplate) -> StoredManifest:
    """Reduce a PodTemplate of ours to what is kept of it."""
    meta = template.metadata
    notes = meta.annotations or {}
    return StoredManifest(
        where=Key(meta.namespace, meta.name),
        uid=meta.uid,
        subject=_subject(notes.get(stamps.MANIFEST, "")),
        disrupted=notes.get(stamps.DISRUPTED, ""),
    )


def _subject(manifest: str) -> Subject:
    try:
        found = json.decode(manifest, type=_Manifest)
    except (DecodeError, ValidationError):
        return Subject("", "", 0)
    text = (found.metadata.annotations or {}).get(stamps.RESTARTS, "")
    return Subject(found.kind, found.metadata.name, int(text) if text.isdecimal() else 0)


def asks_for_restart(pod: PodFacts, policy: Policy) -> bool:
    """Say whether the queue should bring a pod back: it asks for it, and nobody else does it."""
    if pod.owned or pod.recreated:
        return False
    wish = pod.annotations.get(stamps.RESTART)
    if wish is not None:
        return wish == "true"
    work_class = policy.class_of_priority(pod.spec.priority_class_name)
    return work_class is not None and work_class.restart


def template_name(kind: str, name: str) -> str:
    """Name the PodTemplate that stores an object's manifest."""
    return f"fairslice-{kind.lower()}-{name}"[:253]


class Restarts:
    """Stores manifests and creates their objects again. Methods raise ApiError."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def store_pod(self, pod: PodFacts, option: Option | None, restarts: int) -> None:
        """Store a pod's manifest, if it isn't stored yet."""
        raw = json.decode(await self._client.get(_PATHS.of("Pod", pod.namespace, pod.name)))
        if raw["metadata"]["uid"] != pod.uid:
            return
        manifest = returning_pod(raw, option, restarts + 1)
        template = {"metadata": {"labels": manifest["metadata"]["labels"]}, "spec": raw["spec"]}
        template["spec"] = {**manifest["spec"], "schedulingGates": None}
        await self._store("Pod", pod.namespace, pod.name, manifest, template, "")

    async def store_job(self, job: WorkloadFacts, restarts: int, reason: str) -> None:
        """Store the manifest of a Job that failed through disruption, to be created again."""
        raw = json.decode(await self._client.get(_PATHS.of("Job", job.namespace, job.name)))
        if raw["metadata"]["uid"] != job.uid:
            return
        manifest = returning_job(raw, restarts + 1)
        await self._store(
            "Job", job.namespace, job.name, manifest, manifest["spec"]["template"], reason
        )

    async def _store(
        self,
        kind: str,
        namespace: str,
        name: str,
        manifest: Mapping[str, Any],
        template: Mapping[str, Any],
        reason: str,
    ) -> None:
        # A mark on an earlier manifest of the same name is not this one's.
        annotations: dict[str, str | None] = {
            stamps.MANIFEST: json.encode(manifest).decode(),
            stamps.DISRUPTED: reason or None,
        }
        body = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {
                "name": template_name(kind, name),
                "labels": {stamps.LABEL_MANAGED: "true"},
                "annotations": {key: text for key, text in annotations.items() if text},
            },
            "template": template,
        }
        collection = _collection(namespace)
        try:
            await self._client.create(collection, body)
        except AlreadyExists:
            await self._client.patch(
                f"{collection}/{template_name(kind, name)}",
                {"metadata": {"annotations": annotations}},
                MERGE_PATCH,
            )

    async def mark(self, kind: str, namespace: str, name: str, reason: str) -> None:
        """Write down that an object goes through disruption, so that it is brought back."""
        body = {"metadata": {"annotations": {stamps.DISRUPTED: reason}}}
        try:
            await self._client.patch(
                f"{_collection(namespace)}/{template_name(kind, name)}", body, MERGE_PATCH
            )
        except NotFound:
            return

    async def forget(self, stored: StoredManifest) -> None:
        """Drop a stored manifest: its object is gone for good, or back."""
        body = {"preconditions": {"uid": stored.uid}}
        try:
            await self._client.delete(_path(stored), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def bring_back(self, stored: StoredManifest) -> bool:
        """Create the object again, if its submitter still may.

        False: its name isn't free yet, or its return was cancelled just now.
        """
        try:
            template = json.decode(await self._client.get(_path(stored)), type=StoredTemplate)
        except NotFound:
            return False
        meta = template.metadata
        text = (meta.annotations or {}).get(stamps.MANIFEST, "")
        if meta.uid != stored.uid or _subject(text) != stored.subject:
            return False
        manifest = json.decode(text)
        kind, made = manifest["kind"], manifest["metadata"]
        if made["namespace"] != stored.namespace:
            _log.warning("stored manifest %s names another namespace", stored.where)
            await self.forget(stored)
            return True
        if not await self._may_create(kind, made):
            _log.warning("not brought back: the submitter may no longer create %s", made["name"])
            await self.forget(stored)
            return True
        why = stored.disrupted or "disrupted"
        notes = made.setdefault("annotations", {})
        notes[stamps.HISTORY] = noted(notes, RESTARTED, why, time.time())
        try:
            await self._client.create(_PATHS.collection(kind, stored.namespace), manifest)
        except AlreadyExists:
            return False
        await self.forget(stored)
        return True

    async def _may_create(self, kind: str, metadata: Mapping[str, Any]) -> bool:
        annotations = metadata.get("annotations") or {}
        user = annotations.get(stamps.USER, "")
        if not user or any(ref.get("controller") for ref in metadata.get("ownerReferences") or ()):
            return True  # a controller made it, and would again
        groups = _groups(annotations.get(stamps.GROUPS, ""))
        group, plural = ("", "pods") if kind == "Pod" else ("batch", "jobs")
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": groups or ("system:authenticated",),
                "resourceAttributes": {
                    "namespace": metadata["namespace"],
                    "verb": "create",
                    "group": group,
                    "resource": plural,
                },
            },
        }
        answer = await self._client.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews", body
        )
        return bool(json.decode(answer, type=_Review).status.get("allowed"))


def _groups(text: str) -> tuple[str, ...]:
    """Read the submitter's groups as stamped; what can't be read grants nothing."""
    try:
        return json.decode(text, type=tuple[str, ...]) if text else ()
    except (DecodeError, ValidationError):
        return ()


def _path(stored: StoredManifest) -> str:
    return f"{_collection(stored.namespace)}/{quote(stored.where.name)}"


def _collection(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/podtemplates"
