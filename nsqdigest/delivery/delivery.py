"""One digest on its way: what was claimed, for how long it is ours, and what is known of it so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsqdigest.delivery.digest import Names
from nsqdigest.store.answers import Claim
from nsqdigest.store.head import Head
from nsqdigest.store.keys import is_own, shown_timeline
from nsqdigest.store.schedule import EXEMPT_MS, Plan, Schedule

if TYPE_CHECKING:
    from nsqdigest.config import Route
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.delivery.targets import Target

PUT_BACK_ONLY = -1
"""No epoch: of a claim that is only to be put back."""


@dataclass(eq=False)
class DeliveryRoute:
    """What delivery knows of a route. Of an earlier configuration it goes on as it is for what is under way, but for
    the plan: the next digest is due by the present one."""

    settings: Route
    plan: Plan
    outlet: Outlet

    @cached_property
    def group(self) -> tuple[str, ...]:
        return self.settings.group_path


_as_names = tuple.__new__


class Delivery:
    """A claim, then its digest. `opened` and `body` come as they are known."""

    __slots__ = (
        "body", "claim", "epoch", "is_concluded", "is_revived", "leased_until_s", "names", "opened", "outlet", "route",
        "target",
    )  # fmt: skip

    opened: Head
    """Of the digest. Not there before it was opened."""

    def __init__(self, claim: Claim, route: DeliveryRoute, leased_until_s: float, epoch: int) -> None:
        self.claim = claim
        self.route = route
        self.outlet = outlet = route.outlet
        timeline = claim.timeline
        self.is_revived = is_own(timeline)
        shown = shown_timeline(timeline) if self.is_revived else timeline
        self.names: Names = _as_names(Names, (claim.route, shown, outlet.name))
        self.leased_until_s = leased_until_s
        """By our own clock, counted from before it was asked for."""
        self.epoch = epoch
        """Of the sink's controller when it was claimed."""
        self.body: bytes | None = None
        """None: its records are read when its turn comes."""
        self.target: Target | None = None
        """Known with the body, where the sink has no fixed one."""
        self.is_concluded = False
        """Whether what becomes of it is decided: that happens once."""

    @property
    def lease_left_s(self) -> float:
        return self.leased_until_s - time.monotonic()

    @property
    def plan(self) -> Plan:
        """Of the timeline: in the zone of its own, where it has one."""
        return self.route.plan.of_zone(self.claim.zone) if self.claim.zone else self.route.plan

    @property
    def has_lease(self) -> bool:
        """Whether it is ours for long enough to send it."""
        return self.lease_left_s >= self.outlet.timeout_s

    @property
    def lineage(self) -> str:
        """The same for all that was merged into one another."""
        return f"{self.claim.route} {self.claim.timeline} {self.opened.since_ms}"

    @property
    def log_fields(self) -> dict[str, Any]:
        """What every log line about it names."""
        fields: dict[str, Any] = {
            "route": self.claim.route, "timeline": self.claim.shown_timeline, "sink": self.outlet.name,
        }  # fmt: skip
        head: Head | None = getattr(self, "opened", None)
        if head is not None:
            fields |= {"digest": head.id, "attempt": head.attempt, "records": head.total}
        return fields

    @property
    def due_ms(self) -> int:
        """When its digest was due first. A retry is due when it is tried again; the digest was due before it was opened
        first, and not before the end of quiet hours. Where it was exempt from its policy nobody wrote that down."""
        due_ms, since_ms = self.claim.due_ms, self.opened.since_ms
        if due_ms <= EXEMPT_MS:
            return since_ms
        first_ms = due_ms if due_ms < since_ms else since_ms
        return first_ms if self.route.plan.quiet is None else self.plan.release_ms(first_ms)

    def schedule_after(self, now_ms: int) -> Schedule:
        """Of the next digest; never before the instant that this one names to its receiver. A revived one has no next:
        the timeline that it had for itself is empty, and is forgotten at once."""
        if self.is_revived:
            return Schedule(now_ms, now_ms)
        # The clock here may be behind Redis', by which it was due: a calendar's instant would come again.
        now_ms = max(now_ms, self.claim.due_ms)
        return self.plan.after_digest(self.opened.iteration, now_ms, self.opened.next_earliest_ms)


class NextSchedules:
    """Those of digests that end at one instant: of a batch most have the same."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._known: dict[tuple[str, str, bool, int, int, int], Schedule] = {}

    def after(self, delivery: Delivery) -> Schedule:
        head, claim = delivery.opened, delivery.claim
        since_ms = claim.due_ms if claim.due_ms > self.now_ms else self.now_ms
        alike = claim.route, claim.zone, delivery.is_revived, head.iteration, head.next_earliest_ms, since_ms
        known = self._known.get(alike)
        if known is None:
            known = self._known[alike] = delivery.schedule_after(self.now_ms)
        return known
