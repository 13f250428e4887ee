"""What victims are told, and by which right they had to go."""

from fairslice.messages.wording import line, span, whole_span
from fairslice.quantity import format_milli

__all__ = [
    "cron_run_skipped",
    "max_runtime_over",
    "preempted",
    "preempted_by",
    "pushed_out_by_others",
    "rule_borrower",
    "rule_budget_gone",
    "rule_class",
    "rule_quota_cut",
    "rule_scavenger",
]


def max_runtime_over(work_class: str, limit: int, until: str) -> str:
    """Tell work that it ends, or ended, as it ran for as long as its class may."""
    return line(f"class {work_class} runs for {whole_span(limit)} at most: ends at {until}")


def cron_run_skipped(job: str, waiting: int) -> str:
    """Tell a CronJob: one of its runs was not let into line."""
    return line(
        f"run {job} is skipped: {waiting} earlier runs wait in line; concurrencyPolicy Forbid or "
        f"Replace keeps one"
    )


def preempted(rule: str, lost_seconds: float) -> str:
    """Tell a victim that made room for nobody: by which right it had to go, and what it lost."""
    return line(f"pushed out: {rule}; lost {span(lost_seconds)} of work; it is queued again")


def preempted_by(beneficiary: str, rule: str, lost_seconds: float) -> str:
    """Tell a victim: who pushed it out, by which right, and what it lost."""
    return line(f"made room for {beneficiary} ({rule}); lost {span(lost_seconds)} of work")


def pushed_out_by_others(reason: str) -> str:
    """Tell a victim of the kube-scheduler, of a drain or of a lost node."""
    return line(f"pushed out by others ({reason}); it is queued again")


def rule_borrower(victim_class: str, team: str) -> str:
    """Name the right to reclaim a guarantee."""
    return line(f"team {team} takes its guarantee back from borrowed {victim_class} work")


def rule_class(work_class: str, victim_class: str) -> str:
    """Name the right of a class that passes everyone."""
    return line(f"class {work_class} goes before {victim_class}")


def rule_budget_gone(team: str) -> str:
    """Name the right to stop what runs on a budget that is used up, if the team has it so."""
    return line(f"team {team}'s budget is used up, and what runs on it is to stop")


def rule_quota_cut(team: str, pool: str, held: int, limit: int) -> str:
    """Name the right to bring a team down to a limit that was lowered."""
    return line(
        f"team {team} holds {format_milli(held)} {pool}, its limit is {format_milli(limit)} now"
    )


def rule_scavenger(team: str) -> str:
    """Name the right against work that has only what nobody else wants."""
    return line(f"team {team}'s budget is used up, it has only what nobody else wants")
