"""What bookings have alike, kept once: options, and the names that repeat."""

from msgspec import json

from fairslice.booking import Option, Ref
from fairslice_queue.sharing import Shared

__all__ = ["SharedParts"]

_encode = json.Encoder().encode


class SharedParts:
    """Gives the first of what is equal. A thousand teams ask for a few dozen shapes."""

    def __init__(self) -> None:
        self._options = Shared[tuple[Option, ...]]()
        self._words = Shared[str](16_384)

    def options(self, options: tuple[Option, ...]) -> tuple[Option, ...]:
        """Return the options that were equal to these."""
        return self._options.of(_encode(options), lambda: options)

    def word(self, text: str) -> str:
        """Return the text that was equal to this."""
        return self._words.same(text)

    def ref(self, ref: Ref, name: str, uid: str) -> Ref:
        """Return a reference with another name and uid, if they are given."""
        return Ref(
            kind=self.word(ref.kind),
            namespace=self.word(ref.namespace),
            name=name or ref.name,
            generate_name=ref.generate_name,
            uid=uid or ref.uid,
        )
