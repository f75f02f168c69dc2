"""The events of a shop's services, where something is always a little wrong (pure: randomness and time are arguments).

Warnings and errors trickle; every few seconds one service has an incident, and its errors come in a burst. Ids count up
from 1, so that a receiver can tell which events are missing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

QUIET_EVENTS_PER_S = 22.0
INCIDENT_EVENTS_PER_S = 60.0
INCIDENT_S = (0.8, 1.6)
INCIDENT_EVERY_S = (2.5, 4.5)


class Kind(NamedTuple):
    """One thing that goes wrong. `weight`: how often, among those of its service."""

    severity: str
    code: str
    message: str
    weight: int


SERVICES = {
    "checkout": (
        Kind("error", "cart_conflict", "cart {cart} was changed by two requests at once", 4),
        Kind("error", "address_invalid", "no carrier delivers to postcode {postcode}", 3),
        Kind("warning", "slow_page", "the summary page took {ms} ms", 4),
        Kind("fatal", "worker_died", "worker {host} ran out of memory", 1),
    ),
    "payments": (
        Kind("error", "card_declined", "card declined: {why}", 6),
        Kind("error", "gateway_timeout", "the card gateway did not answer within {s} s", 4),
        Kind("fatal", "charged_twice", "order {order} was charged twice", 1),
        Kind("warning", "retry", "charge succeeded at attempt {n}", 3),
    ),
    "search": (
        Kind("error", "shard_down", "shard {n} of the product index does not answer", 3),
        Kind("error", "bad_query", 'cannot parse the query "{query}"', 2),
        Kind("warning", "slow_query", '"{query}" took {ms} ms', 5),
    ),
    "mail": (
        Kind("error", "bounced", "confirmation of order {order} bounced: {bounce}", 4),
        Kind("error", "smtp_timeout", "the relay did not answer within {s} s", 3),
        Kind("warning", "queue_long", "{ms} mails are waiting for the relay", 2),
    ),
    "stock": (
        Kind("error", "oversold", "sold {n} more of {sku} than there are", 3),
        Kind("error", "sync_failed", "the warehouse refused {n} updates", 2),
        Kind("warning", "nearly_out", "only {n} of {sku} left", 4),
    ),
}
_WORDS = {
    "why": ("insufficient funds", "card expired", "suspected fraud", "limit exceeded"),
    "query": ("red shoes size 42", "gift under 20", "winter jacket", "usb-c cable 2 m", "espresso grinder"),
    "bounce": ("mailbox full", "no such user", "greylisted"),
    "sku": ("SHOE-42-RED", "MUG-BLUE", "CABLE-2M", "JACKET-M", "GRINDER-01"),
    "postcode": ("00000", "99999", "BT1 XXX"),
}

POISON = (
    b'{"service":"mail","severity":"error","message":"relay answered 4',
    b'{"severity":"error","code":"unknown","message":"an event that does not say whose it is"}',
)
"""What can never be filed: cut off half way, and without the field that its route's timeline needs."""


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    body: bytes
    service: str
    severity: str
    message: str


class Shop:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._number = 0
        self._next_s = 0.0
        self._incident_at = "payments"
        self._incident_from_s = 1.0
        self._incident_until_s = 2.0

    def until(self, now_s: float, wall_ms: int) -> list[Event]:
        """The events since the last call, in order. `now_s` counts from the opening of the shop."""
        events = []
        while self._next_s <= now_s:
            events.append(self._event(wall_ms - int((now_s - self._next_s) * 1000)))
            self._next_s += self._draw.expovariate(INCIDENT_EVENTS_PER_S if self._in_incident else QUIET_EVENTS_PER_S)
            if self._next_s > self._incident_until_s:
                self._plan_incident()
        return events

    @property
    def _in_incident(self) -> bool:
        return self._incident_from_s <= self._next_s

    def _plan_incident(self) -> None:
        self._incident_at = self._draw.choice(list(SERVICES))
        self._incident_from_s = self._next_s + self._draw.uniform(*INCIDENT_EVERY_S)
        self._incident_until_s = self._incident_from_s + self._draw.uniform(*INCIDENT_S)

    def _event(self, at_ms: int) -> Event:
        draw = self._draw
        # Most, not all, of what happens during an incident is the incident.
        hit = self._in_incident and draw.random() < 0.8
        service = self._incident_at if hit else draw.choice(list(SERVICES))
        kinds = SERVICES[service]
        kind = draw.choices(kinds, [each.weight for each in kinds])[0]
        order = f"A-{draw.randrange(10_000, 99_999)}"
        host = f"{service}-{draw.randrange(1, 4)}"
        words = {name: draw.choice(choices) for name, choices in _WORDS.items()}
        numbers = {"ms": draw.randrange(800, 6000), "s": draw.choice((2, 5, 10)), "n": draw.randrange(2, 9)}
        message = kind.message.format(order=order, host=host, cart=f"{draw.getrandbits(24):06x}", **words, **numbers)
        self._number += 1
        body = {
            "id": self._number, "service": service, "severity": kind.severity, "code": kind.code, "message": message,
            "order": order, "user": {"id": draw.randrange(1, 5000)}, "host": host, "at": at_ms,
        }  # fmt: skip
        return Event(self._number, msgspec.json.encode(body), service, kind.severity, message)
