"""The page shows what users wrote as text, whatever they wrote."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fairslice_queue.status_page import render_page
from fairslice_queue.status_views import QueueRow, TeamPool, TeamRow

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>'"


def _row(**fields: object) -> QueueRow:
    base: dict[str, object] = {
        "team": "cv",
        "position": 1,
        "state": "Queued",
        "kind": "Job",
        "namespace": "cv",
        "name": "x",
        "work_class": "training",
        "user": "ada",
        "pods": 1,
        "gpus": "1",
        "pool": "a100",
        "waiting_seconds": 5,
        "reason": "",
    }
    return QueueRow(**{**base, **fields})  # type: ignore[arg-type]


def _team(name: str, limit: str = "4") -> TeamRow:
    return TeamRow(
        team=name,
        used="2",
        guaranteed="1",
        limit=limit,
        queued=1,
        running=1,
        gpu_hours="0.10",
        share=0.5,
        weight=1,
        namespaces=(name,),
        pools=(TeamPool(pool=name, used="2", guaranteed="1", limit=limit),),
    )


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    return page


@given(st.text(max_size=30) | st.just(HOSTILE))
def test_names_from_users_are_text_and_nothing_else(name: str) -> None:
    plain = _read(render_page([_team("cv")], [_row()]))
    rows = [_row(name=name, user=name, reason=name, namespace=name, work_class=name, team=name)]
    page = _read(render_page([_team(name)], rows))
    assert page.tags == plain.tags
    assert page.attributes == plain.attributes
    if name.strip() and name.isprintable():
        assert name in page.text


def test_the_state_is_no_way_out_of_its_attribute() -> None:
    page = _read(render_page([], [_row(state='x" onload="alert(1)')]))
    assert "onload" not in page.attributes


def test_an_empty_cluster_and_a_team_without_limit_have_a_page() -> None:
    assert "No teams yet" in render_page([], [])
    assert "none" in render_page([_team("cv", limit="")], [])
