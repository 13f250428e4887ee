"""List pages: each sequence of pages shows one moment, and its token can expire.

Source: k8s.io/apiserver/pkg/storage/continue.go, pkg/storage/etcd3.
"""

import base64
import binascii
from collections import OrderedDict

import msgspec

from .errors import bad_request, gone
from .store import Obj, Store

__all__ = ["Pages"]

_MOST = 128
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results."
)


class Pages:
    """Unfinished lists, the oldest of which are forgotten."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest: OrderedDict[int, tuple[int, list[Obj]]] = OrderedDict()
        self._next = 0

    def start(self, objects: list[Obj], limit: int) -> tuple[list[Obj], Obj]:
        """Give the first page of a list and its metadata."""
        return self._page(self._store.version, objects, 0, limit)

    def resume(self, token: str, limit: int) -> tuple[list[Obj], Obj]:
        """Give the next page. Raises ApiError 400 for no token of ours, 410 for an old one."""
        try:
            number, start = msgspec.json.decode(base64.urlsafe_b64decode(token), type=list[int])
        except (binascii.Error, msgspec.DecodeError, ValueError) as error:
            raise bad_request("continue key is not valid") from error
        version, objects = self._rest.get(number, (0, []))
        if version < self._store.oldest:
            raise gone(_EXPIRED)
        return self._page(version, objects, start, limit, number)

    def _page(
        self, version: int, objects: list[Obj], start: int, limit: int, number: int | None = None
    ) -> tuple[list[Obj], Obj]:
        meta: Obj = {"resourceVersion": str(version)}
        end = start + limit if limit else len(objects)
        if end < len(objects):
            if number is None:
                number, self._next = self._next, self._next + 1
                self._rest[number] = (version, objects)
                if len(self._rest) > _MOST:
                    self._rest.popitem(last=False)
            token = msgspec.json.encode([number, end])
            meta["continue"] = base64.urlsafe_b64encode(token).decode()
            meta["remainingItemCount"] = len(objects) - end
        return objects[start:end], meta
