"""Whose turn it is: how many timelines of which routes one claim asks for, and which of them are only a probe.

Invariants:
- No sink is claimed for beyond its room; while it is known to be down nothing of it is claimed but a probe.
- Routes of a sink take turns, and each partition asks for its share of the room.
- A route whose keys are damaged is claimed of by a call of its own: it stops no other.
- What is claimed of a snoozed timeline goes back, due a little later, until the snooze is over; what is claimed in the
  quiet hours of a timeline with a zone of its own goes back until they end.
- What a claim took whose answer was lost is asked for again, by the same token, until it comes or its lease is over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.delivery import verdicts
from nsqdigest.delivery.delivery import PUT_BACK_ONLY, Delivery, DeliveryRoute
from nsqdigest.store.answers import Claimed
from nsqdigest.store.damage import one_by_one
from nsqdigest.store.digests import new_token
from nsqdigest.store.schedule import EXEMPT_MS

if TYPE_CHECKING:
    from nsqdigest.config import Scheduler as SchedulerSettings
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.store.answers import Claim
    from nsqdigest.store.digests import Digests
    from nsqdigest.store.holds import Holds


class _Lost(NamedTuple):
    """A claim whose answer was lost."""

    token: str
    until_s: float


class _Look(NamedTuple):
    """How a sink stood when a claim was made for it. By the time of the answer it may stand otherwise."""

    outlet: Outlet
    is_probe: bool
    epoch: int
    budget: int


@dataclass(slots=True)
class PartitionClaims:
    """What is remembered of the claims of one partition."""

    partition: int
    lost: list[_Lost] = field(default_factory=list)
    asked_again_s: float = 0.0
    is_trial: bool = False
    """Whether the next claim takes one timeline of each sink, to see whether Redis ends a digest again."""
    damaged: set[str] = field(default_factory=set)
    """Routes that are claimed of by calls of their own, since a call failed at their keys."""


class Taken(NamedTuple):
    deliveries: list[Delivery]
    next_due_ms: int | None
    """In the past: more is due. None: nothing waits, or nothing was asked for."""


class Served:
    """What one configuration says of delivery."""

    def __init__(self, settings: SchedulerSettings, routes: Mapping[str, DeliveryRoute]) -> None:
        self.settings = settings
        self.routes = routes
        self.outlets: list[Outlet] = list({id(route.outlet): route.outlet for route in routes.values()}.values())
        """Those that routes of it have."""
        self.has_zoned_quiet_hours = any(
            route.plan.zone_template and route.plan.quiet is not None for route in routes.values()
        )

    @property
    def lease_s(self) -> float:
        return self.settings.lease_ms / 1000


class Claims:
    def __init__(
        self,
        served: Served,
        digests: Digests,
        holds: Holds,
        on_damage: Callable[[int, str, StoreError], None],
    ) -> None:
        """`on_damage`: called with partition, route and error of a route whose keys are damaged."""
        self.served = served
        """May be replaced at any moment: a claim under way ends by the one that it began with."""
        self._digests = digests
        self._holds = holds
        self._on_damage = on_damage
        self._turn = 0
        self.paused_routes: set[str] = set()

    async def take(self, of: PartitionClaims, names: Sequence[str]) -> Taken:
        """Of these routes what there is room for."""
        served = self.served
        looks = {id(outlet): self._look(outlet, of.is_trial) for outlet in served.outlets if outlet.room > 0}
        names = [
            name
            for name in names
            if name in served.routes and id(served.routes[name].outlet) in looks and name not in self.paused_routes
        ]
        if not names:
            return Taken([], None)
        self._turn += 1  # another route is first each time, so that none of a sink's routes takes all its room
        names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        asked_at_s = time.monotonic()
        for look in looks.values():
            look.outlet.reserved += look.budget
        try:
            claimed = await self._claim_all(served, of, names, list(looks.values()))
        finally:
            for look in looks.values():
                look.outlet.reserved -= look.budget
        return Taken(self._deliveries(served, claimed.claims, looks, asked_at_s), claimed.next_due_ms)

    def _look(self, outlet: Outlet, is_trial: bool) -> _Look:
        # A probe is chosen out of two, so that it need not be the digest that failed last.
        share = -(-outlet.room // self._digests.partitions)
        budget = 2 if outlet.is_probing else 1 if is_trial else min(share, self.served.settings.batch)
        return _Look(outlet, outlet.is_probing, outlet.controller.decision.epoch, budget)

    def _deliveries(
        self, served: Served, claims: Sequence[Claim], looks: Mapping[int, _Look], asked_at_s: float
    ) -> list[Delivery]:
        found = list[Delivery]()
        for look in looks.values():
            theirs = [claim for claim in claims if served.routes[claim.route].outlet is look.outlet]
            if self._may_put_off(served):
                put_off = {claim: later for claim in theirs if (later := self._put_off(served, claim)) is not None}
                found += _held(served, put_off.values(), PUT_BACK_ONLY, asked_at_s)
                theirs = [claim for claim in theirs if claim not in put_off]
            if look.is_probe and theirs:
                probe, others = verdicts.choose_probe(theirs, look.outlet.health.failed_last)
                look.outlet.controller.began(look.epoch, time.monotonic(), asked_at_s + served.lease_s)
                found += _held(served, others, PUT_BACK_ONLY, asked_at_s)
                theirs = [probe]
            found += _held(served, theirs, look.epoch, asked_at_s)
        return found

    def _may_put_off(self, served: Served) -> bool:
        return self._holds.is_any_snoozed or served.has_zoned_quiet_hours

    def _put_off(self, served: Served, claim: Claim) -> Claim | None:
        """The claim as it is put back: due later, where its timeline is snoozed, or has quiet hours of its own zone.
        Else None."""
        until_ms = self._holds.put_off_ms(claim.route, claim.timeline) if self._holds.is_any_snoozed else None
        plan = served.routes[claim.route].plan
        if until_ms is None and plan.zone_template and plan.quiet is not None and claim.due_ms > EXEMPT_MS:
            until_ms = plan.quiet.in_zone(claim.zone).end_ms(self._digests.now_ms())
        return None if until_ms is None else claim._replace(due_ms=until_ms)

    # -- the calls

    async def _claim_all(
        self, served: Served, of: PartitionClaims, names: Sequence[str], looks: Sequence[_Look]
    ) -> Claimed:
        """In one call, but for routes whose keys are damaged."""
        numbers = {id(look.outlet): number for number, look in enumerate(looks)}
        room = [look.budget for look in looks]
        answered = list[Claimed]()

        async def claim_of(some: Sequence[str]) -> Claimed:
            budgets = [(name, numbers[id(served.routes[name].outlet)]) for name in some]
            claimed = await self._claim(served, of, budgets, room)
            for route, count in Counter([claim.route for claim in claimed.claims]).items():
                room[numbers[id(served.routes[route].outlet)]] -= count
            answered.append(claimed)
            return claimed

        sound = [name for name in names if name not in of.damaged]
        suspect = [[name] for name in names if name in of.damaged]
        of.damaged.difference_update(names)
        errors = dict[str, StoreError]()
        try:
            for some in filter(None, [sound, *suspect]):
                _, damaged = await one_by_one(some, claim_of)
                errors |= damaged
            self._note_damage(of, errors)
        except StoreError:
            # What earlier calls of this claim took is asked for again, too.
            until_s = time.monotonic() + served.lease_s
            of.lost += [_Lost(each.claims[0].token, until_s) for each in answered if each.claims]
            raise
        due_ms = [each.next_due_ms for each in answered if each.next_due_ms is not None]
        return Claimed([claim for each in answered for claim in each.claims], min(due_ms, default=None))

    def _note_damage(self, of: PartitionClaims, errors: Mapping[str, StoreError]) -> None:
        of.damaged.update(errors)
        for route, error in errors.items():
            self._on_damage(of.partition, route, error)
            if of.damaged.issuperset(self.served.routes):
                raise error

    async def _claim(
        self, served: Served, of: PartitionClaims, routes: Sequence[tuple[str, int]], budgets: Sequence[int]
    ) -> Claimed:
        token, asked_at_s = new_token(), time.monotonic()
        try:
            return await self._digests.claim(of.partition, routes, budgets, served.settings.lease_ms, token)
        except StoreError as error:
            if error.applied is Applied.AMBIGUOUS and any(budgets) and not (error.is_damage and len(routes) == 1):
                of.lost.append(_Lost(token, asked_at_s + served.lease_s))
            raise

    async def take_lost(self, of: PartitionClaims, now_s: float) -> list[Delivery]:
        """What lost claims took, instead of waiting for their leases to run out.

        Such a claim may even be carried out later than this asks (a stopped Redis finds it in its socket), so it is
        asked for again until something came or the lease is over anyway.
        """
        if not of.lost or now_s - of.asked_again_s < self.served.settings.interval_ms / 1000:
            return []
        of.asked_again_s = now_s
        found: list[Delivery] = []
        for lost in list(of.lost):
            served = self.served
            try:
                claims = await self._claim_again(served, of, lost.token)
            except StoreError:
                if found:  # these are held already; the others are asked for again
                    break
                raise
            for claim in claims:
                put_off = self._put_off(served, claim) if self._may_put_off(served) else None
                epoch = _epoch_of_lost(served, claim) if put_off is None else PUT_BACK_ONLY
                found += _held(served, [put_off or claim], epoch, now_s)
            if claims or now_s >= lost.until_s:
                of.lost.remove(lost)
        return found

    async def _claim_again(self, served: Served, of: PartitionClaims, token: str) -> list[Claim]:
        async def again(some: Sequence[str]) -> list[Claim]:
            return await self._digests.claim_again(of.partition, some, served.settings.lease_ms, token)

        done, _ = await one_by_one(list(served.routes), again)
        return [claim for claims in done for claim in claims]


def _held(served: Served, claims: Iterable[Claim], epoch: int, asked_at_s: float) -> list[Delivery]:
    until_s = asked_at_s + served.lease_s
    deliveries = [Delivery(claim, served.routes[claim.route], until_s, epoch) for claim in claims]
    for outlet, count in Counter([each.outlet for each in deliveries]).items():
        outlet.held += count
    return deliveries


def _epoch_of_lost(served: Served, claim: Claim) -> int:
    """Nothing is ever claimed of a sink that may send nothing, so that no result comes in the epoch of a backoff. What
    was claimed before it stepped back goes back."""
    decision = served.routes[claim.route].outlet.controller.decision
    return decision.epoch if decision.limit else PUT_BACK_ONLY
