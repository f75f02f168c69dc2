"""Decodes the messages of a batch: each becomes records, or a dead letter with its reason, or neither.

Invariants:
- Decoding ends after DECODE_S, however much is there: the event loop gets its turn, and the rest is another batch.
- A mistake of the program at one body makes a letter of that message; its neighbours are decoded.
- An event that no route takes, or that is too old for one, becomes neither record nor letter: it is finished, counted
  and logged.

Comes from `batches`; the work is done by `routing`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nsqdigest.base import log
from nsqdigest.base.reasons import DeadLetterReason, SkipReason
from nsqdigest.intake.batch import Arrival, Batch
from nsqdigest.intake.bodies import NESTED_OR_NOT_ASCII, NUMBERS, OPEN_BRACKET, Rejected, field_names
from nsqdigest.intake.letters import Letter

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.intake.routing import Router
    from nsqdigest.nsq.frames import Message

DECODE_S = 0.010
"""500 honest events of 250 bytes take a tenth of it. A part of hostile ones may take as much again."""
PART_MESSAGES = 64
PART_BYTES = 64 * 1024
"""The clock is read after a part, which has about so many bytes at most, or one message."""
UNMATCHED_EVERY_S = 60.0
LONGEST_SHOWN = 60
"""Characters of what an event has where a zone should be."""

_CLASSES = bytes(
    {
        **dict.fromkeys(b"0123456789+", b"9"[0]),
        **dict.fromkeys(b"eE", b"e"[0]),
        **dict.fromkeys(b",]} \t\n\r", b","[0]),
    }.get(byte, b"-"[0])
    for byte in range(256)
)
"""Digits become 9, both letters of exponents e, all that may follow a number a comma, all else a minus. A plus counts
as a digit, which makes 1e+99 a vain suspicion."""
_LARGE_EXPONENT = re.compile(rb"9e-?999" rb"9*+(?:,|\Z)")
_LONG_DIGITS, _EVERY = 6 * b"9", 32
"""Of every 32nd byte: some 200 digits in a row. With 209 and an exponent of two digits no number leaves the range."""

_log = log.get("consumer")


class Decoder:
    def __init__(self, topic: str, router: Router, metrics: Metrics) -> None:
        self._topic = topic
        self._router = router
        self._metrics = metrics

    def decode(self, arrivals: Sequence[Arrival], now_ms: int) -> tuple[Batch, list[Arrival]]:
        """Decode as many messages as there is time for. Return the batch, and what is left of the arrivals. `now_ms`:
        by Redis' clock."""
        batch = Batch([], now_ms)
        unmatched: list[Message] = []
        now_s = time.monotonic()
        left: list[Arrival] = []
        for arrival in arrivals:
            decoded = 0
            if not left:
                decoded = self._decode_arrival(arrival, batch, unmatched, now_s)
            if decoded == len(arrival.messages):
                batch.arrivals.append(arrival)
                continue
            if decoded:
                batch.arrivals.append(arrival._replace(messages=arrival.messages[:decoded]))
            left.append(arrival._replace(messages=arrival.messages[decoded:]))
        if unmatched:
            self._report_unmatched(unmatched)
        if self._router.too_old:
            self._report_too_old()
        if self._router.unknown_zones:
            self._report_unknown_zones()
        return batch, left

    def _decode_arrival(self, arrival: Arrival, batch: Batch, unmatched: list[Message], began_s: float) -> int:
        """Return how many of its messages were decoded before the time was over."""
        records_of, add_record = self._router.records_of, batch.records.append
        now_ms, may_repeat = batch.now_ms, began_s >= arrival.repeat_at_s
        decoded = 0
        for part, bodies in _parts(arrival.messages):
            if time.monotonic() >= began_s + DECODE_S and (decoded or batch.arrivals):
                break
            suspected = suspicions(bodies)
            for message in part:
                try:
                    if not records_of(message, now_ms, may_repeat or message.attempts > 1, add_record, suspected):
                        unmatched.append(message)
                except Rejected as why:
                    batch.letters[message] = Letter(message, why.reason, why.detail)
                except Exception as error:
                    batch.letters[message] = self._letter_after_bug(message, error)
            decoded += len(part)
        return decoded

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


def _parts(messages: list[Message]) -> Iterator[tuple[list[Message], list[bytes]]]:
    """Split messages into parts, each with its bodies."""
    start, size = 0, PART_MESSAGES
    while start < len(messages):
        part = messages[start : start + size]
        bodies = [message.body for message in part]
        size_bytes = sum(map(len, bodies))
        if size_bytes > PART_BYTES and len(part) > 1:
            size = max(1, len(part) * PART_BYTES // size_bytes)
        else:
            yield part, bodies
            start += len(part)
            size = PART_MESSAGES


def suspicions(bodies: list[bytes]) -> int:
    """Return what some of these bodies may be. A regular expression over each body would cost more than decoding it;
    joined and translated, bodies of 250 bytes take 0.2 µs each."""
    joined = b",".join(bodies)
    suspected = 0 if joined.isascii() and OPEN_BRACKET not in joined else NESTED_OR_NOT_ASCII
    classes = joined.translate(_CLASSES)
    if _LARGE_EXPONENT.search(classes) or _LONG_DIGITS in classes[::_EVERY]:
        suspected |= NUMBERS
    return suspected
