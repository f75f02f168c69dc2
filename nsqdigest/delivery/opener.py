"""From claims to digests that are ready to be sent: opens many of a partition in one call, reads them in one more, and
renders them.

Invariants:
- What Redis does not do is asked of it again until the lease ends. Nothing was sent by then, so nothing is lost: the
  lease brings the timelines back.
- A digest leaves only when its id and its records are as durable as the file asks for.
- An id that went out with records never goes out without: where Redis lost all values it is buried. One that is not
  ours any more when its records are read is left.
- One bad timeline stops no other: a call that Redis breaks off is divided until it stands alone.
- What is read at once is bounded in bytes, by the average of what was read before, however many are opened. A digest
  of more records than `READ_WHOLE_RECORDS` is read page by page when its turn comes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nsqdigest.base import log, tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery import ids, verdicts
from nsqdigest.delivery.digest import usual_body
from nsqdigest.delivery.grouped import GroupedBuilder, builder_of
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.delivery.targets import NoTarget
from nsqdigest.store.answers import NotOpened
from nsqdigest.store.damage import ANOTHER_TYPE, halved
from nsqdigest.store.digests import READ_WHOLE_RECORDS, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.packing import first_page, next_page
from nsqdigest.store.record import Columns

if TYPE_CHECKING:
    from nsqdigest.delivery.conclusions import Conclusions
    from nsqdigest.delivery.delivery import Delivery
    from nsqdigest.delivery.digest import Builder
    from nsqdigest.delivery.grouped import GroupedBuilder
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.store.digests import Digests
    from nsqdigest.store.record import StoredRecord

_log = log.get("scheduler")

T = TypeVar("T")

MOST_PER_CALL = 100
"""Half of a usual claim: Redis opens one half while the other is rendered here."""
READ_BYTES = 1 << 20
READS = 2
"""Of a partition at once, so that Redis reads one while the other is rendered. More would be larger than anyone knew:
each is as large as the records before it."""
_FIRST_AVERAGE_BYTES = 2048


class Opener:
    def __init__(
        self,
        digests: Digests,
        lease_ms: int,
        uniform: Callable[[float, float], float],
        conclusions: Conclusions,
    ) -> None:
        self._digests = digests
        self.lease_ms = lease_ms
        """Of a lease that is renewed."""
        self._uniform = uniform
        self._conclusions = conclusions
        self._average_bytes: dict[str, float] = {}
        """Of a record, by route."""
        self._reading: dict[int, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, READS))
        """By partition: a server that hangs holds up no other."""
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, partition: int, claimed: Sequence[Delivery]) -> None:
        """Opens them while its caller goes on: the sinks' room bounds how many there are."""
        if claimed:
            opening = tasks.start(self.open(partition, claimed), f"opening in partition {partition}")
            self._under_way.add(opening)
            opening.add_done_callback(self._under_way.discard)

    async def quiet(self, within_s: float) -> None:
        """Until nothing is being opened."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=within_s)

    async def stop(self) -> None:
        """What Redis has not opened by now is left to the leases."""
        for opening in self._under_way:
            opening.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def open(self, partition: int, claimed: Sequence[Delivery]) -> None:
        """Never raises: what goes wrong is logged, and the lease brings the timelines back."""
        wanted = claimed
        if not all(outlet.admits(epoch) for outlet, epoch in {(each.outlet, each.epoch) for each in claimed}):
            self._conclusions.put_back([each for each in claimed if not each.outlet.admits(each.epoch)])
            wanted = [each for each in claimed if not each.is_concluded]
        parts = [wanted[start : start + MOST_PER_CALL] for start in range(0, len(wanted), MOST_PER_CALL)]
        await asyncio.gather(*(self._fenced(part, self._open_some(partition, part)) for part in parts))

    async def _open_some(self, partition: int, some: Sequence[Delivery]) -> None:
        opened = await self._opened(partition, some)
        parts, is_over = self._readable(opened), False
        while not is_over:
            async with self._reading[partition]:  # a part is as large as those that were read before it let it be
                part = next(parts, [])
                is_over = not part
                full = {outlet for outlet in {each.outlet for each in part} if outlet.holds_enough}
                wanted = part if not full else [each for each in part if each.outlet not in full]
                if wanted:
                    await self._fenced(wanted, self._read_and_put(partition, wanted))
        for delivery in [each for each in opened if each.body is None]:
            if not delivery.is_concluded:
                self._put(delivery.outlet, [delivery])

    # -- open

    async def _opened(self, partition: int, some: Sequence[Delivery]) -> list[Delivery]:
        """Those that are to be sent; of the others everything is concluded."""
        opened = []
        answers = await halved(some, partial(self._open_many, partition))
        now_ms = self._digests.now_ms()
        for delivery, answer in zip(some, answers, strict=True):
            if isinstance(answer, Head):
                delivery.opened = answer
                expired = verdicts.expired(delivery.outlet.settings, answer.tries, now_ms - answer.since_ms)
                if expired is None:
                    opened.append(delivery)
                else:
                    self._conclusions.bury(delivery, expired)
            elif answer is NotOpened.EMPTY:
                self._conclusions.left(delivery)
            elif answer is NotOpened.STALE:
                self._conclusions.stale(delivery)
            else:
                self._conclusions.unread(delivery, answer if isinstance(answer, StoreError) else ANOTHER_TYPE)
        return opened

    async def _open_many(self, partition: int, some: Sequence[Delivery]) -> list[Head | NotOpened]:
        now_ms = self._digests.now_ms()
        plans = {each.claim.scheduled_as or each.claim.route: each.plan for each in some}
        latest_due_ms = max(now_ms, *(each.claim.due_ms for each in some))  # the clock here may be behind Redis'
        next_earliest_ms = {name: plan.earliest_next_ms(latest_due_ms) for name, plan in plans.items()}
        new_ids = ids.uuids7(now_ms, secrets.token_bytes(ids.RANDOM_BYTES * len(some)))
        openings = dict(enumerate(map(Opening, [each.claim for each in some], new_ids)))
        answers: dict[int, Head | NotOpened] = {}
        while openings:  # what one call has too much work with follows in the next
            asked = [*openings.values()]
            found = await self._while_leased(
                some,
                lambda asked=asked: self._digests.open(partition, asked, next_earliest_ms),  # type: ignore[misc]
            )
            answers |= zip([*openings], found, strict=True)
            openings = {place: each for place, each in openings.items() if answers[place] is NotOpened.LATER}
        return [answers[place] for place in range(len(some))]

    async def _while_leased(self, some: Sequence[Delivery], work: Callable[[], Awaitable[T]]) -> T:
        """Work that may be done again, again and again until Redis does its part of it or a lease is over."""
        failures = 0
        while True:
            try:
                return await work()
            except StoreError as error:
                if error.is_damage:
                    raise
                failures += 1
                wait_s = verdicts.ask_redis_again_s(failures, self._uniform)
                if min(each.lease_left_s for each in some) <= wait_s:
                    raise
            await asyncio.sleep(wait_s)

    # -- read and render

    def _readable(self, opened: Sequence[Delivery]) -> Iterator[list[Delivery]]:
        """Those that are read whole, in parts of about READ_BYTES."""
        part: list[Delivery] = []
        size_bytes, average_bytes = 0.0, self._average_bytes
        for delivery in opened:
            total = delivery.opened.total
            if total > READ_WHOLE_RECORDS:
                continue
            own_bytes = total * average_bytes.get(delivery.names.route, _FIRST_AVERAGE_BYTES)
            if part and size_bytes + own_bytes > READ_BYTES:
                yield part
                part, size_bytes = [], 0.0
            part.append(delivery)
            size_bytes += own_bytes
        if part:
            yield part

    async def _read_and_put(self, partition: int, part: Sequence[Delivery]) -> None:
        ready: dict[Outlet, list[Delivery]] = defaultdict(list)
        found = await halved(part, partial(self._read_many, partition))
        self._note_sizes(part, found)
        for delivery, records in zip(part, found, strict=True):
            if isinstance(records, Columns):
                if self._is_rendered(delivery, records):
                    ready[delivery.outlet].append(delivery)
            elif records is None:
                self._conclusions.stale(delivery)
            else:
                self._conclusions.unread(delivery, records)
        for outlet, deliveries in ready.items():
            self._put(outlet, deliveries)

    async def _read_many(self, partition: int, part: Sequence[Delivery]) -> Sequence[Columns | None]:
        digests = [(each.claim, each.opened) for each in part]
        return await self._while_leased(part, lambda: self._digests.read(partition, digests))

    def _is_rendered(self, delivery: Delivery, found: Columns) -> bool:
        try:
            outlet = delivery.outlet
            if not delivery.route.group and outlet.aim is None:
                delivery.body = usual_body(delivery.opened, delivery.names, found, outlet.settings.max_body_bytes)
            return delivery.body is not None or self._rendered(delivery, found.records())
        except Exception as error:
            self._leave_with_bug([delivery], error)
            return False

    def _rendered(self, delivery: Delivery, records: Sequence[StoredRecord | None]) -> bool:
        """Whether it is to be sent; else it is buried."""
        there = [record for record in records if record is not None]
        if not self._has_values(delivery, len(records), len(there)):
            return False
        builder = self._builder(delivery)
        if (why := self._aim(delivery, there)) is not None:
            return self._gone_nowhere(delivery, why)
        builder.add(there)
        delivery.body = builder.body(there[-1].timestamp_ms, there[0].timestamp_ms)
        return True

    def _aim(self, delivery: Delivery, there: Sequence[StoredRecord]) -> NoTarget | None:
        """Gives it the target of the newest of its records that has one. Returns why none of these has one."""
        aim = delivery.outlet.aim
        if aim is None or delivery.target is not None:
            return None
        try:
            delivery.target = aim.of_newest(*delivery.names[:2], (record.value for record in there))
        except NoTarget as why:
            return why
        return None

    def _gone_nowhere(self, delivery: Delivery, why: NoTarget) -> bool:
        outcome = Outcome(Verdict.NO_TARGET, str(why), answer=why.quoting, is_of_sink=False)
        self._conclusions.sent([(delivery, outcome)])
        return False

    def _builder(self, delivery: Delivery) -> Builder | GroupedBuilder:
        limit_bytes = delivery.outlet.settings.max_body_bytes
        return builder_of(delivery.opened, delivery.names, limit_bytes, delivery.route.group)

    def _has_values(self, delivery: Delivery, read: int, there: int) -> bool:
        if there < read:
            _log.error("scheduler.digest.values_missing", **delivery.log_fields, missing=read - there)
        if not there:
            self._conclusions.bury(delivery, BuryReason.VALUES_LOST)
        return there > 0

    def _note_sizes(self, part: Sequence[Delivery], found: Sequence[Columns | StoreError | None]) -> None:
        """Of each route how large a record is, in the digest that has the largest."""
        largest: dict[str, float] = {}
        for delivery, records in zip(part, found, strict=True):
            if isinstance(records, Columns) and records.values:
                average_bytes = sum(map(len, filter(None, records.values))) / len(records.values)
                if average_bytes > largest.get(delivery.names.route, 0.0):
                    largest[delivery.names.route] = average_bytes
        for route, record_bytes in largest.items():
            self._note_size(route, record_bytes)

    def _note_size(self, route: str, record_bytes: float) -> None:
        before = self._average_bytes.get(route, record_bytes)
        self._average_bytes[route] = max(record_bytes, 0.9 * before + 0.1 * record_bytes)

    async def render(self, delivery: Delivery) -> bool:
        """Gives a digest whose turn has come a body, and lease enough for a send. Returns whether it is to be sent;
        else it is concluded."""
        try:
            if not await self._has_lease(delivery):
                self._conclusions.stale(delivery)
                return False
            return delivery.body is not None or await self._read_by_pages(delivery)
        except StoreError as error:
            self._conclusions.unread(delivery, error)
            return False

    async def _read_by_pages(self, delivery: Delivery) -> bool:
        """The body, until it is full."""
        head, claim = delivery.opened, delivery.claim
        builder = self._builder(delivery)
        needs_target, no_target = delivery.outlet.aim is not None, None
        start = seen_bytes = missing = last_ms = 0
        count = first_page(head.total)
        while start < head.total and (not builder.is_full or (needs_target and delivery.target is None)):
            at = start, count
            page = await self._while_leased([delivery], lambda at=at: self._digests.page(claim, head, *at))  # type: ignore[misc]
            if page is None or not await self._has_lease(delivery):
                self._conclusions.stale(delivery)
                return False
            there = [record for record in page if record is not None]
            if there and not last_ms:
                last_ms = there[0].timestamp_ms
            why = self._aim(delivery, there)
            no_target = no_target or why
            builder.add(there)
            missing += len(page) - len(there)
            seen_bytes += sum([len(record.value) for record in there])
            start += len(page)
            count = next_page(start, seen_bytes, head.total - start)
        if not self._has_values(delivery, start, start - missing):
            return False
        if no_target is not None and delivery.target is None:
            return self._gone_nowhere(delivery, no_target)
        first_ms = await self._while_leased([delivery], lambda: self._digests.oldest_ms(claim))
        delivery.body = builder.body(first_ms, last_ms)
        if not await self._has_lease(delivery):
            self._conclusions.stale(delivery)
            return False
        return True

    async def _has_lease(self, delivery: Delivery) -> bool:
        """Enough for one send; renewed where it is not."""
        if delivery.has_lease:
            return True
        return await self._while_leased([delivery], lambda: self._renewed(delivery))

    async def _renewed(self, delivery: Delivery) -> bool:
        asked_at_s = time.monotonic()
        if not await self._digests.renew(delivery.claim, self.lease_ms):
            return False
        delivery.leased_until_s = asked_at_s + self.lease_ms / 1000
        return True

    def _put(self, outlet: Outlet, deliveries: Sequence[Delivery]) -> None:
        try:
            outlet.put(deliveries)
        except Exception as error:
            self._leave_with_bug([each for each in deliveries if not outlet.has_ready(each)], error)

    # -- what goes wrong

    async def _fenced(self, some: Sequence[Delivery], work: Awaitable[None]) -> None:
        try:
            await work
        except StoreError as error:
            for each in some:
                self._conclusions.unread(each, error)
        except Exception as error:
            self._leave_with_bug([each for each in some if each.body is None], error)

    def _leave_with_bug(self, some: Sequence[Delivery], error: Exception) -> None:
        for delivery in some:
            if not delivery.is_concluded:
                _log.error("scheduler.digest.bug", **delivery.log_fields, error=error, exc_info=error)
                self._conclusions.left(delivery)
