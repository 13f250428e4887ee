"""Teams and sharing policies as they are applied: refused where they contradict themselves.

A Team and the policy that has its pools come in any order, so a pool that is not there is only
worth a warning.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairslice import messages
from fairslice.policy import UNPOOLED
from fairslice.v1alpha1.validation import faults
from fairslice_webhook.decision import Answer, Denial, allow
from fairslice_webhook.review import Review
from fairslice_webhook.view import View

__all__ = ["validate_policy_object"]

_PLAIN = msgspec.json.Decoder(dict[str, Any])
# Where a Team's spec names pools.
_NAMING_POOLS = ("pools", "budgets", "loans")


def validate_policy_object(review: Review, view: View) -> Answer:
    """Check a Team or SharingPolicy: what the schema can't say, and misspelt fields."""
    try:
        obj = _PLAIN.decode(review.object)
    except msgspec.DecodeError as error:
        return _refuse(review, str(error))
    found = list(faults(obj))
    if found:
        first = found[0]
        where = f"{first.path}: " if first.path else ""
        return _refuse(review, f"{where}{first.problem}")
    warns = _unknown_pools if obj["kind"] == "Team" else _missed_pools
    return allow(*warns(review, obj.get("spec") or {}, view))


def _unknown_pools(review: Review, spec: Mapping[str, Any], view: View) -> Iterator[str]:
    known = [*(pool.name for pool in view.policy.pools), UNPOOLED]
    rows = (row for field in _NAMING_POOLS for row in spec.get(field) or ())
    named = dict.fromkeys(row["pool"] for row in rows if row.get("pool"))
    unknown = [pool for pool in named if pool not in known]
    if unknown:
        yield messages.pool_unknown(review.name, unknown, known)


def _missed_pools(_: Review, spec: Mapping[str, Any], view: View) -> Iterator[str]:
    known = {UNPOOLED, *(pool["name"] for pool in spec.get("pools") or ())}
    gone: dict[str, None] = {}
    teams: list[str] = []
    for team in view.teams.teams:
        missed = [pool for pool in team.quotas if pool not in known]
        if missed:
            gone |= dict.fromkeys(missed)
            teams.append(team.name)
    if gone:
        yield messages.pools_gone(gone, teams)


def _refuse(review: Review, why: str) -> Answer:
    return Answer(denial=Denial(messages.resource_invalid(review.kind.kind, why), 422, "Invalid"))
