"""The lead's marks on work that is changed: who wrote them, and what is said about it."""

from fairslice import messages, stamps
from fairslice.kube.objects import ObjectMeta
from fairslice.lead_marks import MARKS
from fairslice_webhook.subject import Subject

__all__ = ["mark_words", "marked"]


def marked(subject: Subject, old: ObjectMeta) -> dict[str, str | None]:
    """Return the stamp that says who wrote the marks, as it must be, over whatever was sent."""
    stamp = subject.marked(old.annotations)
    sent = subject.stamp(stamps.MARKED) or None
    before = (old.annotations or {}).get(stamps.MARKED)
    return {stamps.MARKED: stamp} if stamp != sent or stamp != before else {}


def mark_words(subject: Subject, old: ObjectMeta) -> list[str]:
    """Say of marks that are new for whom they count."""
    before, now = old.annotations or {}, subject.meta.annotations or {}
    new = [key for key in MARKS if key in now and now[key] != before.get(key)]
    if not new or subject.team is None:
        return []
    return [messages.mark_checked(messages.listed(new), subject.team.name)]
