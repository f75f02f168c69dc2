"""What a sink is: it takes finished digests and returns exactly one outcome for each, whatever happens in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.targets import Target


class OutgoingDigest(NamedTuple):
    """A digest as it goes out: the same body to the same target at each attempt."""

    id: str
    route: str
    timeline: str
    attempt: int
    records: int
    body: bytes
    target: Target | None = None
    """None: where all digests of the sink go."""


_LONGEST_WHY = 200


class Outcome(NamedTuple):
    """The end of an attempt. Each fact is a field of its own, so that no reader has to take a sentence apart."""

    verdict: Verdict
    cause: str = ""
    """Our own words for what happened. Every screen and the log at every level may show it."""
    status: int | None = None
    """The receiver's code, of HTTP or SMTP; None if it gave none."""
    retry_after_s: float = 0.0
    answer: str = ""
    """The receiver's words, which may quote events: for the dead store, and the log at debug only."""
    is_of_sink: bool = True
    """False: it says nothing of the sink's other digests, because they go elsewhere."""

    @property
    def why(self) -> str:
        """The cause on one line of a screen; the verdict's name if no cause is known."""
        cause = self.cause or str(self.verdict)
        return cause if len(cause) <= _LONGEST_WHY else f"{cause[: _LONGEST_WHY - 1]}…"


class Sink(Protocol):
    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        """May raise anything: whoever calls takes that for a verdict of AGAIN."""

    async def close(self) -> None: ...


@runtime_checkable
class BulkSink(Sink, Protocol):
    """A sink that takes several digests for little more than one costs."""

    at_once: int
    at_once_bytes: int
    """At most; one body may be larger than that."""

    async def deliver_all(self, digests: Sequence[OutgoingDigest]) -> Sequence[Outcome]: ...
