"""A policy at work in the real scripts, in time that the test gives them."""

from __future__ import annotations

from itertools import count

from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan
from nsqdigest.trial.simulator import Event
from support.policies import CAPACITY
from support.store import Rec, Scripts


class PolicyDaemon:
    """Claims as the timer does: when something may be due, and of a route with quiet hours only what is exempt."""

    def __init__(self, store: Scripts, policy: Policy) -> None:
        self.store = store
        self.plan = Plan(policy)
        self._ids = count()
        self.sent: list[tuple[str, int, int, int, int]] = []

    def file(self, event: Event, number: int) -> None:
        self.store.now_ms = event.instant_ms
        plan = self.plan.of_zone(event.zone)
        first, anew = plan.beginning(event.instant_ms), plan.anew(event.instant_ms) or ("", "")
        key = (event.key or str(number)).encode()
        record = Rec(event.timeline.encode(), key, event.instant_ms * 1000 + number, b"%d" % number)
        self.store.add(
            record, capacity=CAPACITY, increment_ms=self.plan.increment_ms, base_ms=first.base_ms,
            bound_ms=first.bound_ms, zone=(event.zone, *anew) if self.plan.zone_template else None,
        )  # fmt: skip

    def deliver_until(self, until_ms: int | None) -> None:
        """All that goes out by then."""
        while (now_ms := self._next_ms()) is not None and (until_ms is None or now_ms <= until_ms):
            self.store.now_ms = now_ms
            self.claim()

    def _next_ms(self) -> int | None:
        """As the agenda says it."""
        scores = self.store.waiting()
        if not scores:
            return None
        first_ms = min(scores.values())
        first_ms = first_ms if self.plan.zone_template else self.plan.release_ms(first_ms)
        return max(first_ms, self.store.now_ms or 0)

    def claim(self) -> None:
        now_ms = self.store.now_ms
        assert now_ms is not None
        is_zoned, quiet = bool(self.plan.zone_template), self.plan.quiet
        is_quiet = not is_zoned and quiet is not None and quiet.end_ms(now_ms) is not None
        for claim in self.store.claim(routes=[("r", -1 if is_quiet else 1, self.plan.increment_ms)]).claims:
            plan = self.plan.of_zone(self.store.head(claim.timeline).get(b"zone", b"").decode())
            if is_zoned and plan.quiet is not None and (end_ms := plan.quiet.end_ms(now_ms)):
                self.store.fail(claim, end_ms, posts=0)
                continue
            opened = self.store.open(claim, f"id-{next(self._ids)}", plan.earliest_next_ms(now_ms))
            if isinstance(opened, str):
                assert opened == "empty"
                continue
            after = plan.after_digest(opened.iteration, now_ms, opened.next_earliest_ms)
            self.store.close(
                claim, opened.id, increment_ms=self.plan.increment_ms, base_ms=after.base_ms, bound_ms=after.bound_ms
            )
            self.sent.append((claim.timeline.decode(), now_ms, opened.iteration, opened.total, opened.superseded))
