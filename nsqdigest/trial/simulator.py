"""A policy against a stream of events: which digests would come of it, when and how large (pure).

The instants are those of the store's own schedule; the store, the sinks and the network take no time. What falls on one
instant happens in one order: events are filed, then digests go out.

    events, in the order of their instants → add(…) → digests that went out before each
                                             finish() → those that are still to come

Invariants:
- A digest holds every event of its timeline that came until it went out and was in none before.
- It keeps no events: of each timeline that waits the keys of its records, `capacity` at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from nsqdigest.store.schedule import Plan, due_ms


class Event(NamedTuple):
    instant_ms: int
    timeline: str = ""
    key: str | None = None
    """Of two with the same key the newer record stays. None: one of its own."""
    zone: str = ""
    """That it names for its timeline, where the policy takes the zone from the events."""


class SimulatedDigest(NamedTuple):
    timeline: str
    at_ms: int
    """When it goes out."""
    due_ms: int
    """When it was due; earlier than `at_ms` where quiet hours held it back."""
    iteration: int
    records: int
    superseded: int
    dropped: int
    """Over capacity."""
    first_ms: int
    """When the first of its events came."""

    @property
    def waited_ms(self) -> int:
        return self.at_ms - self.first_ms


class _Timeline:
    """One that waits."""

    __slots__ = (
        "base_ms",
        "bound_ms",
        "dropped",
        "first_ms",
        "held_since_ms",
        "iteration",
        "keys",
        "plan",
        "queued_ms",
        "records",
        "superseded",
    )

    def __init__(self, plan: Plan, base_ms: int, bound_ms: int) -> None:
        self.plan = plan
        self.base_ms = base_ms
        self.bound_ms = bound_ms
        self.queued_ms = 0
        self.held_since_ms: int | None = None
        """When it came due, where it was put off until its quiet hours end."""
        self.iteration = 0
        self.empty()

    def empty(self) -> None:
        self.records = self.superseded = self.dropped = 0
        self.first_ms = 0
        self.keys: dict[str, None] = {}

    def file(self, event: Event, capacity: int) -> None:
        if not self.records:
            self.first_ms = event.instant_ms
        if event.key is not None:
            if event.key in self.keys:
                del self.keys[event.key]
                self.records -= 1
                self.superseded += 1
            elif self.records == capacity and self.keys:
                del self.keys[next(iter(self.keys))]
            self.keys[event.key] = None
        if self.records == capacity:
            self.dropped += 1
        else:
            self.records += 1


class Simulator:
    def __init__(self, plan: Plan, capacity: int) -> None:
        self._plan = plan
        self._capacity = capacity
        self._timelines: dict[str, _Timeline] = {}
        self._waiting: list[tuple[int, str]] = []
        """A heap. No instant is after the one at which its timeline goes out: records only push that back."""

    @property
    def waiting(self) -> int:
        """Timelines that are known."""
        return len(self._timelines)

    def add(self, event: Event) -> Iterator[SimulatedDigest]:
        """Yields the digests that went out before it. Events come in the order of their instants."""
        yield from self._go_out(event.instant_ms - 1)
        timeline = self._timelines.get(event.timeline)
        if timeline is None:
            plan = self._plan.of_zone(event.zone)
            timeline = self._timelines[event.timeline] = _Timeline(plan, *plan.beginning(event.instant_ms))
            timeline.file(event, self._capacity)
            self._queue(event.timeline, timeline)
        else:
            timeline.file(event, self._capacity)
            if event.zone:
                self._move(event, timeline)

    def finish(self, until_ms: int | None = None) -> Iterator[SimulatedDigest]:
        """Yields the digests that go out until then, or all."""
        yield from self._go_out(until_ms)

    def _move(self, event: Event, timeline: _Timeline) -> None:
        """It follows the zone of its newest event."""
        plan = self._plan.of_zone(event.zone)
        anew = plan.anew(event.instant_ms) if plan is not timeline.plan else None
        timeline.plan = plan
        if anew is not None and self._due_ms(timeline) > event.instant_ms:
            timeline.base_ms, timeline.bound_ms = anew
            self._queue(event.timeline, timeline)

    def _queue(self, name: str, timeline: _Timeline) -> None:
        timeline.queued_ms = self._at_ms(timeline)
        heappush(self._waiting, (timeline.queued_ms, name))

    def _at_ms(self, timeline: _Timeline) -> int:
        """When it goes out; where timelines have zones of their own: when it is claimed, and perhaps put off."""
        due = self._due_ms(timeline)
        return due if self._plan.zone_template else self._plan.release_ms(due)

    def _is_put_off(self, timeline: _Timeline) -> bool:
        due = self._due_ms(timeline)
        until_ms = timeline.plan.release_ms(due) if self._plan.zone_template else due
        if until_ms > due:
            timeline.held_since_ms, timeline.base_ms, timeline.bound_ms = due, until_ms, until_ms
        return until_ms > due

    def _due_ms(self, timeline: _Timeline) -> int:
        return due_ms(timeline.base_ms, timeline.bound_ms, self._plan.increment_ms, timeline.records)

    def _go_out(self, until_ms: int | None) -> Iterator[SimulatedDigest]:
        while self._waiting and (until_ms is None or self._waiting[0][0] <= until_ms):
            queued_ms, name = heappop(self._waiting)
            timeline = self._timelines.get(name)
            if timeline is None or timeline.queued_ms != queued_ms:
                continue  # it was queued anew
            at_ms = self._at_ms(timeline)
            if (
                (until_ms is not None and at_ms > until_ms)
                or (self._waiting and at_ms > self._waiting[0][0])
                or self._is_put_off(timeline)
            ):
                self._queue(name, timeline)
            elif not timeline.records:
                del self._timelines[name]
            else:
                yield self._gone_out(name, timeline, at_ms)
                self._queue(name, timeline)

    def _gone_out(self, name: str, timeline: _Timeline, at_ms: int) -> SimulatedDigest:
        timeline.iteration += 1
        due = self._due_ms(timeline) if timeline.held_since_ms is None else timeline.held_since_ms
        timeline.held_since_ms = None
        digest = SimulatedDigest(
            name, at_ms, due, timeline.iteration, timeline.records, timeline.superseded,
            timeline.dropped, timeline.first_ms,
        )  # fmt: skip
        promised_ms = timeline.plan.earliest_next_ms(at_ms)
        promised = promised_ms[min(timeline.iteration, len(promised_ms)) - 1]
        timeline.base_ms, timeline.bound_ms = timeline.plan.after_digest(timeline.iteration, at_ms, promised)
        timeline.empty()
        return digest
