"""Log lines that may come by the thousand: the first of a kind at once, then one per period with a count (pure).

Invariants:
- The first of a kind is a line at once. The repeats within its period become one line when the period ends.
- A period without a repeat ends the kind: the next one is a first again.
- The counts of all lines of a kind add up to how often it happened.
- Kinds are bounded by the configuration, like the labels of a metric: never a timeline, a key or an id.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Kind:
    ends_s: float
    period_s: float
    times: int = 0
    """Since its last line."""
    newest: Mapping[str, Any] = field(default_factory=dict)
    sums: dict[str, Any] = field(default_factory=dict)
    """And largest ones."""


class Repeats(Generic[K]):
    def __init__(self) -> None:
        self._kinds: dict[K, _Kind] = {}

    def note(
        self,
        kind: K,
        now_s: float,
        period_s: float,
        fields: Mapping[str, Any],
        *,
        adds: Sequence[str] = (),
        tops: Sequence[str] = (),
    ) -> bool:
        """Returns whether this is a line at once; else `due` returns it later. `adds`: fields that are summed; `tops`:
        of which the largest is shown; of the others the newest. Call `due` first: a period that has ended takes no
        repeats."""
        known = self._kinds.get(kind)
        if known is None:
            self._kinds[kind] = _Kind(now_s + period_s, period_s)
            return True
        known.times += 1
        known.newest = fields
        for name in adds:
            known.sums[name] = known.sums.get(name, 0) + fields[name]
        for name in tops:
            known.sums[name] = max(known.sums.get(name, fields[name]), fields[name])
        return False

    def due(self, now_s: float) -> list[tuple[K, dict[str, Any]]]:
        """The fields of one line for each period that has ended with repeats; `times` where there is more than one."""
        lines = []
        for kind, known in [item for item in self._kinds.items() if item[1].ends_s <= now_s]:
            del self._kinds[kind]
            if known.times:
                self._kinds[kind] = _Kind(now_s + known.period_s, known.period_s)
                lines.append((kind, _line(known)))
        return lines

    def rest(self) -> list[tuple[K, dict[str, Any]]]:
        """The same for all periods, ended or not: at the end of the process."""
        lines = [(kind, _line(known)) for kind, known in self._kinds.items() if known.times]
        self._kinds.clear()
        return lines

    @property
    def next_s(self) -> float | None:
        """When `due` has something to do."""
        return min((known.ends_s for known in self._kinds.values()), default=None)


def _line(known: _Kind) -> dict[str, Any]:
    times = {"times": known.times} if known.times > 1 else {}
    return {**known.newest, **known.sums, **times}
