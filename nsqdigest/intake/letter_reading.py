"""Reads dead letters back (pure): the event that a letter holds, and whether it may go to its topic again.

Invariants:
- An event goes again only whole: its length and its hash are those that the letter names.
- It goes again only where the routes of this file would take it, so that it is no dead letter a second time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nsqdigest.intake.bodies import Rejected
from nsqdigest.nsq.frames import Message

if TYPE_CHECKING:
    from nsqdigest.intake.routing import Router
    from nsqdigest.store.record import Record


class DeadEvent(msgspec.Struct, frozen=True):
    """A letter as `letters` wrote it. Fields of another version are skipped."""

    reason: str
    topic: str
    body: bytes
    length: int
    sha256: str
    detail: str = ""
    nsqd: str = ""
    timestamp: int = 0
    """Of the message, in nanoseconds."""


class NoLetter(ValueError):
    """Something else was published to the dead-letter topic."""


def read(text: bytes) -> DeadEvent:
    try:
        return msgspec.json.decode(text, type=DeadEvent)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoLetter(str(error)) from None


class Stays(StrEnum):
    """Why a letter is not replayed."""

    NOT_SELECTED = "not-selected"
    NO_LETTER = "no-letter"
    CUT_OFF = "cut-off"
    """The letter holds only the beginning of the event."""
    OTHER_TOPIC = "other-topic"
    """Its topic is of no route of the file."""
    STILL_BAD = "still-bad"
    """It would be a dead letter again."""
    UNMATCHED = "unmatched"
    """No route takes it."""
    CAME_BACK = "came-back"
    """It was replayed in this run, and is a dead letter again."""
    NOT_PUBLISHED = "not-published"
    """nsqd did not acknowledge the event."""


class Choice(NamedTuple):
    """Which letters an operator means. "": any."""

    reason: str = ""
    topic: str = ""
    contains: bytes = b""
    """In the event."""

    def takes(self, event: DeadEvent) -> bool:
        return self.reason in ("", event.reason) and self.topic in ("", event.topic) and self.contains in event.body


class Judge:
    """`routers`: of the file, by topic."""

    def __init__(self, routers: Mapping[str, Router], choice: Choice) -> None:
        self._routers = routers
        self._choice = choice

    def refusal(self, event: DeadEvent, now_ms: int) -> tuple[Stays, str] | None:
        """Why it stays, and the detail. None: it may go again."""
        if not self._choice.takes(event):
            return Stays.NOT_SELECTED, ""
        if len(event.body) != event.length or hashlib.sha256(event.body).hexdigest() != event.sha256:
            return Stays.CUT_OFF, f"the letter holds {len(event.body):,} of {event.length:,} bytes"
        router = self._routers.get(event.topic)
        if router is None:
            # Who names a topic means it, also where its routes stand in another file.
            return None if self._choice.topic else (Stays.OTHER_TOPIC, f"no route of this file reads {event.topic}")
        return self._judged(router, event, now_ms)

    def _judged(self, router: Router, event: DeadEvent, now_ms: int) -> tuple[Stays, str] | None:
        message = Message(b"0" * 16, now_ms * 1_000_000, 1, event.body)  # with the time of its new message
        records: list[Record] = []
        try:
            taken = router.records_of(message, now_ms, False, records.append)
        except Rejected as why:
            return Stays.STILL_BAD, f"{why.reason}: {why.detail}"
        except Exception as error:
            return Stays.STILL_BAD, f"bug: {type(error).__name__}: {error}"
        return None if taken else (Stays.UNMATCHED, "no route takes it, so it would be finished and counted")
