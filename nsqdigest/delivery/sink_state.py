"""How a sink does: one state, since when, and how many digests it concerns (pure).

    delivering   its receiver accepted the last digest, or none was sent yet
    behind       nothing failed, but something is overdue for long
    refusing     no digest was accepted since one failed
    paused       an operator paused it
    stopped      its receiver answered 410: nothing is sent until the daemon starts anew

The one furthest down the list wins. Invariants: a sink in trouble says since when, and a digest is counted once however
often it fails. Facts come in with `now` as Unix time, because an operator reads the answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from nsqdigest.base.reasons import SinkState, Verdict
from nsqdigest.delivery.sinks.base import Outcome

BEHIND_AFTER_S = 60.0
RETRIES_REMEMBERED = 10_000
"""Digests that wait for a retry; beyond it they are not counted until they are overdue."""
_LONG_AGO_S = 20 * 3600
_STATUS = re.compile(r"\d{3}\b")


class Backlog(NamedTuple):
    """What the store holds for a sink, over all its routes."""

    overdue: int = 0
    """Timelines that wait although they are due."""
    oldest_due_s: float = 0.0
    """How long the oldest of them is overdue."""
    dead: int = 0
    """Digests in the dead list."""

    def plus(self, other: Backlog) -> Backlog:
        return Backlog(self.overdue + other.overdue, max(self.oldest_due_s, other.oldest_due_s), self.dead + other.dead)


class Condition(NamedTuple):
    state: SinkState
    since_s: float | None
    detail: str

    @property
    def is_trouble(self) -> bool:
        return self.state is not SinkState.DELIVERING


@dataclass(slots=True)
class SinkHistory:
    """What became of a sink's digests since its receiver last accepted one."""

    refusing_since_s: float | None = None
    stopped_since_s: float | None = None
    buried_since: int = 0
    why: str = ""
    _retries: dict[str, float] = field(default_factory=dict)
    """Digests that wait for another attempt, and until when."""

    def delivered(self, digest_id: str) -> None:
        self._retries.pop(digest_id, None)
        self.refusing_since_s, self.buried_since, self.why = None, 0, ""

    def failed(self, digest_id: str, why: str, now_s: float, again_s: float) -> None:
        self._trouble(why, now_s)
        if digest_id in self._retries or len(self._retries) < RETRIES_REMEMBERED:
            self._retries[digest_id] = again_s

    def buried(self, digest_id: str, why: str, now_s: float) -> None:
        self._trouble(why, now_s)
        self._retries.pop(digest_id, None)
        self.buried_since += 1

    def stopped(self, why: str, now_s: float) -> None:
        self._trouble(why, now_s)
        self.stopped_since_s = now_s

    def _trouble(self, why: str, now_s: float) -> None:
        self.why = why
        if self.refusing_since_s is None:
            self.refusing_since_s = now_s

    def waits(self, backlog: Backlog, now_s: float) -> int:
        """Digests that are not delivered although they were due: a retry is overdue only when its instant has come."""
        return backlog.overdue + sum(again_s > now_s for again_s in self._retries.values())

    def condition(self, backlog: Backlog, paused_since_s: float | None, now_s: float) -> Condition:
        waits = self.waits(backlog, now_s)
        counts = [f"{_digests(waits)} {'waits' if waits == 1 else 'wait'}"] if waits else []
        if self.stopped_since_s is not None:
            state, since_s, why = SinkState.STOPPED, self.stopped_since_s, self.why
        elif paused_since_s is not None:
            state, since_s, why = SinkState.PAUSED, paused_since_s, ""
        elif self.refusing_since_s is not None:
            state, since_s, why = SinkState.REFUSING, self.refusing_since_s, self.why
            if self.buried_since:
                counts.insert(0, f"{_digests(self.buried_since)} buried")
        elif backlog.oldest_due_s >= BEHIND_AFTER_S:
            state, since_s, why = SinkState.BEHIND, now_s - backlog.oldest_due_s, ""
        else:
            dead = f" ({_digests(backlog.dead)} in the dead list)" if backlog.dead else ""
            return Condition(SinkState.DELIVERING, None, f"delivering{dead}")
        if backlog.dead > self.buried_since or (backlog.dead and state is not SinkState.REFUSING):
            counts.append(f"{backlog.dead:,} in the dead list")
        said = ": ".join(each for each in (", ".join(counts), why) if each)
        return Condition(state, since_s, f"{state} since {clock_text(since_s, now_s)}" + (f" ({said})" if said else ""))


def why_of(outcome: Outcome) -> str:
    """An HTTP status, or our own words for what happened: never what the receiver wrote."""
    if outcome.verdict is Verdict.UNRENDERED:
        return outcome.detail
    status = _STATUS.match(outcome.detail)
    return status[0] if status else str(outcome.verdict)


def clock_text(at_s: float, now_s: float) -> str:
    """Of this machine's clock, as in the log for people; with the date where the hour alone would mislead."""
    at = datetime.fromtimestamp(at_s, UTC).astimezone()
    return at.strftime("%H:%M" if now_s - at_s < _LONG_AGO_S else "%Y-%m-%d %H:%M")


def _digests(count: int) -> str:
    return f"{count:,} digest{'' if count == 1 else 's'}"
