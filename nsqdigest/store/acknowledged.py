"""What Redis lost after it had acknowledged it, as far as one daemon can tell (pure).

Each ledger counts the records that were ever presented to its route, and only grows. So what a call found there cannot
be less than what was heard before the call was sent; where it is, the difference was acknowledged and is gone (a
failover, a restart without everything on disk, an older dump). Answers may overtake each other: a call is measured by
what was known when it was sent, and once a loss is found those still under way from before it are not measured again.
What was under way when it happened may be counted, too: a reply that came tells of others that did not.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """What was known of a ledger when a call was sent."""

    generation: int
    records: int


class Losses:
    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Known] = {}
        self._found: dict[str, int] = {}

    def known(self, route: str, partition: int) -> Known:
        return self._known.get((route, partition), Known(0, 0))

    def acknowledged(self, route: str, partition: int, when_sent: Known, before: int, after: int) -> bool:
        """A call found `before` records counted, left `after`, and is safe. Returns whether something is gone."""
        if self.found(route, partition, when_sent, before):
            self._known[route, partition] = Known(when_sent.generation + 1, after)
            return True
        now = self.known(route, partition)
        if now.generation == when_sent.generation and after > now.records:
            self._known[route, partition] = Known(now.generation, after)
        return False

    def found(self, route: str, partition: int, when_sent: Known, records: int) -> bool:
        """So many are counted. That is no promise for more: what is counted may not have been acknowledged yet."""
        lost = when_sent.records - records
        if lost <= 0 or self.known(route, partition).generation != when_sent.generation:
            return False
        self._found[route] = self._found.get(route, 0) + lost
        self._known[route, partition] = Known(when_sent.generation + 1, records)
        return True

    def take(self) -> dict[str, int]:
        """Records lost by route, each told once."""
        found, self._found = self._found, {}
        return found
