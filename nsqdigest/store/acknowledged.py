"""The records that Redis acknowledged to this daemon, and how many of them it has lost since (pure).

The ledger of a route in a partition counts every record that was ever presented to it, and only grows. So the count
that a call finds cannot be smaller than the count that was known when the call was sent. Where it is smaller, the
difference was acknowledged and is gone: a failover, a restart without everything on disk, an older dump.

Invariants:
- Answers may overtake each other, so a call is compared with what was known when it was sent (`Known`).
- A loss is counted once: calls that were sent before it was found are not compared any more (`Known.generation`).
- A loss may include records whose call was still under way: one answer shows that others were undone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple


class Known(NamedTuple):
    """What was known of a ledger when a call was sent."""

    generation: int = 0
    """How many losses were found in it before."""
    records: int = 0


class AcknowledgedCounts:
    def __init__(self) -> None:
        self.known: defaultdict[tuple[str, int], Known] = defaultdict(Known)
        """By route and partition: to be read before a call is sent, and handed back with its answer."""
        self._lost: dict[str, int] = {}

    def on_answer(self, route: str, partition: int, when_sent: Known, before: int, after: int) -> bool:
        """A call that is acknowledged now found `before` records in the ledger and left `after`. Returns whether
        records were lost."""
        if self.compare(route, partition, when_sent, before):
            self.known[route, partition] = Known(when_sent.generation + 1, after)
            return True
        now = self.known[route, partition]
        if now.generation == when_sent.generation and after > now.records:
            self.known[route, partition] = Known(now.generation, after)
        return False

    def compare(self, route: str, partition: int, when_sent: Known, records: int) -> bool:
        """The ledger was read and has `records`, of which some may not be acknowledged yet: it raises no count.
        Returns whether records were lost."""
        lost = when_sent.records - records
        if lost <= 0 or self.known[route, partition].generation != when_sent.generation:
            return False
        self._lost[route] = self._lost.get(route, 0) + lost
        self.known[route, partition] = Known(when_sent.generation + 1, records)
        return True

    def take_lost(self) -> dict[str, int]:
        """Records lost by route since the last call."""
        lost, self._lost = self._lost, {}
        return lost
