"""Who calls the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ADMIN", "ANONYMOUS", "UserInfo", "controller", "kubelet", "service_account"]


@dataclass(frozen=True)
class UserInfo:
    """The authenticated user of a request."""

    username: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Give the form that AdmissionReview and SelfSubjectReview carry."""
        body: dict[str, Any] = {"username": self.username}
        if self.uid:
            body["uid"] = self.uid
        if self.groups:
            body["groups"] = list(self.groups)
        if self.extra:
            body["extra"] = {key: list(values) for key, values in self.extra.items()}
        return body


def service_account(namespace: str, name: str, uid: str = "", token_id: str = "") -> UserInfo:
    """Build the user that a ServiceAccount token authenticates."""
    credential = {"authentication.kubernetes.io/credential-id": (f"JTI={token_id}",)}
    return UserInfo(
        username=f"system:serviceaccount:{namespace}:{name}",
        groups=(
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ),
        uid=uid,
        extra=credential if token_id else {},
    )


def controller(name: str) -> UserInfo:
    """Build the user of a built-in controller, such as job-controller."""
    return service_account("kube-system", name)


def kubelet(node: str) -> UserInfo:
    """Build the user of a node's kubelet."""
    return UserInfo(f"system:node:{node}", ("system:nodes", "system:authenticated"))


ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))
ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))
