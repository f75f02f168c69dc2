"""Which connection may have how much in flight (pure): the limit and the connections in, the wanted RDY of each out.

The sum never exceeds the limit. With room for all, the remainder goes to the first ones; with fewer places than
connections, the places go to those that have waited longest, so that over some rounds none starves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

C = TypeVar("C", bound=Hashable)


class Facts(NamedTuple):
    max_rdy: int
    served_at_s: float
    """When it last had a message, or was last given a place."""


def spread(limit: int, connections: Sequence[tuple[C, Facts]]) -> dict[C, int]:
    """The wanted RDY of every connection."""
    count = len(connections)
    if count == 0:
        return {}
    if limit < count:
        longest_waiting = sorted(connections, key=lambda connection: connection[1].served_at_s)
        served = {connection for connection, _ in longest_waiting[:limit]}
        return {connection: int(connection in served) for connection, _ in connections}
    share, remainder = divmod(limit, count)
    return {
        connection: min(share + (number < remainder), facts.max_rdy)
        for number, (connection, facts) in enumerate(connections)
    }


def only(chosen: C | None, connections: Sequence[C]) -> dict[C, int]:
    """A probe: one for the chosen connection, nothing for all others."""
    return {connection: int(connection == chosen) for connection in connections}
