"""What is free, as planning gives it out; and what would be free if others had gone."""

from collections.abc import Callable, Iterable, Mapping

from fairslice.booking import Option
from fairslice.placement import NodeState, PodNeeds
from fairslice_queue.victims import Candidate, without

__all__ = ["Room"]


class _View:
    """Free amounts by node; a node is copied before it is changed."""

    def __init__(self, nodes: Mapping[str, NodeState]) -> None:
        self.nodes = dict(nodes)
        self._own: set[str] = set()

    def take(self, needs: PodNeeds, option: Option, places: Mapping[str, int], sign: int) -> None:
        offers = option.offers
        for name, pods in places.items():
            node = self.nodes.get(name)
            if node is None:
                continue
            if name not in self._own:
                self._own.add(name)
                node = self.nodes[name] = node.copy()
            node.take(needs, offers, sign * pods)


class Room:
    """Views of what is free: now, once those on their way out have left, once more have ended.

    Takings count in every view. The hypothetical ones are made when they are first asked for.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeState],
        candidates: Iterable[Candidate],
        *,
        someone_leaves: bool,
    ) -> None:
        self._candidates = candidates
        self._now = _View(nodes)
        self._views: dict[str, _View] = {}
        self.someone_leaves = someone_leaves

    @property
    def now(self) -> Mapping[str, NodeState]:
        """What is free now."""
        return self._now.nodes

    @property
    def after_leaving(self) -> Mapping[str, NodeState]:
        """What is free once those on their way out have left."""
        if not self.someone_leaves:
            return self._now.nodes
        return self._view("leaving", _leaves).nodes

    @property
    def after_jobs(self) -> Mapping[str, NodeState]:
        """What is free once all that ends by itself has ended."""
        return self._view("jobs", _ends).nodes

    @property
    def after_all(self) -> Mapping[str, NodeState]:
        """What is free once every team's work has gone."""
        return self._view("all", lambda item: bool(item.booking.team)).nodes

    def take(
        self, needs: PodNeeds, option: Option, places: Mapping[str, int], *, sign: int = 1
    ) -> None:
        """Take (sign -1: give back) what pods need, in every view."""
        for view in (self._now, *self._views.values()):
            view.take(needs, option, places, sign)

    def leave(self, going: Iterable[Candidate]) -> None:
        """Count more holders as on their way out."""
        view = self._view("leaving", _leaves)
        self.someone_leaves = True
        for item in going:
            option = item.booking.option
            if option is not None:
                view.take(item.needs, option, item.booking.place, -1)

    def _view(self, name: str, goes: Callable[[Candidate], bool]) -> _View:
        view = self._views.get(name)
        if view is None:
            going = [item for item in self._candidates if goes(item)]
            view = self._views[name] = _View(without(going, self._now.nodes))
        return view


def _leaves(item: Candidate) -> bool:
    return item.leaving


def _ends(item: Candidate) -> bool:
    # Pods of services run until someone stops them; Jobs end.
    return item.leaving or (item.booking.team != "" and item.booking.ref.kind != "Pod")
