"""courier.py in simulated time, beside a store and a sink that are told what to do: what it leaves to whom, to the
millisecond. What it does with a real Redis is in tests/integration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from nsqdigest.delivery.attempt import Courier, DeliveryRoute, Lease, Outlet

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.log_counts import Repeats
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery import attempt as module
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.store.answers import Answer, Claim, NotOpened, Opened
from nsqdigest.store.dead import Details
from nsqdigest.store.keys import own_timeline
from nsqdigest.store.record import Head, StoredRecord
from nsqdigest.store.schedule import Plan, Schedule
from support.settings import POLICY, ROUTE, SINK
from support.simulated import BEGAN_S, Time, simulated

pytestmark = pytest.mark.unit

NOW_MS = 1_000_000
CLAIM = Claim(0, "r", "t", NOW_MS - 5000, "token")
OPENED = Opened(
    again=False, id="digest", opened_ms=NOW_MS, iteration=1, total=2, first_ms=1, last_ms=2, superseded=0,
    dropped_capacity=0, next_earliest_ms=NOW_MS + 60_000, since_ms=NOW_MS, attempts=0, tries=0,
)  # fmt: skip
RECORD = StoredRecord(b"k", 1, b'{"g":1}')


def now_s() -> float:
    return round(Time.monotonic() - BEGAN_S, 3)


class Dead:
    def __init__(self) -> None:
        self.over: list[Any] = []
        self.records: dict[str, int] = {}
        self.dropped: list[str] = []

    async def over_limit(self, partition: int) -> list[Any]:
        return self.over

    async def drop_over_limit(self, old: Any) -> int:
        self.dropped.append(old.id)
        return self.records[old.id]


@dataclass
class Old:
    id: str
    route: str
    details: Details


@dataclass
class Store:
    opened: Any = OPENED
    records: list[StoredRecord | None] = field(default_factory=lambda: [RECORD, RECORD])
    takes_s: dict[str, float] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[float, str, tuple[Any, ...]]] = field(default_factory=list)
    dead: Dead = field(default_factory=Dead)

    @property
    def digests(self) -> Store:
        return self

    @property
    def clock(self) -> Store:
        return self

    def now_ms(self) -> int:
        return round(Time.monotonic() * 1000)

    async def _call(self, name: str, *arguments: Any) -> Answer:
        self.calls.append((now_s(), name, arguments))
        await asyncio.sleep(self.takes_s.get(name, 0))
        if self.fails.get(name, 0):
            self.fails[name] -= 1
            raise StoreError("redis-timeout", "as told")
        return self.answers.get(name, Answer.DONE)

    async def open(self, claim: Claim, lease_ms: int, new_id: str, earliest_ms: list[int]) -> Any:
        await self._call("open", claim, lease_ms, new_id, earliest_ms)
        return self.opened

    async def page(self, claim: Claim, opened: Opened, start: int, count: int) -> list[StoredRecord | None]:
        await self._call("page", start, count)
        return self.records[start : start + count]

    async def renew(self, claim: Claim, lease_ms: int) -> Answer:
        return await self._call("renew", claim, lease_ms)

    async def defer(self, claim: Claim, due_ms: int) -> Answer:
        return await self._call("defer", claim, due_ms)

    async def fail(self, claim: Claim, due_ms: int) -> Answer:
        return await self._call("fail", claim, due_ms)

    async def close_digest(self, claim: Claim, digest_id: str, after: Schedule) -> Answer:
        return await self._call("close", claim, digest_id, after)

    async def bury(self, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Answer:
        return await self._call("bury", claim, digest_id, after, Details.decode(details))

    def called(self, name: str) -> list[tuple[float, tuple[Any, ...]]]:
        return [(at_s, arguments) for at_s, called, arguments in self.calls if called == name]


@dataclass
class Sink:
    outcome: Outcome = field(default_factory=lambda: Outcome(Verdict.DELIVERED))
    takes_s: float = 0.0
    sent: list[tuple[float, OutgoingDigest]] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    async def deliver(self, parcel: OutgoingDigest) -> Outcome:
        self.sent.append((now_s(), parcel))
        self.before()
        await asyncio.sleep(self.takes_s)
        return self.outcome

    async def close(self) -> None: ...


class Stage:
    def __init__(self, *, group: str = "", draw: float | None = None, **settings: Any) -> None:
        self.store, self.sink, self.metrics = Store(), Sink(), Metrics()
        self.windows: list[tuple[float, float]] = []
        self.decided: list[Outlet] = []
        self.post = Outlet(
            replace(SINK, **{"timeout_ms": 5000, **settings}), self.sink,
            Controller(8, Curve(5.0, 100.0, jitter="none"), lambda low, _: low, slow_start=False),
        )  # fmt: skip
        self.route = DeliveryRoute(replace(ROUTE, group=group), Plan(POLICY), self.post)
        self.courier = Courier(self.store, 60_000, self.metrics, self._uniform, self.decided.append)  # type: ignore[arg-type]

    def _uniform(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        return high

    async def carry(self, claim: Claim = CLAIM, lease_ms: int = 60_000) -> None:
        epoch = self.post.controller.decision.epoch
        await self.courier.carry(claim, self.route, Lease(lease_ms, Time.monotonic()), epoch)


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Time())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    monkeypatch.setattr(log, "_repeats", Repeats())
    caplog.set_level(logging.DEBUG, "nsqdigest")

    def times(event: str) -> int:
        return [record.getMessage() for record in caplog.records].count(event)

    return times


def _unprefixed(page: str) -> list[str]:
    return [line.removeprefix("nsqdigest_") for line in page.splitlines()]


@simulated
async def test_room_is_what_neither_is_under_way_nor_may_be_soon() -> None:
    post = Stage().post
    post.active, post.reserved = 3, 4
    assert post.room == 1
    post.active = 9
    assert post.room == 0
    assert not post.is_probing


@simulated
async def test_a_lease_is_counted_in_seconds_from_its_question() -> None:
    lease = Lease(60_000, BEGAN_S - 1)
    assert lease.left_s == 59
    lease.renewed(BEGAN_S - 2)
    assert lease.left_s == 58


@simulated
async def test_what_was_delivered_is_told_and_measured(said: Callable[[str], int]) -> None:
    stage = Stage()
    stage.sink.takes_s = 2
    stage.sink.outcome = Outcome(Verdict.DELIVERED, "200", answer="thanks")
    await stage.carry()
    assert stage.store.called("close") == [(2, (CLAIM, "digest", Schedule(NOW_MS + 62_000, NOW_MS + 62_000)))]
    page = stage.metrics.text()
    assert 'digest_delay_seconds_sum{route="r"} 7.0' in page
    assert "digest_records_sum 2.0" in page
    assert any(line.startswith("delivery_seconds_sum{") and line.endswith(" 2.0") for line in _unprefixed(page))
    assert said("scheduler.sink.answered") == 1
    assert stage.decided == []
    (arguments,) = [arguments for _, arguments in stage.store.called("open")]
    assert (arguments[1], arguments[3]) == (60_000, [NOW_MS + 60_000])


@simulated
async def test_a_digest_under_way_since_before_its_claim_was_late_since_then() -> None:
    stage = Stage()
    stage.store.opened = OPENED._replace(since_ms=NOW_MS - 9000)
    await stage.carry()
    assert 'digest_delay_seconds_sum{route="r"} 9.0' in stage.metrics.text()


@simulated
async def test_a_sink_that_answers_nothing_is_not_quoted(said: Callable[[str], int]) -> None:
    stage = Stage()
    await stage.carry()
    assert said("scheduler.sink.answered") == 0


@simulated
async def test_a_group_reaches_the_body() -> None:
    for group, expected in (("g", b'"groups":['), ("", b'"records":[')):
        stage = Stage(group=group)
        await stage.carry()
        ((_, parcel),) = stage.sink.sent
        assert expected in parcel.body
        assert (b'"groups"' in parcel.body) is bool(group)


@simulated
async def test_a_revived_digest_leaves_no_schedule_behind() -> None:
    stage = Stage()
    await stage.carry(CLAIM._replace(timeline=own_timeline("digest", "t")))
    ((_, (_, _, after)),) = stage.store.called("close")
    assert after == Schedule(NOW_MS, NOW_MS)


@simulated
async def test_a_sink_that_steps_back_while_a_digest_is_read_is_not_sent_it() -> None:
    stage = Stage()
    stage.store.takes_s = {"page": 1}
    stage.post.history.stopped_since_s = None
    carrying = asyncio.create_task(stage.carry())
    await asyncio.sleep(0.5)
    stage.post.controller.failed(stage.post.controller.decision.epoch, Time.monotonic())
    await carrying
    assert stage.sink.sent == []
    assert stage.store.called("defer") == [(1, (CLAIM, CLAIM.due_ms))]


@simulated
async def test_a_lease_that_is_as_long_as_a_send_is_enough_and_a_shorter_one_is_renewed() -> None:
    for timeout_ms, renewals in ((60_000, 0), (60_001, 2)):
        stage = Stage(timeout_ms=timeout_ms)
        await stage.carry()
        assert len(stage.store.called("renew")) == renewals
        assert len(stage.sink.sent) == 1


@simulated
async def test_what_was_claimed_before_its_sink_stepped_back_is_put_back_unopened() -> None:
    stage = Stage()
    of_another_epoch = stage.post.controller.decision.epoch + 1
    await stage.courier.carry(CLAIM, stage.route, Lease(60_000, Time.monotonic()), of_another_epoch)
    assert stage.store.called("defer") == [(0, (CLAIM, CLAIM.due_ms))]
    assert stage.store.called("open") == []


@simulated
async def test_a_lease_that_is_anothers_by_now_ends_the_work_unsent_and_counted() -> None:
    stage = Stage()
    stage.store.opened = NotOpened.STALE
    await stage.carry()
    later = Stage(timeout_ms=60_001)
    later.store.answers["renew"] = Answer.STALE
    await later.carry()
    for each in (stage, later):
        assert each.sink.sent == []
        assert each.metrics.value("digests_stale_total", route=CLAIM.route) == 1


@simulated
async def test_a_value_that_redis_lost_is_logged_and_the_others_go_out(said: Callable[[str], int]) -> None:
    stage = Stage()
    stage.store.records = [RECORD, None]
    await stage.carry()
    assert len(stage.sink.sent) == 1
    assert said("scheduler.digest.values_missing") == 1


@simulated
async def test_a_lease_that_was_renewed_is_not_renewed_again_before_it_has_to_be() -> None:
    """The first page takes 20 of 60 s, which leaves less than a send may take; the second one takes nothing."""
    stage = Stage(timeout_ms=50_000)
    stage.store.opened, stage.store.records = OPENED._replace(total=20), [RECORD] * 20
    stage.store.takes_s["page"] = 20
    asyncio.get_running_loop().call_later(10, stage.store.takes_s.update, {"page": 0})
    await stage.carry()
    assert len(stage.store.called("page")) == 2
    assert [at_s for at_s, _ in stage.store.called("renew")] == [20]


@simulated
async def test_redis_is_asked_again_after_pauses_that_grow_until_two_seconds() -> None:
    stage = Stage()
    stage.store.fails = {"open": 6}
    await stage.carry()
    steps_s = [0.1, 0.3, 0.9, 2.0, 2.0, 2.0]
    assert [at_s for at_s, _ in stage.store.called("open")] == pytest.approx([sum(steps_s[:n]) for n in range(7)])
    assert {low for low, _ in stage.windows} == {0.1}
    assert [high for _, high in stage.windows] == pytest.approx([0.3, 0.9, 2.7, 6.0, 6.0, 6.0])


@simulated
async def test_a_failed_digest_is_remembered_until_it_is_due_again() -> None:
    stage = Stage(retry_base_ms=1000, retry_cap_ms=9000)
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.carry()
    assert stage.store.called("fail") == [(0, (CLAIM, NOW_MS + 3000))]
    wall_s = Time().time()
    history = stage.post.history
    assert (history.why, history.refusing_since_s) == ("500", wall_s)
    assert history._retries == {"digest": pytest.approx(wall_s + 3.0, abs=1e-6)}
    stage.sink.outcome = Outcome(Verdict.DELIVERED)
    await stage.carry()
    assert (history.refusing_since_s, history._retries) == (None, {})


@simulated
async def test_a_stopped_sink_says_since_when_and_why() -> None:
    stage = Stage()
    stage.sink.outcome = Outcome(Verdict.GONE, "410")
    await stage.carry()
    assert (stage.post.history.why, stage.post.history.stopped_since_s) == ("410", Time().time())
    assert stage.store.called("defer") == [(0, (CLAIM, NOW_MS))]


@simulated
async def test_what_was_refused_is_buried_with_the_receivers_words_and_the_longest_dead_go(
    said: Callable[[str], int],
) -> None:
    stage = Stage(max_attempts=1)
    facts = Head("old", "s", "t", "other", 1, 1, 1, 1, 1, 1, 0, 0)
    stage.store.dead.over = [Old(name, "s", Details(facts, "refused", "", 1)) for name in ("gone", "old", "older")]
    stage.store.dead.records = {"gone": 0, "old": 3, "older": 4}
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400", answer="no")
    await stage.carry()
    ((_, (_, _, _, details)),) = stage.store.called("bury")
    assert (details.reason, details.detail, details.attempts) == ("too-many-attempts", "400: no", 1)
    assert (stage.post.history.why, stage.post.history.buried_since) == ("400", 1)
    assert stage.store.dead.dropped == ["gone", "old", "older"]
    assert stage.metrics.value("dead_digests_dropped_total", sink="other") == 2
    assert said("scheduler.dead.dropped") >= 1


@simulated
async def test_what_expired_is_buried_without_a_post_and_with_our_own_word() -> None:
    stage = Stage(max_attempts=2)
    stage.store.opened = OPENED._replace(attempts=2, tries=2)
    await stage.carry()
    assert stage.sink.sent == []
    ((_, (_, _, _, details)),) = stage.store.called("bury")
    assert (details.reason, details.detail, details.attempts) == ("too-many-attempts", "", 2)
    assert stage.post.history.why == BuryReason.TOO_MANY_ATTEMPTS


@simulated
async def test_a_digest_without_any_value_is_buried_and_is_no_fault_of_the_receivers(
    said: Callable[[str], int],
) -> None:
    stage = Stage()
    stage.store.records = [None, None]
    await stage.carry()
    assert stage.sink.sent == []
    assert stage.metrics.value("digests_buried_total", sink="out", reason="values-lost") == 1
    assert stage.post.history.buried_since == 0
    assert said("scheduler.digest.values_missing") == 1
    stage.store.records = [None, RECORD]
    await stage.carry()
    assert len(stage.sink.sent) == 1


@simulated
async def test_the_controller_hears_once_of_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    stage = Stage()
    controller = stage.post.controller
    monkeypatch.setattr(controller, "succeeded", lambda *_: heard.append("succeeded"))
    monkeypatch.setattr(controller, "lost", lambda *_: heard.append("lost"))
    await stage.carry()
    assert heard == ["succeeded"]
    stage.store.fails = {"open": 1000}
    await stage.carry(lease_ms=1000)
    assert heard == ["succeeded", "lost"]
