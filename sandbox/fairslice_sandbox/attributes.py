"""A request as admission sees it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from .store import Obj, Resource
from .users import UserInfo

__all__ = ["Attributes", "Call", "Operation"]

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(frozen=True)
class Call:
    """What surrounds a verb: who calls, and the options of the query."""

    user: UserInfo
    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class Attributes:
    """One admission request; mutating plugins replace `object`."""

    call: Call
    resource: Resource
    operation: Operation
    namespace: str
    name: str
    object: Obj | None
    old: Obj | None
    options: dict[str, Any]
    subresource: str = ""
    kind: tuple[str, str, str] | None = None
    """Group, version and kind of the object where they are not the resource's (Scale)."""

    @property
    def gvk(self) -> dict[str, str]:
        """The kind of the object, as AdmissionReview spells it."""
        group, version, kind = self.kind or (
            self.resource.group,
            self.resource.version,
            self.resource.kind,
        )
        return {"group": group, "version": version, "kind": kind}
