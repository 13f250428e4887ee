"""Resources that are questions: access reviews, and who one is.

Source: k8s.io/kubernetes/pkg/registry/{authorization,authentication}.
"""

from .errors import unknown_path
from .rbac import Access, Authorizer
from .store import Obj
from .tokens import Tokens
from .users import UserInfo

__all__ = ["REVIEWS", "answer"]

REVIEWS = {
    *("selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews"),
    *("selfsubjectrulesreviews", "selfsubjectreviews", "tokenreviews"),
}


def answer(
    plural: str, namespace: str, review: Obj, user: UserInfo, authorizer: Authorizer, tokens: Tokens
) -> Obj:
    """Give the review with its status. Raises ApiError 404 for another resource."""
    spec = review.get("spec") or {}
    match plural:
        case "selfsubjectaccessreviews":
            status = _access(spec, user, authorizer)
        case "subjectaccessreviews" | "localsubjectaccessreviews":
            groups = tuple(spec.get("groups") or ())
            status = _access(spec, UserInfo(spec.get("user", ""), groups), authorizer)
        case "selfsubjectrulesreviews":
            status = _rules(spec.get("namespace") or namespace, user, authorizer)
        case "selfsubjectreviews":
            status = {"userInfo": user.as_json()}
        case "tokenreviews":
            bearer = tokens.authenticate(spec.get("token", ""))
            status = {"authenticated": bearer is not None}
            if bearer is not None:
                status["user"] = bearer.as_json()
        case _:
            raise unknown_path()
    return {**review, "metadata": review.get("metadata") or {}, "status": status}


def _access(spec: Obj, user: UserInfo, authorizer: Authorizer) -> Obj:
    if attributes := spec.get("resourceAttributes"):
        wanted = Access(
            verb=attributes.get("verb", ""),
            group=attributes.get("group", ""),
            resource=attributes.get("resource", ""),
            subresource=attributes.get("subresource", ""),
            namespace=attributes.get("namespace", ""),
            name=attributes.get("name", ""),
        )
    else:
        path = spec.get("nonResourceAttributes") or {}
        wanted = Access(verb=path.get("verb", ""), path=path.get("path", "") or "/")
    return {"allowed": authorizer.allows(user, wanted)}


def _rules(namespace: str, user: UserInfo, authorizer: Authorizer) -> Obj:
    everything: list[tuple[str | None, Obj]] = list(authorizer.rules(user))
    if "system:masters" in user.groups:
        everything = [
            (None, {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            (None, {"verbs": ["*"], "nonResourceURLs": ["*"]}),
        ]
    found = [rule for where, rule in everything if where in (None, namespace)]
    return {
        "resourceRules": [rule for rule in found if rule.get("resources")],
        "nonResourceRules": [rule for rule in found if rule.get("nonResourceURLs")],
        "incomplete": False,
    }
