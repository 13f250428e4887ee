"""Teams and sharing policies as they are applied: refused where they contradict themselves."""

from typing import Any

import msgspec

from fairslice import messages
from fairslice.v1alpha1.validation import faults
from fairslice_webhook.decision import Answer, Denial
from fairslice_webhook.review import Review

__all__ = ["validate_policy_object"]

_PLAIN = msgspec.json.Decoder(dict[str, Any])


def validate_policy_object(review: Review) -> Answer:
    """Check a Team or SharingPolicy: what the schema can't say, and misspelt fields."""
    try:
        obj = _PLAIN.decode(review.object)
    except msgspec.DecodeError as error:
        return _refuse(review, str(error))
    found = list(faults(obj))
    if not found:
        return Answer()
    first = found[0]
    where = f"{first.path}: " if first.path else ""
    return _refuse(review, f"{where}{first.problem}")


def _refuse(review: Review, why: str) -> Answer:
    return Answer(denial=Denial(messages.resource_invalid(review.kind.kind, why), 422, "Invalid"))
