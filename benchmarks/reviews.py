"""Reviews to send: recorded ones where they are at hand, else made from `examples/`.

Names and namespaces are replaced by tokens that the load generator fills in.
"""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from msgspec import json

from .load import NAME, TEAM, TOKEN

__all__ = ["ReviewSet", "find_reviews", "large_review"]

_ROOT = Path(__file__).parents[1]
_RECORDED = {
    "plain": "create-pod-plain-by-alice",
    "pod": "create-pod-nb-by-alice",
    "job": "create-job-train-by-alice",
}
_LARGE_BYTES = int(2.8 * 1024 * 1024)
_VARIABLES = 10_000


class ReviewSet(NamedTuple):
    """Bodies of a pod without GPUs, a GPU pod and a Job; `source` says where they are from."""

    source: str
    plain: bytes
    pod: bytes
    job: bytes

    def unlike(self) -> "ReviewSet":
        """Return the same of objects that have more than their names of their own."""
        return self._replace(
            plain=_labelled(self.plain), pod=_labelled(self.pod), job=_labelled(self.job)
        )


def find_reviews() -> ReviewSet:
    """Read the recorded reviews, or make some."""
    shared = Path(os.environ.get("FAIRSLICE_SHARED", _ROOT.parent / "shared"))
    folder = shared / "fixtures" / "admission"
    if folder.is_dir():
        found = {
            key: json.decode((folder / f"{name}.json").read_bytes())
            for key, name in _RECORDED.items()
        }
        return ReviewSet("recorded reviews", **{k: _prepared(v) for k, v in found.items()})
    notebook = yaml.safe_load((_ROOT / "examples" / "notebook.yaml").read_text())
    plain = json.decode(json.encode(notebook))
    del plain["spec"]["containers"][0]["resources"]
    training = yaml.safe_load((_ROOT / "examples" / "training.yaml").read_text())
    return ReviewSet(
        "no recorded reviews beside the repository: made from examples/",
        *(_prepared(_review(obj)) for obj in (plain, notebook, training)),
    )


def _review(obj: dict[str, Any]) -> dict[str, Any]:
    group, _, version = obj["apiVersion"].rpartition("/")
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "00000000-0000-4000-8000-000000000000",
            "kind": {"group": group, "version": version, "kind": obj["kind"]},
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": None,
            "dryRun": False,
        },
    }


def _prepared(review: dict[str, Any]) -> bytes:
    """Put tokens where names go; a generated name becomes a given one, new in each request."""
    request = review["request"]
    meta = request["object"]["metadata"]
    meta.pop("generateName", None)
    meta["name"] = request["name"] = NAME.decode()
    meta["namespace"] = request["namespace"] = TEAM.decode()
    return re.sub(rb"kube-api-access-\w{5}", TOKEN, json.encode(review))


def _labelled(body: bytes) -> bytes:
    review = json.decode(body)
    labels = review["request"]["object"]["metadata"].setdefault("labels", {})
    labels["example.com/own"] = NAME.decode()
    return json.encode(review)


def large_review(reviews: ReviewSet) -> bytes:
    """Make a GPU pod's review of about 2.8 MiB: 10,000 environment variables."""
    review = json.decode(reviews.pod)
    container = review["request"]["object"]["spec"]["containers"][0]
    missing = _LARGE_BYTES - len(json.encode(review))
    value = "v" * (missing // _VARIABLES - len('{"name":"V00000","value":""},'))
    container["env"] = [{"name": f"V{n:05}", "value": value} for n in range(_VARIABLES)]
    return json.encode(review)
