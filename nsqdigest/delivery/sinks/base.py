"""What a sink is: it is given one finished digest and answers with exactly one outcome, whatever happens in between."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nsqdigest.base.reasons import Verdict


class Parcel(NamedTuple):
    """A digest as it goes out: the same body at each attempt."""

    id: str
    route: str
    timeline: str
    attempt: int
    records: int
    body: bytes


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
