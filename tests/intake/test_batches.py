"""The group commits of a topic in simulated time, beside an owner and a writer that do what the test says: which
messages make a batch, when it is decoded and written, and that each message is answered once, however a batch ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake import batches as module
from nsqdigest.intake import decoding
from nsqdigest.intake.batch import Arrival, Batch, BatchResult, Verdict
from nsqdigest.intake.batches import Batches, Line
from nsqdigest.intake.decoding import Decoder
from nsqdigest.intake.routing import Router
from nsqdigest.intake.writer import WriteResult
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record
from support.routes import LIMITS, intake_route
from support.simulated import BEGAN_S, Time, simulated

pytestmark = pytest.mark.unit

TIMEOUT_S, REPEAT_S = 60.0, 45.0
GOOD, UNMATCHED, BAD = b'{"user":"u","kind":"a"}', b'{"user":"u","kind":"b"}', b"no json"
EPOCH = 3
NOW_MS = 1_700_000_000_000
Answer = Callable[[Sequence[Record]], WriteResult]


def now_s() -> float:
    """Since the test began."""
    return round(Time.monotonic() - BEGAN_S, 3)


async def at(instant_s: float) -> None:
    await asyncio.sleep(BEGAN_S + instant_s - Time.monotonic() + 1e-4)


def messages(*bodies: bytes, attempts: int = 1) -> list[Message]:
    return [Message(b"%016d" % number, 0, attempts, body) for number, body in enumerate(bodies)]


class Connection:
    msg_timeout_s = TIMEOUT_S
    address = "nsqd:4150"

    def __init__(self) -> None:
        self.gone = 0

    def forget_in_flight(self, count: int) -> None:
        self.gone += count


@dataclass
class Owner:
    """Answers everything that a result asks for."""

    finished: list[Message] = field(default_factory=list)
    given_back: list[Message] = field(default_factory=list)
    letters: list[Message] = field(default_factory=list)
    results: list[tuple[float, Verdict, dict[int, int]]] = field(default_factory=list)
    late: list[Arrival] = field(default_factory=list)
    mistakes: int = 0
    """So many results are left half way."""

    def on_batch_result(self, result: BatchResult) -> None:
        self.results.append((now_s(), result.verdict, dict(result.messages_by_epoch)))
        self.late += result.late
        while result.letters:
            self.letters += [letter.message for letter in result.letters[-1][1]]
            result.letters.pop()
        if self.mistakes:
            self.mistakes -= 1
            raise RuntimeError("a mistake of the program")
        while result.finish:
            self.finished += result.finish.pop()[1]
        while result.give_back:
            self.given_back += result.give_back.pop()[1]

    def give_back(self, connection: Any, messages: Sequence[Message]) -> None:
        self.given_back += messages


@dataclass
class Writer:
    takes_s: float = 0.0
    written: list[tuple[float, list[bool]]] = field(default_factory=list)
    """When, and of each record whether it may be a repeat."""
    decoded_ms: list[int] = field(default_factory=list)
    """When each batch was decoded, as the writer got it."""
    at_a_time: int = 0
    most_at_a_time: int = 0
    answers: list[Answer] = field(default_factory=list)

    async def write(self, records: Sequence[Record], now_ms: int) -> WriteResult:
        self.written.append((now_s(), [record.possible_repeat for record in records]))
        self.decoded_ms.append(now_ms)
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_a_time -= 1
        return self.answers.pop(0)(records) if self.answers else WriteResult()


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


class Stage:
    def __init__(self, batch_size: int = 100) -> None:
        self.connection, self.owner, self.writer = Connection(), Owner(), Writer()
        self.metrics = Metrics()
        router = Router([intake_route(match=[("kind", ["a"])])], LIMITS)
        self.decoder = Decoder("events", router, self.metrics)
        self.batches = Batches(
            "events",
            batch_size,
            line=Line(self.decoder, cast(Any, self.writer), cast(Any, Clock())),
            metrics=self.metrics,
            owner=self.owner,
        )
        self.put_in: list[Message] = []

    def put(self, *bodies: bytes, held_s: float = 0.0, attempts: int = 1, epoch: int = EPOCH) -> list[Message]:
        arrived = messages(*bodies, attempts=attempts)
        self.put_in.extend(arrived)
        received_s = Time.monotonic() - held_s
        self.batches.put(
            Arrival(cast(Any, self.connection), arrived, epoch, received_s + REPEAT_S, received_s + TIMEOUT_S)
        )
        return arrived

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.batches.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def each_was_answered_once(self) -> bool:
        ended = [*self.owner.finished, *self.owner.given_back, *self.owner.letters]
        return Counter(ended) == Counter(self.put_in)


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Time())
    monkeypatch.setattr(decoding, "time", Time())


def timed_out(records: Sequence[Record]) -> WriteResult:
    failure = StoreError("redis-timeout", "as the test says")
    return WriteResult(frozenset(record.source for record in records), failure=failure)


# -- the result


@simulated
async def test_the_owner_gets_the_result_of_a_batch_once() -> None:
    stage = Stage()
    good, unmatched, bad = stage.put(GOOD, UNMATCHED, BAD)
    async with stage.running():
        await at(1)
    assert (stage.owner.finished, stage.owner.letters) == ([good, unmatched], [bad])
    assert stage.owner.results == [(0, Verdict.STORED, {EPOCH: 3})]
    assert stage.writer.decoded_ms == [NOW_MS]
    assert stage.each_was_answered_once()


@simulated
async def test_a_failure_of_the_store_is_logged_with_its_messages(logged: Callable[[str], int]) -> None:
    stage = Stage()
    stage.put(GOOD, UNMATCHED, GOOD)
    stage.writer.answers = [timed_out]
    async with stage.running():
        await at(1)
    assert (len(stage.owner.finished), len(stage.owner.given_back)) == (1, 2)
    assert stage.owner.results == [(0, Verdict.FAILED, {EPOCH: 3})]
    assert logged("consumer.store.failed") == 1


@simulated
async def test_a_mistake_of_the_program_gives_all_back_and_counts_as_a_failure(logged: Callable[[str], int]) -> None:
    def mistaken(records: Sequence[Record]) -> WriteResult:
        raise RuntimeError("a mistake of the program")

    stage = Stage()
    stage.put(GOOD, BAD)
    stage.put(GOOD)
    stage.writer.answers = [mistaken]
    async with stage.running():
        await at(1)
        assert stage.owner.results == [(0, Verdict.FAILED, {EPOCH: 3})]
        assert len(stage.owner.given_back) == 3
        assert logged("consumer.commit.bug") == 1
        assert not stage.batches.under_way
        stage.put(GOOD)
        await at(2)
    assert len(stage.owner.finished) == 1


@simulated
async def test_where_the_owner_makes_a_mistake_what_it_has_not_answered_goes_back(logged: Callable[[str], int]) -> None:
    stage = Stage()
    good, bad = stage.put(GOOD, BAD)
    stage.owner.mistakes = 1
    async with stage.running():
        await at(1)
    assert (stage.owner.given_back, stage.owner.letters) == ([good], [bad])
    assert [verdict for _, verdict, _ in stage.owner.results] == [Verdict.STORED, Verdict.FAILED]
    assert logged("consumer.commit.bug") == 1


@simulated
async def test_where_the_owner_makes_one_mistake_after_another_its_part_ends_and_all_goes_back() -> None:
    stage = Stage()
    stage.put(GOOD)
    stage.owner.mistakes = 2
    with pytest.raises(ExceptionGroup):
        await stage.batches.run()
    assert stage.each_was_answered_once()
    assert len(stage.owner.given_back) == 1


# -- which messages make a batch


@simulated
async def test_a_batch_is_no_larger_than_it_may_be_and_in_order() -> None:
    stage = Stage(batch_size=3)
    stage.put(GOOD, GOOD)
    stage.put(*[GOOD] * 5)
    async with stage.running():
        await at(1)
    assert [len(repeats) for _, repeats in stage.writer.written] == [3, 3, 1]
    assert stage.each_was_answered_once()
    assert [by_epoch for _, _, by_epoch in stage.owner.results] == [{EPOCH: 3}, {EPOCH: 3}, {EPOCH: 1}]


class Slow:
    """A clock in simulated time of which each look takes 4 ms more."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return Time.monotonic() + 0.004 * self._looks


@simulated
async def test_a_batch_ends_when_decoding_takes_too_long_and_the_rest_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "time", Slow())
    stage = Stage()
    large = GOOD[:-1] + b',"x":"%s"}' % (b"x" * (decoding.PART_BYTES * 3 // 4))
    stage.put(large, large, large)
    stage.put(large, large)
    async with stage.running():
        await at(1)
    assert [len(repeats) for _, repeats in stage.writer.written] == [2, 2, 1]
    assert stage.owner.finished == stage.put_in
    assert stage.each_was_answered_once()


@simulated
async def test_an_arrival_of_a_whole_batch_is_one_batch() -> None:
    stage = Stage(batch_size=3)
    stage.put(GOOD, GOOD, GOOD)
    async with stage.running():
        await at(1)
    assert stage.owner.results == [(0, Verdict.STORED, {EPOCH: 3})]


@simulated
async def test_two_writes_are_under_way_at_a_time_and_what_comes_meanwhile_is_one_batch() -> None:
    stage = Stage()
    stage.writer.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD)
            await at(instant_s)
        assert stage.writer.written == [(0, [False]), (0, [False])]
        stage.put(GOOD, GOOD)
        await at(21)
        # The third was decoded before the others came.
        assert [len(repeats) for _, repeats in stage.writer.written] == [1, 1, 1, 3]
        assert stage.writer.most_at_a_time == 2
        await at(40)
    assert stage.each_was_answered_once()
    assert not stage.batches.under_way


@simulated
async def test_a_write_begins_before_the_next_batch_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(batch_size=1)
    stage.put(GOOD, GOOD)
    written_before: list[int] = []
    decode = stage.decoder.decode

    def decode_and_note(arrivals: list[Arrival], now_ms: int) -> tuple[Batch, list[Arrival]]:
        written_before.append(len(stage.writer.written))
        return decode(arrivals, now_ms)

    monkeypatch.setattr(stage.decoder, "decode", decode_and_note)
    async with stage.running():
        await at(1)
    assert written_before == [0, 1]


# -- how long it was held


@pytest.mark.parametrize(("held_s", "may_repeat"), [(44.9, False), (45.0, True), (59.9, True)])
@simulated
async def test_what_was_held_for_three_quarters_of_its_time_may_be_a_repeat(held_s: float, may_repeat: bool) -> None:
    stage = Stage()
    kept = stage.put(GOOD, BAD, held_s=held_s)
    async with stage.running():
        assert stage.batches.is_overdue(Time.monotonic()) is may_repeat
        await at(1)
    assert stage.writer.written == [(0, [may_repeat])]
    assert [arrival.messages for arrival in stage.owner.late] == ([kept] if may_repeat else [])
    assert stage.connection.gone == 0


@simulated
async def test_one_message_that_was_held_too_long_is_enough_to_be_overdue() -> None:
    stage = Stage()
    for held_s in (0, 50, 0):
        stage.put(GOOD, held_s=held_s)
    assert stage.batches.is_overdue(Time.monotonic())


@simulated
async def test_beside_what_was_held_for_long_all_of_a_batch_may_be_repeats() -> None:
    stage = Stage()
    stage.put(GOOD, held_s=46)
    stage.put(GOOD)
    async with stage.running():
        await at(1)
    assert stage.writer.written == [(0, [True, True])]


@simulated
async def test_what_is_decoded_or_being_written_can_be_overdue() -> None:
    stage = Stage()
    stage.writer.takes_s = 44
    async with stage.running():
        for _ in range(3):
            stage.put(GOOD, held_s=0.5)
            await at(now_s())
        await at(0.6)
        assert not stage.batches.is_overdue(BEGAN_S + 44.4)
        assert stage.batches.is_overdue(BEGAN_S + 44.6)
        await at(100)
    assert stage.writer.written == [(0, [False]), (0, [False]), (44, [False])]


@pytest.mark.parametrize(("held_s", "may_repeat"), [(0.999, False), (1.0, True), (2.0, True)])
@simulated
async def test_what_grew_old_while_it_waited_for_a_write_may_be_a_repeat(held_s: float, may_repeat: bool) -> None:
    stage = Stage(batch_size=1)
    stage.writer.takes_s = REPEAT_S - 1
    stage.put(GOOD, GOOD, GOOD, held_s=held_s)
    async with stage.running():
        await asyncio.sleep(100)
    assert [repeats for _, repeats in stage.writer.written] == [[False], [False], [may_repeat]]


@simulated
async def test_what_nsqd_has_taken_back_is_dropped_unprocessed(logged: Callable[[str], int]) -> None:
    stage = Stage(batch_size=2)
    stage.put(GOOD, BAD, held_s=60)
    fresh = stage.put(GOOD, held_s=59)
    async with stage.running():
        await at(0.5)
    assert stage.connection.gone == 2
    assert stage.metrics.value("messages_expired_total", topic="events") == 2
    assert logged("consumer.message.held_too_long") == 1
    assert stage.owner.finished == fresh
    assert stage.owner.letters == []


# -- the end


@simulated
async def test_what_was_not_begun_goes_back_once_and_what_was_is_written() -> None:
    stage = Stage()
    stage.writer.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD)
            await at(instant_s / 10)
        await at(1)
        stage.batches.give_back_waiting()
        assert stage.owner.given_back == [stage.put_in[2], stage.put_in[3]]
        stage.batches.give_back_waiting()
        assert not stage.batches.is_overdue(BEGAN_S + REPEAT_S - 1)
        assert len(stage.batches.under_way) == 2
        await at(20)
    assert stage.each_was_answered_once()
    assert len(stage.owner.finished) == 2
    assert len(stage.writer.written) == 2


@simulated
async def test_who_abandons_gives_all_back_at_once_and_only_once() -> None:
    stage = Stage()
    stage.writer.takes_s = 10
    async with stage.running():
        for instant_s in range(4):
            stage.put(GOOD, GOOD)
            await at(instant_s / 10)
        await at(1)
        under_way = stage.batches.abandon()
        assert len(stage.owner.given_back) == 8  # before anything is waited for, for that may be cut off
        await asyncio.gather(*under_way, return_exceptions=True)
        assert now_s() == 1
        assert not stage.batches.under_way
        assert stage.batches.abandon() == []
    assert stage.each_was_answered_once()
    assert stage.owner.results == []


@simulated
async def test_who_is_cancelled_gives_back_what_was_being_written() -> None:
    stage = Stage()
    stage.writer.takes_s = 10
    async with stage.running():
        stage.put(GOOD)
        await at(1)
    assert stage.each_was_answered_once()
    assert len(stage.owner.given_back) == 1
