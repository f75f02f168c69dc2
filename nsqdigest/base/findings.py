"""What `nsqdigest doctor` finds out about one thing, and how well that thing is (pure).

It stands here because a kind of sink says in its own file what the doctor looks at.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    OK = "ok"
    """Looked at, and well."""
    NOTE = "note"
    """Nobody has to do anything, or nobody could look."""
    WARN = "warn"
    """It works, and may cost events or time some day."""
    FAIL = "fail"
    """It does not work."""


class Finding(NamedTuple):
    what: str
    """What was looked at, as the report names it."""
    state: State
    detail: str
    remedy: str = ""


class Doubt(NamedTuple):
    """A warning about a server that was reached; `what` it is about is known to who asked for it."""

    detail: str
    remedy: str

    def of(self, what: str) -> Finding:
        return Finding(what, State.WARN, self.detail, self.remedy)


class Reached(NamedTuple):
    """A server that answered."""

    how: str
    """Its version, TLS, certificate and the like, joined by semicolons."""
    doubts: tuple[Doubt, ...] = ()


def from_message(what: str, state: State, message: str, otherwise: str = "") -> Finding:
    """The remedy is what follows the last semicolon of the message; `otherwise` where it has none."""
    detail, separator, remedy = message.rpartition("; ")
    return Finding(what, state, detail, remedy) if separator else Finding(what, state, message, otherwise)
