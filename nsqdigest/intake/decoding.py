"""Decodes the messages of a batch: each becomes records, or a dead letter with its reason, or neither.

Invariants:
- A mistake of the program at one body makes a letter of that message; its neighbours are decoded.
- An event that no route takes, or that is too old for one, becomes neither record nor letter: it is finished, counted
  and logged.

Comes from `batches`; the work is done by `routing`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqdigest.base import log
from nsqdigest.base.reasons import DeadLetterReason, SkipReason
from nsqdigest.intake.batch import Arrival, Batch
from nsqdigest.intake.bodies import Rejected, field_names
from nsqdigest.intake.letters import Letter

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.intake.routing import Router
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.servers.facts import RedisClock

UNMATCHED_EVERY_S = 60.0
LONGEST_SHOWN = 60
"""Characters of what an event has where a zone should be."""

_log = log.get("consumer")


class Decoder:
    def __init__(self, topic: str, router: Router, clock: RedisClock, metrics: Metrics) -> None:
        self._topic = topic
        self._router = router
        self._clock = clock
        self._metrics = metrics

    def decode(self, arrivals: list[Arrival]) -> Batch:
        now_ms = self._clock.now_ms()
        batch = Batch(arrivals, now_ms)
        unmatched: list[Message] = []
        now_s = time.monotonic()
        records_of, add_record = self._router.records_of, batch.records.append
        for arrival in arrivals:
            may_repeat = now_s >= arrival.repeat_at_s
            for message in arrival.messages:
                try:
                    if not records_of(message, now_ms, may_repeat or message.attempts > 1, add_record):
                        unmatched.append(message)
                except Rejected as why:
                    batch.letters[message] = Letter(message, why.reason, why.detail)
                except Exception as error:
                    batch.letters[message] = self._letter_after_bug(message, error)
        if unmatched:
            self._report_unmatched(unmatched)
        if self._router.too_old:
            self._report_too_old()
        if self._router.unknown_zones:
            self._report_unknown_zones()
        return batch

    def _letter_after_bug(self, message: Message, error: Exception) -> Letter:
        """Requeued instead, the message would come again and again, each time with its neighbours."""
        _log.error("consumer.decode.bug", topic=self._topic, message=message.id, error=error, exc_info=error)
        return Letter(message, DeadLetterReason.BUG, f"{type(error).__name__}: {error}")

    def _report_too_old(self) -> None:
        for route, events in self._router.too_old.items():
            self._metrics.add("events_skipped_total", events, route=route, reason=SkipReason.TOO_OLD)
            _log.counted(
                "warning",
                "consumer.event.too_old",
                by=("route",),
                adds=("events",),
                every_s=UNMATCHED_EVERY_S,
                route=route,
                events=events,
                hint="older than max_event_age of the route; they are finished",
            )
        self._router.too_old.clear()

    def _report_unknown_zones(self) -> None:
        for route, (events, name) in self._router.unknown_zones.items():
            self._metrics.add("zones_unknown_total", events, route=route)
            _log.counted(
                "warning",
                "consumer.zone.unknown",
                by=("route",),
                adds=("events",),
                every_s=UNMATCHED_EVERY_S,
                route=route,
                events=events,
                zone=name[:LONGEST_SHOWN],
                hint="their timelines keep the zone that they have, or zone_default of the policy",
            )
        self._router.unknown_zones.clear()

    def _report_unmatched(self, messages: Sequence[Message]) -> None:
        """A mistake in `match` would otherwise lose events silently."""
        self._metrics.add("events_unmatched_total", len(messages), topic=self._topic)
        _log.counted(
            "warning",
            "consumer.event.unmatched",
            by=("topic",),
            adds=("events",),
            every_s=UNMATCHED_EVERY_S,
            topic=self._topic,
            events=len(messages),
            fields_of_one=field_names(messages[-1].body),
            hint="such events are finished; compare `match` of this topic's routes with the fields",
        )
