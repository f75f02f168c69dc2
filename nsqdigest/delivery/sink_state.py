"""How a sink does: one state, since when, and how many digests it concerns (pure).

    delivering   its receiver accepted the last digest, or none was sent yet
    behind       nothing failed, but something is overdue for long
    refusing     no digest was accepted since one failed
    paused       an operator paused it
    stopped      its receiver answered 410: nothing is sent until a reload or a restart

The one furthest down the list wins. A sink whose digests go to many places can deliver to most of them: it stays
delivering, and says which digests wait and why. Invariants: a sink in trouble says since when, and a digest is counted
once however often it fails. Facts come in with `now` as Unix time, because an operator reads the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from nsqdigest.base.reasons import SinkState

BEHIND_AFTER_S = 60.0
RETRIES_REMEMBERED = 10_000
"""Digests that wait for a retry; beyond it they are not counted until they are overdue."""
_LONG_AGO_S = 20 * 3600
_PLACES_SHOWN = 3
_ASIDE_GRACE_S = 60.0
"""A digest that was not tried again so long after its time waits no more: it is gone, or a daemon elsewhere has it."""


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
    """None: no trouble. One that delivers, but not to all places, says since when."""
    detail: str

    @property
    def is_trouble(self) -> bool:
        return self.since_s is not None


class _Aside(NamedTuple):
    """A digest that failed for a reason that is not its sink's."""

    since_s: float
    again_s: float
    why: str


@dataclass(slots=True)
class SinkHistory:
    """What became of a sink's digests since its receiver last accepted one."""

    refusing_since_s: float | None = None
    stopped_since_s: float | None = None
    buried_since: int = 0
    why: str = ""
    _retries: dict[str, float] = field(default_factory=dict)
    """Digests that wait for another attempt, and until when."""
    _aside: dict[str, _Aside] = field(default_factory=dict)

    def delivered(self, digest_ids: Iterable[str]) -> None:
        if self._retries or self._aside:
            for digest_id in digest_ids:
                self._retries.pop(digest_id, None)
                self._aside.pop(digest_id, None)
        self.refusing_since_s, self.buried_since, self.why = None, 0, ""

    def failed(self, digest_id: str, why: str, now_s: float, again_s: float, *, is_of_sink: bool = True) -> None:
        """`is_of_sink`: whether it says something of other digests as well."""
        if not is_of_sink:
            self._set_aside(digest_id, why, now_s, again_s)
            return
        self._trouble(why, now_s)
        if digest_id in self._retries or len(self._retries) < RETRIES_REMEMBERED:
            self._retries[digest_id] = again_s

    def buried(self, digest_id: str, why: str, now_s: float, *, is_of_sink: bool = True) -> None:
        self._retries.pop(digest_id, None)
        self._aside.pop(digest_id, None)
        if is_of_sink:
            self._trouble(why, now_s)
            self.buried_since += 1

    def stopped(self, why: str, now_s: float) -> None:
        self._trouble(why, now_s)
        self.stopped_since_s = now_s

    def freed(self) -> None:
        """It is tried again after its receiver answered 410."""
        self.stopped_since_s = self.refusing_since_s = None
        self.buried_since, self.why = 0, ""

    def _trouble(self, why: str, now_s: float) -> None:
        self.why = why
        if self.refusing_since_s is None:
            self.refusing_since_s = now_s

    def _set_aside(self, digest_id: str, why: str, now_s: float, again_s: float) -> None:
        before = self._aside.get(digest_id)
        if before is None and len(self._aside) >= RETRIES_REMEMBERED:
            self._aside = {each: aside for each, aside in self._aside.items() if _waits(aside, now_s)}
        if before is not None or len(self._aside) < RETRIES_REMEMBERED:
            self._aside[digest_id] = _Aside(now_s if before is None else before.since_s, again_s, why)

    def _waiting_aside(self, now_s: float) -> list[_Aside]:
        return [aside for aside in self._aside.values() if _waits(aside, now_s)]

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
            aside = self._waiting_aside(now_s)
            but = f", but {_aside_text(aside, now_s)}" if aside else ""
            first_s = min((each.since_s for each in aside), default=None)
            return Condition(SinkState.DELIVERING, first_s, f"delivering{dead}{but}")
        if backlog.dead > self.buried_since or (backlog.dead and state is not SinkState.REFUSING):
            counts.append(f"{backlog.dead:,} in the dead list")
        said = ": ".join(each for each in (", ".join(counts), why) if each)
        return Condition(state, since_s, f"{state} since {clock_text(since_s, now_s)}" + (f" ({said})" if said else ""))


def _waits(aside: _Aside, now_s: float) -> bool:
    return aside.again_s + _ASIDE_GRACE_S > now_s


def _aside_text(waiting: Sequence[_Aside], now_s: float) -> str:
    """By reason, those of the most digests first."""
    reasons = Counter(aside.why for aside in waiting)
    largest = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))[:_PLACES_SHOWN]
    parts = []
    for why, count in largest:
        first_s = min(aside.since_s for aside in waiting if aside.why == why)
        parts.append(f"{count:,} since {clock_text(first_s, now_s)}: {why}")
    if len(reasons) > _PLACES_SHOWN:
        parts.append(f"{len(reasons) - _PLACES_SHOWN:,} other reasons")
    return f"{_digests(len(waiting))} {'waits' if len(waiting) == 1 else 'wait'} ({'; '.join(parts)})"


def clock_text(at_s: float, now_s: float) -> str:
    """Of this machine's clock, as in the log for people; with the date where the hour alone would mislead."""
    at = datetime.fromtimestamp(at_s, UTC).astimezone()
    return at.strftime("%H:%M" if now_s - at_s < _LONG_AGO_S else "%Y-%m-%d %H:%M")


def _digests(count: int) -> str:
    return f"{count:,} digest{'' if count == 1 else 's'}"
