"""What a doctor says of one thing (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    OK = "ok"
    """Looked at, and well."""
    NOTE = "note"
    """Nothing is wrong with it, or nobody could look: worth a word."""
    WARN = "warn"
    """It works, and may cost events or time some day."""
    FAIL = "fail"
    """It does not work."""


class Finding(NamedTuple):
    what: str
    state: State
    detail: str
    remedy: str = ""


class Part(NamedTuple):
    """What belongs together on the screen. What a finding is about is named within its part."""

    name: str
    findings: tuple[Finding, ...]


def told(what: str, state: State, message: str, otherwise: str = "") -> Finding:
    """A message of ours has the remedy behind its last semicolon. `otherwise`: where it has none."""
    detail, separator, remedy = message.rpartition("; ")
    return Finding(what, state, detail, remedy) if separator else Finding(what, state, message, otherwise)


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether there is nothing that somebody should do something about."""
    return all(finding.state in (State.OK, State.NOTE) for finding in findings)
