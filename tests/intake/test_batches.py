"""commits.py in simulated time, beside a consumer, a store and a dead-letter topic that are told what to do: what is
finished, what goes back and what is said, for each way in which a batch can end. Each message ends once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.log_counts import Repeats
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake import batches as module
from nsqdigest.intake.batches import Arrival, Commits, Verdict
from nsqdigest.intake.letters import Letter
from nsqdigest.intake.routing import EventLimits, EventRoute, Router
from nsqdigest.intake.writer import Filed
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record
from support.simulated import BEGAN_S, Time, simulated

pytestmark = pytest.mark.unit

LIMITS = EventLimits(event_bytes=1000, key_bytes=256, depth=64, future_ms=300_000, past_ms=0)
TIMEOUT_S = 60.0
GOOD, UNMATCHED, BAD = b'{"user":"u","kind":"a"}', b'{"user":"u","kind":"b"}', b"no json"
EPOCH = 3


def now_s() -> float:
    """Since the test began."""
    return round(Time.monotonic() - BEGAN_S, 3)


async def at(instant_s: float) -> None:
    await asyncio.sleep(BEGAN_S + instant_s - Time.monotonic() + 1e-4)


def messages(*bodies: bytes, attempts: int = 1) -> list[Message]:
    made_ns = Time().time_ns() - 2_000_000_000
    return [Message(b"%016d" % number, made_ns, attempts, body) for number, body in enumerate(bodies)]


class Connection:
    msg_timeout_s = TIMEOUT_S
    address = "nsqd:4150"

    def __init__(self) -> None:
        self.gone = 0

    def forget_in_flight(self, count: int) -> None:
        self.gone += count


@dataclass
class Consumer:
    """Keeps what it is told."""

    finished: list[Message] = field(default_factory=list)
    given_back: list[Message] = field(default_factory=list)
    late: list[tuple[Any, list[Message], int]] = field(default_factory=list)
    verdicts: list[tuple[float, Verdict, dict[int, int]]] = field(default_factory=list)
    due: int = 0
    order: list[str] = field(default_factory=list)

    def give_back(self, connection: Any, messages: Sequence[Message], about_s: float | None = None) -> None:
        self.given_back.extend(messages)

    def finish(self, connection: Any, messages: list[Message]) -> None:
        self.order.append("finish")
        self.finished.extend(messages)

    def finished_late(self, connection: Any, messages: Iterable[Message], epoch: int) -> None:
        self.late.append((connection, list(messages), epoch))

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None:
        self.order.append("heard")
        self.verdicts.append((now_s(), verdict, dict(messages_by_epoch)))

    def timeline_is_due(self) -> None:
        self.due += 1


@dataclass
class Store:
    """In the place of filing: takes so long, and answers what it is told."""

    takes_s: float = 0.0
    filed: list[tuple[float, list[bool]]] = field(default_factory=list)
    """When, and of each record whether it may be a repeat."""
    at_a_time: int = 0
    most_at_a_time: int = 0
    answers: list[Callable[[Sequence[Message]], Filed]] = field(default_factory=list)

    @property
    def clock(self) -> Store:
        return self

    def now_ms(self) -> int:
        return round(Time().time() * 1000)

    async def file(self, records: Sequence[Record], owners: Sequence[Message]) -> Filed:
        assert len(records) == len(owners)
        self.filed.append((now_s(), [record.possible_repeat for record in records]))
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_a_time -= 1
        return self.answers.pop(0)(owners) if self.answers else Filed(set(), {}, None, 0)


@dataclass
class DeadLetters:
    takes_s: float = 0.0
    letters: list[Letter] = field(default_factory=list)

    async def publish(self, nsqd: Any, topic: str, letters: Sequence[Letter]) -> None:
        assert (nsqd, topic) == (Connection.address, "events")
        await asyncio.sleep(self.takes_s)
        self.letters.extend(letters)


class Stage:
    def __init__(self, routes: int = 1, batch_size: int = 100) -> None:
        self.connection, self.host, self.store, self.letters = Connection(), Consumer(), Store(), DeadLetters()
        self.metrics = Metrics()
        router = Router(
            [EventRoute(number, f"r{number}", [("kind", ["a"])], "{user}", "", "") for number in range(routes)], LIMITS
        )
        self.commits = Commits(
            "events", batch_size=batch_size, router=router, routes={}, store=cast(Any, self.store),
            dead_letters=cast(Any, self.letters),
            metrics=self.metrics, host=self.host,
        )  # fmt: skip
        self.put_in: list[Message] = []

    def put(self, *bodies: bytes, held_s: float = 0.0, attempts: int = 1, epoch: int = EPOCH) -> list[Message]:
        arrived = messages(*bodies, attempts=attempts)
        self.put_in.extend(arrived)
        self.commits.put(Arrival(self.connection, arrived, epoch, Time.monotonic() - held_s))  # type: ignore[arg-type]
        return arrived

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.commits.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def each_has_ended_once(self) -> bool:
        ended = [*self.host.finished, *self.host.given_back]
        return Counter(map(id, ended)) == Counter(map(id, self.put_in))


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Time())
    monkeypatch.setattr(module, "Filing", lambda routes, store, metrics: store)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    monkeypatch.setattr(log, "_repeats", Repeats())
    caplog.set_level(logging.DEBUG, "nsqdigest")

    def times(event: str) -> int:
        return [record.getMessage() for record in caplog.records].count(event)

    return times


def failed(owners: Sequence[Message]) -> Filed:
    return Filed(set(map(id, owners)), {}, StoreError("redis-timeout", "as told"), 0)


# -- what becomes of a batch


@simulated
async def test_what_is_stored_or_of_no_route_is_finished_and_what_can_not_be_read_is_a_letter(
    said: Callable[[str], int],
) -> None:
    stage = Stage()
    good, unmatched, bad, again = stage.put(GOOD, UNMATCHED, BAD, GOOD)
    async with stage.running():
        await at(1)
    assert stage.host.finished == [good, unmatched, again, bad]
    assert [letter.message for letter in stage.letters.letters] == [bad]
    assert stage.each_has_ended_once()
    assert stage.store.filed == [(0, [False, False])]
    assert stage.host.verdicts == [(0, Verdict.STORED, {EPOCH: 4})]
    assert stage.host.order == ["heard", "finish", "finish"]
    assert (stage.host.due, stage.host.late) == (0, [])
    assert stage.metrics.value("messages_finished_total", topic="events") == 4
    assert stage.metrics.value("events_unmatched_total", topic="events") == 1
    assert said("consumer.event.unmatched") == 1
    page = stage.metrics.text()
    assert 'message_age_seconds_count{topic="events"} 3' in page
    assert 'message_age_seconds_sum{topic="events"} 6' in page
    assert 'batch_messages_sum{topic="events"} 3' in page


@simulated
async def test_an_event_of_several_routes_is_finished_once() -> None:
    stage = Stage(routes=3)
    stage.put(GOOD, GOOD)
    async with stage.running():
        await at(1)
    assert stage.store.filed == [(0, [False] * 6)]
    assert len(stage.host.finished) == 2
    assert stage.each_has_ended_once()


@simulated
async def test_where_one_route_takes_an_event_and_another_can_not_it_is_stored_and_a_letter() -> None:
    stage = Stage()
    stage.commits._router = Router(
        [EventRoute(0, "r", [], "{user}", "", ""), EventRoute(1, "s", [], "{other}", "", "")], LIMITS
    )
    half, whole = stage.put(b'{"user":"u"}', b'{"user":"u","other":"o"}')
    owners: list[list[Message]] = []

    def keeping(theirs: Sequence[Message]) -> Filed:
        owners.append(list(theirs))
        return Filed(set(), {}, None, 0)

    stage.store.answers = [keeping]
    async with stage.running():
        await at(1)
    assert owners == [[half, whole, whole]]
    assert [letter.message for letter in stage.letters.letters] == [half]
    assert stage.each_has_ended_once()


@simulated
async def test_what_the_store_did_not_take_goes_back_and_its_neighbours_are_finished(
    said: Callable[[str], int],
) -> None:
    stage = Stage()
    first, second, unmatched, bad = stage.put(GOOD, GOOD, UNMATCHED, BAD)
    failure = StoreError("redis-timeout", "as told")
    stage.store.answers = [lambda owners: Filed({id(first)}, {}, failure, 2)]
    async with stage.running():
        await at(1)
    assert stage.host.given_back == [first]
    assert stage.host.finished == [second, unmatched, bad]
    assert stage.host.verdicts == [(0, Verdict.FAILED, {EPOCH: 4})]
    assert stage.host.due == 1
    assert said("consumer.store.failed") == 1


@simulated
async def test_an_outage_makes_no_letter_of_what_the_store_did_not_take() -> None:
    stage = Stage(routes=1)
    stage.commits._router = Router(
        [EventRoute(0, "r", [], "{user}", "", ""), EventRoute(1, "s", [], "{other}", "", "")], LIMITS
    )
    (half,) = stage.put(b'{"user":"u"}')
    stage.store.answers = [failed]
    async with stage.running():
        await at(1)
    assert stage.host.given_back == [half]
    assert stage.letters.letters == []
    assert stage.each_has_ended_once()


@simulated
async def test_what_the_store_refuses_is_a_letter_with_its_reason() -> None:
    stage = Stage()
    first, second = stage.put(GOOD, GOOD)
    stage.store.answers = [lambda owners: Filed(set(), {id(first): "a list"}, None, 0)]
    async with stage.running():
        await at(1)
    ((message, rejected, _),) = stage.letters.letters
    assert (message, rejected.reason, rejected.detail) == (first, "refused-by-store", "a list")
    assert stage.host.finished == [second, first]
    assert stage.host.verdicts == [(0, Verdict.STORED, {EPOCH: 2})]


@simulated
async def test_a_batch_that_only_makes_letters_says_nothing_of_the_store() -> None:
    stage = Stage()
    stage.put(BAD, UNMATCHED)
    (refused,) = stage.put(GOOD, epoch=4)
    stage.store.answers = [lambda owners: Filed(set(), {id(refused): "a list"}, None, 0)]
    async with stage.running():
        await at(1)
    assert stage.host.verdicts == [(0, Verdict.NOT_ASKED, {EPOCH: 2, 4: 1})]
    assert stage.each_has_ended_once()


@simulated
async def test_a_mistake_of_the_program_gives_all_back_and_steps_back(said: Callable[[str], int]) -> None:
    def mistaken(owners: Sequence[Message]) -> Filed:
        raise RuntimeError("a mistake of the program")

    stage = Stage()
    stage.put(GOOD, BAD)
    stage.put(GOOD)
    stage.store.answers = [mistaken]
    async with stage.running():
        await at(1)
        assert stage.host.verdicts == [(0, Verdict.FAILED, {EPOCH: 3})]
        assert len(stage.host.given_back) == 3
        assert said("consumer.commit.bug") == 1
        assert not stage.commits._writes
        stage.put(GOOD)
        await at(2)
    assert len(stage.host.finished) == 1


@simulated
async def test_a_body_that_the_program_makes_a_mistake_at_is_a_letter_and_its_neighbours_are_stored(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[str], int]
) -> None:
    stage = Stage()
    records_of = stage.commits._router.records_of

    def mistaken(message: Message, *others: Any) -> Any:
        if message.body == UNMATCHED:
            raise KeyError("a mistake")
        return records_of(message, *others)

    monkeypatch.setattr(stage.commits._router, "records_of", mistaken)
    stage.put(GOOD, UNMATCHED, GOOD)
    async with stage.running():
        await at(1)
    assert stage.store.filed == [(0, [False, False])]
    (letter,) = stage.letters.letters
    assert (letter.rejected.reason, letter.rejected.detail) == ("bug", "KeyError: 'a mistake'")
    assert said("consumer.decode.bug") == 1
    assert stage.each_has_ended_once()


@simulated
async def test_what_fails_while_it_is_finished_goes_back_where_nsqd_was_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.put(GOOD)
    monkeypatch.setattr(stage.host, "finish", lambda *_: 1 / 0)
    async with stage.running():
        await at(1)
    assert stage.each_has_ended_once()
    assert len(stage.host.given_back) == 1


# -- batches


@simulated
async def test_a_batch_is_no_larger_than_it_may_be_and_in_order() -> None:
    stage = Stage(batch_size=3)
    stage.put(GOOD, GOOD)
    stage.put(*[GOOD] * 5)
    async with stage.running():
        await at(1)
    assert [len(repeats) for _, repeats in stage.store.filed] == [3, 3, 1]
    assert stage.each_has_ended_once()
    assert stage.host.verdicts == [
        (0, Verdict.STORED, {EPOCH: 3}),
        (0, Verdict.STORED, {EPOCH: 3}),
        (0, Verdict.STORED, {EPOCH: 1}),
    ]


@simulated
async def test_an_arrival_of_a_whole_batch_is_one_batch() -> None:
    stage = Stage(batch_size=3)
    stage.put(GOOD, GOOD, GOOD)
    async with stage.running():
        await at(1)
    assert stage.host.verdicts == [(0, Verdict.STORED, {EPOCH: 3})]


@simulated
async def test_two_writes_are_under_way_at_a_time_and_what_comes_meanwhile_is_one_batch() -> None:
    stage = Stage()
    stage.store.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD)
            await at(instant_s)
        assert stage.store.filed == [(0, [False]), (0, [False])]
        stage.put(GOOD, GOOD)
        await at(21)
        # The third was decoded before the others came.
        assert [len(repeats) for _, repeats in stage.store.filed] == [1, 1, 1, 3]
        assert stage.store.most_at_a_time == 2
        await at(40)
    assert stage.each_has_ended_once()
    assert not stage.commits._under_way


# -- how long it was held


@pytest.mark.parametrize(("held_s", "is_repeat"), [(44.9, False), (45.0, True), (59.9, True)])
@simulated
async def test_what_was_held_for_three_quarters_of_its_time_may_be_a_repeat(held_s: float, is_repeat: bool) -> None:
    stage = Stage()
    kept = stage.put(GOOD, BAD, held_s=held_s)
    async with stage.running():
        assert stage.commits.is_overdue(Time.monotonic()) is is_repeat
        await at(1)
    assert stage.store.filed == [(0, [is_repeat])]
    assert stage.host.late == ([(stage.connection, kept, EPOCH)] if is_repeat else [])
    assert stage.connection.gone == 0


@simulated
async def test_one_message_that_was_held_too_long_is_enough_to_be_overdue() -> None:
    stage = Stage()
    for held_s in (0, 50, 0):
        stage.put(GOOD, held_s=held_s)
    assert stage.commits.is_overdue(Time.monotonic())


@simulated
async def test_beside_what_was_held_for_long_all_of_a_batch_may_be_repeats() -> None:
    stage = Stage()
    stage.put(GOOD, held_s=46)
    stage.put(GOOD)
    async with stage.running():
        await at(1)
    assert stage.store.filed == [(0, [True, True])]


@simulated
async def test_what_nsqd_hands_over_again_may_be_a_repeat() -> None:
    stage = Stage()
    stage.put(GOOD, attempts=2)
    stage.put(GOOD)
    async with stage.running():
        await at(1)
    assert stage.store.filed == [(0, [True, False])]


@simulated
async def test_what_grew_old_while_it_waited_for_a_write_may_be_a_repeat() -> None:
    stage = Stage()
    stage.store.takes_s = 44
    async with stage.running():
        for _ in range(3):
            stage.put(GOOD, held_s=0.5)
            await at(now_s())
        await at(0.6)
        assert not stage.commits.is_overdue(BEGAN_S + 44.4)
        assert stage.commits.is_overdue(BEGAN_S + 44.6)
        await at(100)
    assert stage.store.filed == [(0, [False]), (0, [False]), (44, [False])]
    stage = Stage()
    stage.store.takes_s = 44
    async with stage.running():
        for _ in range(3):
            stage.put(GOOD, held_s=2)
            await asyncio.sleep(0.001)
        await asyncio.sleep(100)
    assert [repeats for _, repeats in stage.store.filed] == [[False], [False], [True]]
    assert len(stage.host.late) == 3


@simulated
async def test_what_nsqd_has_taken_back_is_let_go_unprocessed(said: Callable[[str], int]) -> None:
    stage = Stage(batch_size=2)
    stage.commits.put(Arrival(stage.connection, messages(GOOD, BAD), EPOCH, Time.monotonic() - 60))  # type: ignore[arg-type]
    fresh = stage.put(GOOD, held_s=59)
    async with stage.running():
        await at(0.5)
    assert stage.connection.gone == 2
    assert stage.metrics.value("messages_expired_total", topic="events") == 2
    assert said("consumer.message.held_too_long") == 1
    assert stage.host.finished == fresh
    assert stage.letters.letters == []


# -- what is too large


@simulated
async def test_what_is_too_large_is_a_letter_before_any_write_and_its_neighbours_are_stored() -> None:
    stage = Stage()
    stage.store.takes_s = 5
    async with stage.running():
        await asyncio.sleep(0)
        large, exact, good = stage.put(b"x" * 1001, b"x" * 1000, GOOD)
        await at(1)
        assert stage.host.finished == [large]
        await at(9)
    assert sorted(letter.message.id for letter in stage.letters.letters) == [large.id, exact.id]
    assert stage.letters.letters[0].rejected.reason == "too-large"
    assert stage.letters.letters[0].whole is not None
    assert stage.letters.letters[0].whole.length == 1001
    assert stage.host.verdicts == [(0, Verdict.NOT_ASKED, {EPOCH: 1}), (5, Verdict.STORED, {EPOCH: 2})]
    assert good in stage.host.finished
    assert stage.each_has_ended_once()


@simulated
async def test_what_is_as_large_as_allowed_is_no_news_until_it_is_stored() -> None:
    stage = Stage()
    stage.put(b"x" * 1000)
    assert stage.host.verdicts == []
    assert not stage.commits.is_full


@simulated
async def test_of_what_is_too_large_only_so_many_bytes_are_held_and_the_rest_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OVERSIZE_BYTES", 4000)
    stage = Stage()
    stage.letters.takes_s = 5
    async with stage.running():
        await at(1)
        *held, first_beyond = stage.put(b"a" * 2000, b"b" * 2000, b"c" * 1001)
        assert stage.host.given_back == [first_beyond]
        beyond = [first_beyond, *stage.put(b"d" * 1001, b"e" * 1002)]
        assert stage.host.given_back == beyond
        assert stage.commits.is_full
        assert [verdict[1:] for verdict in stage.host.verdicts] == [
            (Verdict.NOT_ASKED, {EPOCH: 3}),
            (Verdict.NOT_ASKED, {EPOCH: 2}),
        ]
        await at(3)
        assert stage.commits.is_full
        letters = stage.commits._letters
        for held_bytes, is_full in ((2001, True), (2000, False), (4000, False)):
            letters.held_bytes, kept_bytes = held_bytes, letters.held_bytes
            assert stage.commits.is_full is is_full  # until half of it has left, and then until something goes back
            letters.held_bytes = kept_bytes
        await at(7)
        assert stage.host.finished == held
    assert stage.each_has_ended_once()
    assert stage.store.filed == []


# -- the end


@simulated
async def test_what_was_not_begun_goes_back_and_what_was_is_waited_for() -> None:
    stage = Stage()
    stage.store.takes_s = stage.letters.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD)
            await at(instant_s / 10)
        stage.put(b"x" * 1001)
        await at(1)
        stage.commits.give_back_waiting()
        assert stage.host.given_back == [stage.put_in[2], stage.put_in[3]]
        assert stage.commits._decoded is None
        stage.commits.give_back_waiting()
        await stage.commits.settle(Time.monotonic() + 3)
        assert now_s() == 4
        await stage.commits.settle(Time.monotonic())
        assert now_s() == 4
        await stage.commits.settle(Time.monotonic() + 0.5)
        assert now_s() == 4.5
        await stage.commits.settle()
        assert now_s() == 10.3
        await stage.commits.settle()
    assert stage.each_has_ended_once()
    assert len(stage.host.finished) == 3


@simulated
async def test_who_abandons_gives_all_back_once_and_waits_for_nobody() -> None:
    stage = Stage()
    stage.store.takes_s = stage.letters.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD, GOOD)
            await at(instant_s / 10)
        stage.put(b"x" * 1001)
        await at(1)
        abandoning = asyncio.create_task(stage.commits.abandon())
        await asyncio.sleep(0)
        assert len(stage.host.given_back) == 9  # before it waits for anything, for its end may be cut off
        await abandoning
        assert now_s() == 1
        assert not stage.commits._under_way
    assert stage.each_has_ended_once()
    assert stage.host.verdicts == [(0.3, Verdict.NOT_ASKED, {EPOCH: 1})]


@simulated
async def test_who_is_cancelled_gives_back_what_was_being_written() -> None:
    stage = Stage()
    stage.store.takes_s = 10
    async with stage.running():
        stage.put(GOOD)
        await at(1)
    assert stage.each_has_ended_once()
    assert len(stage.host.given_back) == 1
