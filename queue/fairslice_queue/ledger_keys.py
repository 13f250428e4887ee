"""The names of the ledger's keys in Redis."""

from dataclasses import dataclass

__all__ = ["BOOKS_FORM", "LedgerKeys"]

BOOKS_FORM = "2"
"""How books are written; those of another form are rebuilt. The same in records.lua."""


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """All keys carry one hash tag, so that scripts run on a cluster.

    | key                     | type   | content                                          |
    |-------------------------|--------|--------------------------------------------------|
    | meta                    | hash   | ready (the books' form), epoch, generation,      |
    |                         |        | building, lending (pools of which some is kept)  |
    | bookings                | hash   | id → three lines: records.lua says which         |
    | log                     | stream | id of each booking changed                       |
    | keys                    | set    | every key below, so that a rebuild finds them    |
    | held:TEAM               | hash   | p, s, c, u, r and `|` and name → amount held     |
    | placed:OFFER            | hash   | node → units placed                              |
    | capacity:OFFER          | hash   | node → allocatable units                         |
    | kept:OFFER              | hash   | node → units kept for bookings that wait         |
    | keeping                 | hash   | id that units are kept for → option              |
    | free:OFFER              | zset   | node by units neither placed nor kept            |
    | offers, offered         | set, hash | offers published; offer → units in all        |
    | lending:POOL            | hash   | what others may borrow: lending.lua says how     |
    | waiting:OFFER           | zset   | id by rank: exists, queued, in somebody's way    |
    | tentative:TEAM          | zset   | id by time of expiry                             |
    | lingering:TEAM|GROUP    | zset   | id by time of expiry: kept for a successor       |
    | deadlines               | zset   | both of the above                                |
    | objects                 | hash   | `Kind namespace/name` → tentative id             |
    | group:TEAM|GROUP        | hash   | id that holds → revision                         |
    | surging:TEAM            | zset   | id counted as surge                              |
    | pods:ID                 | hash   | stamp of an attached pod → expiry, or `=uid name`|
    | audit                   | stream | what would have happened, were more enforced     |
    """

    tag: str = "fairslice"

    @property
    def prefix(self) -> str:
        """What every key begins with."""
        return f"{{{self.tag}}}:"

    @property
    def meta(self) -> str:
        """The key that scripts are routed by and name the others after."""
        return self.prefix + "meta"

    @property
    def log(self) -> str:
        """The stream of changes."""
        return self.prefix + "log"

    @property
    def bookings(self) -> str:
        """The bookings."""
        return self.prefix + "bookings"

    @property
    def audit(self) -> str:
        """The stream of audit entries."""
        return self.prefix + "audit"

    @property
    def registry(self) -> str:
        """The set of all keys that a rebuild must empty."""
        return self.prefix + "keys"
