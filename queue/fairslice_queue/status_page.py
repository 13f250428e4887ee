"""The status page: plain HTML, no scripts. Every name on it comes from users and is escaped."""

from collections.abc import Sequence
from html import escape

from fairslice_queue.status_views import QueueRow, TeamRow

__all__ = ["render_page"]

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.state{font-weight:600}.Queued,.Held{color:#b26a00}.Running{color:#1a7f37}
.Preempted{color:#c0392b}.bar{display:inline-block;width:7rem;height:.6rem;background:#8883}
.bar i{display:block;height:100%;background:#3b82f6}
"""


def render_page(teams: Sequence[TeamRow], rows: Sequence[QueueRow], *, notice: str = "") -> str:
    """Render the whole page; `notice` stands above all else."""
    waiting = sum(1 for row in rows if row.position)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta http-equiv=refresh content=5><meta name=viewport content="width=device-width">'
        f"<title>fairslice</title><style>{_STYLE}</style>"
        f"<h1>fairslice</h1>{_notice(notice)}"
        f"<p>{waiting} waiting, {len(rows) - waiting} in the books otherwise."
        ' As JSON: <a href="/queue">queue</a>, <a href="/teams">teams</a>,'
        ' <a href="/bill">bill</a>;'
        ' <a href="/metrics">metrics</a>.</p>'
        f"<h2>Teams</h2>{_teams(teams)}<h2>Work</h2>{_work(rows)}</html>"
    )


def _notice(text: str) -> str:
    return f"<p class=state><span class=Preempted>{escape(text)}</span></p>" if text else ""


def _teams(teams: Sequence[TeamRow]) -> str:
    if not teams:
        return "<p>No teams yet.</p>"
    head = _head(("Team", ""), ("Pool", ""), ("Used", "n"), ("", ""), ("Guaranteed", "n"),
                 ("Limit", "n"), ("Until", ""), ("Queued", "n"), ("GPU-hours", "n"),
                 ("Share", "n"))  # fmt: skip
    body = ""
    for team in teams:
        pools = team.pools or ()
        for index, pool in enumerate(pools):
            first = index == 0
            body += "<tr>" + _cell(team.team if first else "") + _cell(pool.pool)
            body += _cell(pool.used, "n") + f"<td>{_bar(pool.used, pool.limit)}</td>"
            body += _cell(pool.guaranteed, "n") + _cell(pool.limit or "none", "n")
            body += _cell(pool.until[:16].replace("T", " "))
            body += _cell(str(team.queued) if first else "", "n")
            body += _cell(team.gpu_hours if first else "", "n")
            body += _cell(f"{team.share:.3f}" if first else "", "n") + "</tr>"
        if not pools:
            body += "<tr>" + _cell(team.team) + "<td colspan=6>no pools</td>"
            body += _cell(str(team.queued), "n") + _cell(team.gpu_hours, "n")
            body += _cell(f"{team.share:.3f}", "n") + "</tr>"
    return f"<table>{head}{body}</table>"


def _work(rows: Sequence[QueueRow]) -> str:
    if not rows:
        return "<p>Nothing runs, nothing waits.</p>"
    head = _head(("", "n"), ("State", ""), ("Team", ""), ("Work", ""), ("Class", ""),
                 ("User", ""), ("Pods", "n"), ("GPUs", "n"), ("Pool", ""), ("Why", ""))  # fmt: skip
    body = ""
    for row in rows:
        name = f"{row.kind} {row.namespace}/{row.name}"
        body += "<tr>" + _cell(str(row.position or ""), "n")
        body += _cell(row.state, f"state {row.state}") + _cell(row.team) + _cell(name)
        body += _cell(row.work_class) + _cell(row.user) + _cell(str(row.pods), "n")
        body += _cell(row.gpus, "n") + _cell(row.pool) + _cell(row.reason) + "</tr>"
    return f"<table>{head}{body}</table>"


def _head(*columns: tuple[str, str]) -> str:
    return "<tr>" + "".join(f'<th class="{kind}">{escape(name)}' for name, kind in columns)


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{escape(kind)}">{escape(text)}</td>'


def _bar(used: str, limit: str) -> str:
    whole = float(limit) if limit else 0.0
    part = min(100.0, 100 * float(used) / whole) if whole else 0.0
    return f'<span class=bar><i style="width:{part:.0f}%"></i></span>'
