"""One object for the many that are equal: templates, labels, names that repeat."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Shared"]

T = TypeVar("T")


class Shared(Generic[T]):
    """Remembers values by key, so many at most; when full it begins anew.

    What was handed out lives on with its owners, so a full table costs some sharing, not memory.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._values: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key, if it is known."""
        return self._values.get(key)

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; made if it isn't known."""
        value = self._values.get(key)
        if value is None:
            if len(self._values) >= self._most:
                self._values.clear()
            value = self._values[key] = make()
        return value

    def same(self, value: T) -> T:
        """Return the first that was equal to a hashable value."""
        if len(self._values) >= self._most:
            self._values.clear()
        return self._values.setdefault(value, value)
