"""Streams of events for the simulator (pure): read from the lines of a record, or drawn.

A line is an event as JSON, which the route's own templates are applied to, or `INSTANT [TIMELINE [KEY]]`. An event that
is older than the one before counts as coming with it: a timeline goes by when events come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.daemon.routes import intake_routes, plans_of
from nsqdigest.intake.bodies import Rejected
from nsqdigest.intake.routing import Router
from nsqdigest.intake.timestamps import timestamp_ms
from nsqdigest.nsq.frames import Message
from nsqdigest.trial.simulator import Event

if TYPE_CHECKING:
    from nsqdigest.config import Config, Limits, Route
    from nsqdigest.daemon.routes import Aims
    from nsqdigest.store.record import Record

LONGEST_LINE_BYTES = 4 << 20
BURST_MS = 60_000
"""The events of a burst come within so long."""
_NO_ID = b"0" * 16
_FAR_MS = 2**53


class NotUsed(Exception):
    """Why a line is no event of the stream."""


class Burst(NamedTuple):
    events: int
    after_ms: int
    """From the beginning of the stream on."""


# -- read


def of_any_time(limits: Limits) -> Limits:
    """A recorded event is as old as it is."""
    return replace(limits, past_ms=0, future_ms=_FAR_MS)


class Lines:
    def __init__(self, config: Config, route: Route | None, aims: Aims) -> None:
        """`route`: what JSON lines go through; None: they are not used."""
        self._route = route
        self._limits = of_any_time(config.limits)
        self._router: Router | None = None
        if route is not None:
            routes = intake_routes(config, route.topic, plans_of(config), aims)
            mine = [each._replace(settings=route) for each in routes if each.settings.name == route.name]
            self._router = Router(mine, self._limits)
        self._latest_ms = 0
        self.late = 0
        """Events that were older than the one before."""

    def event_of(self, line: bytes) -> Event:
        """Raises NotUsed."""
        event = self._of_json(line) if line.startswith((b"{", b"[")) else self._of_words(line)
        if event.instant_ms < self._latest_ms:
            self.late += 1
            return event._replace(instant_ms=self._latest_ms)
        self._latest_ms = event.instant_ms
        return event

    def _of_json(self, line: bytes) -> Event:
        if self._router is None or self._route is None:
            raise NotUsed("is JSON, and a policy alone has no templates for it; name a route with --route")
        if not self._route.timestamp:
            raise NotUsed(f'has no instant: the route "{self._route.name}" has no timestamp; name one with --timestamp')
        records: list[Record] = []
        try:
            self._router.records_of(Message(_NO_ID, 0, 1, line), 0, False, records.append)
        except Rejected as why:
            raise NotUsed(f"would be a dead letter, {why.reason}: {why.detail}") from None
        if not records:
            raise NotUsed(f'is not taken by the route "{self._route.name}"')
        record = records[0]
        key = record.key.decode() if self._route.key else None
        return Event(record.timestamp_us // 1000, record.timeline.decode(), key, record.zone)

    def _of_words(self, line: bytes) -> Event:
        instant, *rest = line.decode("utf-8", "replace").split(None, 2)
        timeline, key = (*rest, None, None)[:2]
        return Event(instant_of(instant, self._limits), timeline or "", key)


def instant_of(text: str, limits: Limits) -> int:
    """As a timestamp field has it: seconds, milliseconds or RFC 3339. Raises NotUsed."""
    try:
        value: str | float = float(text)
    except ValueError:
        value = text
    try:
        return timestamp_ms(value, "", limits, 0)
    except (Rejected, OverflowError, ValueError):
        raise NotUsed("does not begin with an instant, such as 2026-01-31T09:00:00Z, and is no JSON object") from None


# -- drawn


def drawn(
    start_ms: int,
    length_ms: int,
    mean_ms: float,
    bursts: Iterable[Burst],
    *,
    exponential: Callable[[float], float],
    timeline: Callable[[], str],
) -> Iterator[Event]:
    """Events at random. `mean_ms`: between two of them, 0: bursts alone; `exponential(1)` draws a wait."""
    end_ms = start_ms + length_ms
    streams = [_burst(start_ms, each, exponential) for each in bursts]
    if mean_ms:
        streams.append(_steady(start_ms, end_ms, mean_ms, exponential))
    for at_ms in merge(*streams):
        if at_ms < end_ms:
            yield Event(round(at_ms), timeline())


def _steady(start_ms: float, end_ms: float, mean_ms: float, exponential: Callable[[float], float]) -> Iterator[float]:
    while (start_ms := start_ms + mean_ms * exponential(1)) < end_ms:
        yield start_ms


def _burst(start_ms: int, burst: Burst, exponential: Callable[[float], float]) -> Iterator[float]:
    at_ms, mean_ms = float(start_ms + burst.after_ms), BURST_MS / burst.events
    for _ in range(burst.events):
        yield at_ms
        at_ms += mean_ms * exponential(1)
