"""What `/api/timelines`, `/api/timeline`, `/api/dead` and `/api/deliveries` show.

The first three read Redis as the commands do (`store.listing`, `store.inspection`, `store.dead`), each no more than its
bound, however many timelines and dead digests there are. Deliveries are what this daemon remembers of its attempts.
Nothing here changes anything.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqdigest.admin.reading import Asked, NoSuchThing
from nsqdigest.admin.views import (
    DeadListView,
    DeadView,
    DeliveriesView,
    DeliveryView,
    DigestView,
    ExplanationView,
    HoldView,
    ReasonView,
    RecordView,
    TimelineDetailView,
    TimelinesView,
    TimelineView,
)
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.words import listed
from nsqdigest.store.dead import Dead
from nsqdigest.store.explanation import Terms, explain
from nsqdigest.store.inspection import Inspector, Known, Place
from nsqdigest.store.listing import Lister, Listing, Wanted
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import quiet_of

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.daemon.parts import Parts
    from nsqdigest.daemon.status import Status
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.store.head import Head
    from nsqdigest.store.holds import Hold
    from nsqdigest.store.listing import Listed
    from nsqdigest.store.record import StoredRecord

MOST_READ = 20_000
"""Timelines, or dead digests, that one answer looks at."""
_MOST_RECORDS = 50
_LONGEST_VALUE = 4096
_LONGEST_DETAIL = 500


class _Routes:
    """What is worked out once of the routes of one file."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sink_of = {route.name: route.sink for route in config.routes}
        self.terms = {
            route.name: Terms(config.policies[route.policy], config.sinks[route.sink]) for route in config.routes
        }
        self.quiet = {name: quiet_of(terms.policy) for name, terms in self.terms.items()}

    def increment_ms(self, name: str) -> int:
        """0 of an orphan."""
        return self.terms[name].policy.increment_delay_ms if name in self.terms else 0


class Browser:
    def __init__(self, parts: Callable[[], Parts], status: Status) -> None:
        """`parts`: of the configuration in force."""
        self._parts_now = parts
        self._status = status
        self._known = _Routes(parts().config)

    @property
    def _parts(self) -> Parts:
        return self._parts_now()

    @property
    def _inspector(self) -> Inspector:
        return Inspector(self._parts.store.namespace)

    @property
    def _routes(self) -> _Routes:
        config = self._parts.config
        if config is not self._known.config:
            self._known = _Routes(config)
        return self._known

    def _require_store(self) -> None:
        """While Redis is known to be away nobody waits for it."""
        why = self._status.why_store_fails()
        if why:
            raise StoreError("redis-connection", why, Applied.NO)

    def _names(self, asked: Asked) -> list[str]:
        """Routes of the file, and those that left something behind."""
        sink_of, orphans = self._routes.sink_of, self._parts.store_watch.figures.orphans
        names = [*sink_of, *(each for each in orphans if each not in sink_of)]
        if asked.route and asked.route not in names:
            raise NoSuchThing(f'there is no route "{asked.route}"; there {_are(names)}')
        if asked.sink and asked.sink not in self._parts.config.sinks:
            raise NoSuchThing(f'there is no sink "{asked.sink}"; there {_are([*self._parts.config.sinks])}')
        return [name for name in names if asked.route in ("", name) and asked.sink in ("", sink_of.get(name))]

    # -- timelines

    async def timelines(self, asked: Asked) -> TimelinesView:
        self._require_store()
        names, now_ms, routes = self._names(asked), self._parts.store.clock.now_ms(), self._routes
        lister = Lister(
            self._parts.store.namespace, {name: routes.increment_ms(name) for name in names}, now_ms, routes.quiet
        )
        wanted = Wanted(asked.text, asked.states)
        listing = await lister.first(asked.limit, wanted, MOST_READ)
        if listing.is_partial and asked.text:
            listing = await self._with_exact(listing, asked, names, wanted)
        holds = self._holds()
        return TimelinesView(
            now_ms=now_ms,
            timelines=[self._timeline(each, holds) for each in listing.timelines],
            total=listing.total,
            is_partial=listing.is_partial,
        )

    async def _with_exact(self, listing: Listing, asked: Asked, names: Sequence[str], wanted: Wanted) -> Listing:
        """Whoever types a whole name finds it, however many there are."""
        known = [await self._look(place) for place in await self._inspector.find(asked.text, names)]
        seen = {(each.route, each.name) for each in listing.timelines}
        found = [each.listed for each in known if each is not None and each.place[1:] not in seen]
        found = [each for each in found if wanted.takes(each)]
        return listing._replace(timelines=[*found, *listing.timelines][: asked.limit], total=listing.total + len(found))

    def _timeline(self, of: Listed, holds: Mapping[tuple[str, str], Hold]) -> TimelineView:
        hold = holds.get((of.route, of.name))
        return TimelineView(
            route=of.route,
            timeline=of.shown,
            shown=of.shown,
            state=of.state,
            at_ms=of.at_ms if hold is None or hold.kind != "snooze" else max(of.at_ms, hold.until_ms),
            records=of.records,
            digest_id=of.digest_id,
            digest_records=of.digest.total if of.digest else 0,
            attempts=of.digest.attempts if of.digest else 0,
            is_revived=of.is_revived,
            is_orphan=of.route not in self._routes.sink_of,
            held="" if hold is None else hold.kind,
        )

    def _holds(self) -> dict[tuple[str, str], Hold]:
        """By route and timeline, as this daemon read them last."""
        now_ms, holds = self._parts.store.clock.now_ms(), self._parts.store.holds.all
        return {(hold.route, hold.timeline): hold for hold in holds if hold.until_ms > now_ms}

    # -- one of them

    async def timeline(self, asked: Asked) -> TimelineDetailView:
        self._require_store()
        place = await self._place(asked)
        known = await self._look(place)
        if known is None:
            raise NoSuchThing(f'the timeline "{asked.timeline}" went away while it was read')
        records = await self._inspector.records(place, _MOST_RECORDS)
        digest_records = await self._inspector.digest_records(place, _MOST_RECORDS) if known.digest else []
        holds, route = self._holds(), place.route
        hold = holds.get((route, place.name))
        explanation = explain(known, self._routes.terms.get(route), hold, self._status.obstacles(route))
        return TimelineDetailView(
            now_ms=known.now_ms,
            timeline=self._timeline(known.listed, holds),
            sink=self._routes.sink_of.get(route, ""),
            iteration=known.iteration,
            last_digest_id=known.last_id,
            hold=None if hold is None else HoldView(
                kind=hold.kind, until_ms=hold.until_ms, since_ms=hold.since_ms, by=hold.by
            ),
            digest=None if known.digest is None else _digest(known.digest),
            superseded=known.superseded,
            dropped=known.dropped_capacity,
            explanation=ExplanationView(
                sentence=explanation.sentence,
                due_ms=explanation.due_ms,
                reasons=[ReasonView(text=each.text, at_ms=each.at_ms) for each in explanation.reasons],
            ),
            records=[_record(each) for each in records],
            digest_records=[_record(each) for each in digest_records],
            deliveries=self._remembered(Asked(route=place.route, timeline=place.shown, limit=_MOST_RECORDS)),
        )  # fmt: skip

    async def _look(self, place: Place) -> Known | None:
        routes = self._routes
        return await self._inspector.look(place, routes.increment_ms(place.route), routes.quiet.get(place.route))

    async def _place(self, asked: Asked) -> Place:
        found = await self._inspector.find(asked.timeline, self._names(asked), asked.digest)
        if not found:
            raise NoSuchThing(
                f'there is no timeline "{asked.timeline}"; one that was delivered and got nothing new is forgotten'
            )
        if len(found) > 1:
            names = listed(f'"{place.route}"' for place in found)
            raise NoSuchThing(f'several routes have a timeline "{asked.timeline}": {names}; name the route')
        return found[0]

    # -- the dead list

    async def dead(self, asked: Asked) -> DeadListView:
        self._require_store()
        store, found, is_partial = self._parts.store.dead, list[Dead](), False
        sizes = await store.sizes()
        for partition, size in enumerate(sizes):
            looked = taken = 0
            while looked < min(size, MOST_READ // len(sizes)) and taken < asked.limit:
                count = min(RECORDS_PER_CALL, size - looked)
                page = await store.page(partition, size - looked - count, count)
                fits = [each for each in page if _is_asked_for(each, asked)]
                found, looked, taken = found + fits, looked + count, taken + len(fits)
            is_partial |= looked < size and taken < asked.limit
        newest = heapq.nlargest(asked.limit, found, key=lambda each: (each.since_ms, each.id))
        return DeadListView(
            now_ms=_unix_ms(), dead=[_dead(each) for each in newest], total=sum(sizes), is_partial=is_partial
        )

    # -- from memory

    def deliveries(self, asked: Asked) -> DeliveriesView:
        return DeliveriesView(now_ms=_unix_ms(), deliveries=self._remembered(asked))

    def _remembered(self, asked: Asked) -> list[DeliveryView]:
        outlets = [each for name, each in self._parts.outlets.items() if asked.sink in ("", name)]
        newest_first = heapq.merge(
            *(self._of_outlet(outlet, asked) for outlet in outlets), key=lambda each: -each.at_ms
        )
        return [each for each, _ in zip(newest_first, range(asked.limit), strict=False)]

    def _of_outlet(self, outlet: Outlet, asked: Asked) -> Iterable[DeliveryView]:
        for at_s, took_s, (route, timeline, sink), head, outcome in reversed(outlet.attempts):
            if asked.route in ("", route) and asked.timeline in ("", timeline):
                yield DeliveryView(
                    at_ms=int(at_s * 1000),
                    route=route,
                    timeline=timeline,
                    sink=sink,
                    digest_id=head.id,
                    attempt=head.attempt,
                    records=head.total,
                    outcome=outcome.verdict,
                    status=outcome.status,
                    cause="" if outcome.verdict == Verdict.DELIVERED else outcome.why,
                    took_s=round(took_s, 4),
                )


def _are(names: Sequence[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {listed(names)}"


def _is_asked_for(dead: Dead, asked: Asked) -> bool:
    return asked.sink in ("", dead.details.sink) and asked.route in ("", dead.route)


def _dead(dead: Dead) -> DeadView:
    of = dead.details
    return DeadView(
        id=dead.id, route=of.route, timeline=of.timeline, sink=of.sink, reason=of.reason, attempts=of.head.attempts,
        records=of.head.total, since_ms=dead.since_ms, status=of.status or None, cause=of.cause[:_LONGEST_DETAIL],
        answer=of.answer[:_LONGEST_DETAIL],
    )  # fmt: skip


def _digest(head: Head) -> DigestView:
    return DigestView(
        id=head.id, iteration=head.iteration, records=head.total, superseded=head.superseded,
        dropped=head.dropped_capacity, attempts=head.attempts, opened_ms=head.opened_ms, since_ms=head.since_ms,
    )  # fmt: skip


def _record(record: StoredRecord) -> RecordView:
    value = record.value.decode("utf-8", "backslashreplace")
    return RecordView(
        key=record.key.decode("utf-8", "backslashreplace"),
        timestamp_ms=record.timestamp_ms,
        value=value[:_LONGEST_VALUE],
        is_cut=len(value) > _LONGEST_VALUE,
    )


def _unix_ms() -> int:
    return int(time.time() * 1000)
