"""What a sink is: it is given one finished digest and answers with exactly one outcome, whatever happens in between."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol


class Parcel(NamedTuple):
    """A digest as it goes out: the same body at each attempt."""

    id: str
    route: str
    timeline: str
    attempt: int
    records: int
    body: bytes


class Verdict(StrEnum):
    DELIVERED = "delivered"
    UNAVAILABLE = "unavailable"
    """The receiver as a whole is unwell: nothing about this digest."""
    AGAIN = "again"
    """This attempt failed; the next may succeed."""
    REFUSED = "refused"
    """The receiver does not want this digest; a few attempts more, then it is dead."""
    GONE = "gone"
    """The receiver is no more (410)."""


class Outcome(NamedTuple):
    verdict: Verdict
    detail: str = ""
    """In our own words: it goes into the log at every level."""
    retry_after_s: float = 0.0
    answer: str = ""
    """In the receiver's words, which may quote events: for the dead store, and the log at debug only."""


class Sink(Protocol):
    async def deliver(self, parcel: Parcel) -> Outcome:
        """May raise anything: whoever calls takes that for a verdict of AGAIN."""

    async def close(self) -> None: ...
