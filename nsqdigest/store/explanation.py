"""Why a timeline is due when it is due (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsqdigest.store.inspection import Known


class Reason(NamedTuple):
    text: str
    at_ms: int | None = None


class Explanation(NamedTuple):
    sentence: str
    due_ms: int | None
    reasons: tuple[Reason, ...]


def explain(known: Known) -> Explanation:
    return Explanation(f"It is {known.state}.", known.at_ms, ())
