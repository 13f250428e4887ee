"""What a team's lead writes on work of the team's line: its order, a pin, that it is urgent.

Anybody who may patch an object could write these annotations. So admission stamps who wrote each
of them, and the queue believes those whose author may `update` the subresource `teams/line` of
the team (RBAC; nothing is served there, it only names the right).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import DecodeError, Struct, ValidationError, json

from fairslice import stamps
from fairslice.v1alpha1 import GROUP

__all__ = [
    "MARKS",
    "NO_MARKS",
    "Author",
    "Marks",
    "access_review",
    "author_stamp",
    "authors",
    "order_of",
]

MARKS = (stamps.ORDER, stamps.PIN, stamps.URGENT)
"""The annotations that only count from a team's lead."""


class Author(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who wrote an annotation, and what."""

    value: str
    user: str
    groups: tuple[str, ...] = ()


class Marks(NamedTuple):
    """The lead's marks on work in line: its order (smaller goes first), a pin, urgency."""

    order: int = 0
    pinned: bool = False
    urgent: bool = False


NO_MARKS = Marks()

_STAMP = json.Decoder(dict[str, Author])


def author_stamp(
    new: Mapping[str, str] | None,
    old: Mapping[str, str] | None,
    user: str,
    groups: Sequence[str] | None,
) -> str | None:
    """Write down who wrote the marks on an object; None where there are none.

    Of those that stay as they were, the author stays.
    """
    now = {key: value for key in MARKS if (value := (new or {}).get(key)) is not None}
    if not now:
        return None
    before = authors(old or {})
    found = {
        key: before[key]
        if key in before and before[key].value == value
        else Author(value=value, user=user, groups=tuple(groups or ()))
        for key, value in now.items()
    }
    return json.encode(found).decode()


def authors(annotations: Mapping[str, str]) -> Mapping[str, Author]:
    """Read who wrote the marks; one that is not what its author wrote has none."""
    text = annotations.get(stamps.MARKED)
    if text is None:
        return {}
    try:
        found = _STAMP.decode(text)
    except (DecodeError, ValidationError):
        return {}
    return {
        key: author
        for key, author in found.items()
        if key in MARKS and annotations.get(key) == author.value
    }


def order_of(value: str) -> int:
    """Read the lead's order; what can't be read was not given."""
    if not value or len(value) > 9:
        return 0
    try:
        return int(value)
    except ValueError:
        return 0


def access_review(author: Author, team: str) -> dict[str, object]:
    """Ask the API server whether someone may order a team's line: a SubjectAccessReview."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": author.user,
            "groups": author.groups or ("system:authenticated",),
            "resourceAttributes": {
                "verb": "update",
                "group": GROUP,
                "resource": "teams",
                "subresource": "line",
                "name": team,
            },
        },
    }
