"""AdmissionReview, decoded and encoded straight from and to bytes (admission.k8s.io/v1)."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

__all__ = [
    "MAX_BODY_BYTES",
    "Review",
    "ReviewError",
    "UserInfo",
    "decode_review",
    "encode_passed",
    "encode_response",
]

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Object and old object of up to 3 MiB each, and room for the rest."""

_NULL = Raw(b"null")
_ACCOUNTS = "system:serviceaccount:"
_API_VERSION = "admission.k8s.io/v1"


class ReviewError(ValueError):
    """Not an AdmissionReview that can be answered: what is wrong with it."""


class _Message(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    pass


class GroupVersionKind(_Message, frozen=True):
    """What kind the object is, in the version that was asked for."""

    group: str = ""
    version: str = ""
    kind: str = ""

    @property
    def api_version(self) -> str:
        """The kind's apiVersion as manifests write it."""
        return f"{self.group}/{self.version}" if self.group else self.version


class UserInfo(_Message, frozen=True):
    """Who sent the request."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None

    @property
    def of_cluster(self) -> bool:
        """Say whether it is a component of the control plane, such as a controller."""
        name = self.username
        if name.startswith(_ACCOUNTS):
            return name.startswith(_ACCOUNTS + "kube-system:")
        return name.startswith("system:")

    def account_elsewhere(self, namespace: str) -> bool:
        """Say whether it is a ServiceAccount of another namespace, as an operator's is."""
        account = self.username.startswith(_ACCOUNTS)
        return account and not self.username.startswith(f"{_ACCOUNTS}{namespace}:")


class Review(_Message, frozen=True):
    """The request of an AdmissionReview. The objects stay bytes until their kind is known."""

    uid: str
    kind: GroupVersionKind
    operation: str
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: Raw = _NULL
    old_object: Raw = _NULL
    dry_run: bool = False

    @property
    def has_object(self) -> bool:
        """Say whether there is a new object; DELETE has none."""
        return bytes(self.object) != b"null"

    @property
    def user(self) -> str:
        """The submitting user's name."""
        return self.user_info.username


class _Request(_Message, frozen=True):
    api_version: str
    kind: str
    request: Review | None = None


class _Status(_Message, frozen=True, omit_defaults=True):
    code: int = 0
    reason: str = ""
    message: str = ""


class _Answer(_Message, frozen=True, omit_defaults=True):
    uid: str
    # Needed on the wire whatever its value: no default.
    allowed: bool
    patch_type: str | None = None
    patch: bytes | None = None
    status: _Status | None = None
    warnings: Sequence[str] = ()


class _Response(_Message, frozen=True):
    response: _Answer
    api_version: str = _API_VERSION
    kind: str = "AdmissionReview"


_DECODER = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()


def decode_review(body: bytes | bytearray | memoryview) -> Review:
    """Read the request out of an AdmissionReview.

    Raises ReviewError for anything else.
    """
    try:
        message = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"not an AdmissionReview: {error}") from None
    if message.kind != "AdmissionReview" or message.api_version != _API_VERSION:
        raise ReviewError(
            f"expected {_API_VERSION} AdmissionReview, got {message.api_version} {message.kind}"
        )
    if message.request is None:
        raise ReviewError("AdmissionReview without a request")
    return message.request


def encode_response(
    uid: str,
    *,
    allowed: bool,
    patch: Sequence[Any] = (),
    warnings: Sequence[str] = (),
    code: int = 0,
    reason: str = "",
    message: str = "",
) -> bytes:
    """Write the response. Patch and patch type come together or not at all."""
    return _ENCODER.encode(
        _Response(
            response=_Answer(
                uid=uid,
                allowed=allowed,
                patch_type="JSONPatch" if patch else None,
                # bytes are written as base64, which is what the API server expects
                patch=_ENCODER.encode(patch) if patch else None,
                status=_Status(code=code, reason=reason, message=message) if code else None,
                warnings=tuple(warnings),
            )
        )
    )


def encode_passed(uid: str, patch: bytes, warnings: Sequence[str]) -> bytes:
    """Write the response that lets an object pass with a patch that is JSON already, or none."""
    kind = "JSONPatch" if patch else None
    answer = _Answer(uid=uid, allowed=True, patch_type=kind, patch=patch or None, warnings=warnings)
    return _ENCODER.encode(_Response(response=answer))
