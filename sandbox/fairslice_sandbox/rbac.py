"""Authorization by the roles and bindings that the API holds.

Source: k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import ApiError
from .selectors import matches_selector
from .store import Obj, Store
from .users import UserInfo

__all__ = ["Access", "Authorizer"]

_GROUP = "rbac.authorization.k8s.io"
_KINDS = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


@dataclass(frozen=True)
class Access:
    """One thing that a user wants to do: to a resource, or to a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def target(self) -> str:
        """The resource as rules spell it, with its subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True)
class Grant:
    """Rules that hold in a namespace, or everywhere if it is None."""

    namespace: str | None
    rules: tuple[Obj, ...]


class Authorizer:
    """Says who may do what."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = -1
        self._grants: dict[tuple[str, str], list[Grant]] = {}

    def allows(self, user: UserInfo, access: Access) -> bool:
        """Say whether some rule grants it."""
        if "system:masters" in user.groups:
            return True
        return any(
            _covers(rule, access)
            for namespace, rule in self.rules(user)
            if namespace is None or (namespace == access.namespace and not access.path)
        )

    def require(self, user: UserInfo, access: Access) -> None:
        """Raises ApiError 403 unless some rule grants it."""
        if not self.allows(user, access):
            raise _refusal(user, access)

    def rules(self, user: UserInfo) -> Iterator[tuple[str | None, Obj]]:
        """Go through the user's rules, each with the namespace it is limited to."""
        self._refresh()
        subjects = [("User", user.username), *(("Group", group) for group in user.groups)]
        if user.username.startswith("system:serviceaccount:"):
            subjects.append(("ServiceAccount", user.username.split(":", 2)[2]))
        for subject in subjects:
            for grant in self._grants.get(subject, ()):
                for rule in grant.rules:
                    yield grant.namespace, rule

    def _refresh(self) -> None:
        version = max(self._store.changed(f"{kind}.{_GROUP}") for kind in _KINDS)
        if version == self._version:
            return
        self._version, self._grants = version, {}
        for kind in ("clusterrolebindings", "rolebindings"):
            for binding in self._store.list(f"{kind}.{_GROUP}"):
                self._add(binding)

    def _add(self, binding: Obj) -> None:
        namespace = binding["metadata"].get("namespace")
        reference = binding["roleRef"]
        kind = "clusterroles" if reference["kind"] == "ClusterRole" else "roles"
        where = "" if kind == "clusterroles" else namespace or ""
        role = self._store.get(f"{kind}.{_GROUP}", where, reference["name"])
        if role is None:
            return
        grant = Grant(namespace, tuple(self._rules_of(role)))
        for subject in binding.get("subjects", ()):
            name = subject["name"]
            if subject["kind"] == "ServiceAccount":
                name = f"{subject.get('namespace') or namespace}:{name}"
            self._grants.setdefault((subject["kind"], name), []).append(grant)

    def _rules_of(self, role: Obj) -> Iterator[Obj]:
        yield from role.get("rules") or ()
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors", ()):
            for other in self._store.list(f"clusterroles.{_GROUP}"):
                if matches_selector(selector, other["metadata"].get("labels") or {}):
                    yield from other.get("rules") or ()


def _covers(rule: Obj, access: Access) -> bool:
    verbs = rule.get("verbs", ())
    if access.verb not in verbs and "*" not in verbs:
        return False
    if access.path:
        return any(
            pattern in ("*", access.path)
            or (pattern.endswith("*") and access.path.startswith(pattern[:-1]))
            for pattern in rule.get("nonResourceURLs", ())
        )
    groups, resources = rule.get("apiGroups", ()), rule.get("resources", ())
    if access.group not in groups and "*" not in groups:
        return False
    spelled = {access.target, "*"}
    if access.subresource:
        spelled.add(f"*/{access.subresource}")
    if not spelled.intersection(resources):
        return False
    names = rule.get("resourceNames")
    return not names or access.name in names


def _refusal(user: UserInfo, access: Access) -> ApiError:
    if access.path:
        why = f'forbidden: User "{user.username}" cannot {access.verb} path "{access.path}"'
        return ApiError(403, "Forbidden", why, {})
    where = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    key = f"{access.resource}.{access.group}" if access.group else access.resource
    named = f'{key} "{access.name}"' if access.name else key
    details = {"name": access.name, "group": access.group, "kind": access.resource}
    return ApiError(
        403,
        "Forbidden",
        f'{named} is forbidden: User "{user.username}" cannot {access.verb} resource '
        f'"{access.target}" in API group "{access.group}" {where}',
        {name: value for name, value in details.items() if value},
    )
