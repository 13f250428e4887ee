"""What is said of the lead's marks: whether they count, and how many tokens are left."""

from fairslice.messages.wording import line

__all__ = ["mark_counts", "mark_refused", "urgent_granted", "urgent_not_granted", "urgent_spent"]


def mark_counts(mark: str, value: str, user: str) -> str:
    """Tell who wrote a mark of the lead's, which counts."""
    return line(f"{mark} {value}: counts, by {user}")


def mark_refused(mark: str, user: str, team: str) -> str:
    """Tell that a mark does not count, as its author may not order the team's line."""
    return line(
        f"{mark} does not count: {user} may not update teams/line of team {team}; have its lead "
        f"write it, or ask the platform team for that right"
    )


def urgent_granted(user: str, team: str, left: int, per_week: int, until: str) -> str:
    """Tell that work is urgent, and how many of its team's tokens are left."""
    return line(
        f"urgent: counts, by {user}; {left} of {per_week} tokens of team {team} are left until "
        f"{until}"
    )


def urgent_not_granted(team: str) -> str:
    """Tell that a team has no tokens at all."""
    return line(
        f"urgent does not count: team {team} has no tokens (urgentPerWeek is 0): ask the platform "
        f"team"
    )


def urgent_spent(team: str, per_week: int, until: str) -> str:
    """Tell that a team's tokens of this week are spent."""
    return line(
        f"urgent does not count yet: team {team} has spent its {per_week} tokens of this week; "
        f"the next ones come {until}"
    )
