"""What of labels and annotations is read, and the texts that repeat: each kept once."""

from collections.abc import Mapping

from fairslice import stamps
from fairslice_queue.sharing import Shared

__all__ = ["NONE", "KeptStrings", "Strings"]

Strings = Mapping[str, str]

NONE: Strings = {}

_OURS = (stamps.USER_PREFIX, stamps.SYSTEM)
# Facts of their own, or nothing that is read here: kept among the others they would keep equal
# annotations from being one object.
_APART = frozenset(
    (
        stamps.BOOKING,
        stamps.POD_STAMP,
        stamps.ASSIGNMENT,
        stamps.QUEUED_AT,
        stamps.GROUPS,
        stamps.MANIFEST,
        stamps.LABEL_MANAGED,
    )
)


class KeptStrings:
    """Keeps our own labels and annotations, and `label_keys` beside them."""

    def __init__(self) -> None:
        self.label_keys: frozenset[str] = frozenset()
        self._maps = Shared[Strings]()
        self._words = Shared[str](16_384)

    def word(self, text: str) -> str:
        """Return the text that was equal to this."""
        return self._words.same(text) if text else ""

    def labels(self, labels: Strings | None) -> Strings:
        """Keep of labels what is read."""
        if not labels:
            return NONE
        keys = self.label_keys
        return self._shared(
            {
                key: text
                for key, text in labels.items()
                if key in keys or (key.startswith(_OURS) and key not in _APART)
            }
        )

    def annotations(self, notes: Strings | None) -> Strings:
        """Keep of annotations what is read and has no field of its own."""
        if not notes:
            return NONE
        return self._shared(
            {
                key: text
                for key, text in notes.items()
                if key.startswith(_OURS) and key not in _APART
            }
        )

    def _shared(self, kept: Strings) -> Strings:
        return self._maps.of(tuple(kept.items()), lambda: kept) if kept else NONE
