"""What a consumer makes of a batch's result and of what its connections report, beside connections that write down the
commands they get. The stories over a real nsqd stand in test_rdy_sequences."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from nsqdigest import consumer as module
from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base.errors import ConnectionLost, NsqdRefused
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.consumer import POSSIBLE_REPEAT_FRACTION, SUSPECT_FOR_S, Consumer, line_of
from nsqdigest.intake.batch import Arrival, BatchResult, Verdict
from nsqdigest.intake.letters import Letter
from nsqdigest.intake.writer import Place
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.frames import Message
from support import settings
from support.routes import LIMITS, intake_route
from support.simulated import BEGAN_S, Time, simulated

pytestmark = pytest.mark.unit

TOPIC = "events"
MAX_IN_FLIGHT = 10
TIMEOUT_S = 60.0
WAITING_GO_BACK = ("REQ", "those that no write was begun for")
SETTINGS = replace(settings.NSQ, max_in_flight=MAX_IN_FLIGHT)


@dataclass(eq=False)
class Connection:
    """Each command goes to `commands`, which all connections share."""

    name: str
    commands: list[tuple[Any, ...]]
    max_rdy: int = 2500
    rdy: int = 0
    in_flight: int = 0
    message_at_s: float = 0.0
    msg_timeout_s: float = TIMEOUT_S
    is_well: bool = True
    is_open: bool = True
    address: str = "nsqd:4150"
    mistakes: int = 0

    def set_rdy(self, count: int) -> None:
        self.rdy = count
        self.commands.append(("RDY", self.name, count))

    def fin(self, messages: list[Message]) -> None:
        if self.mistakes:
            self.mistakes -= 1
            raise RuntimeError("a mistake of the program")
        self.in_flight -= len(messages)
        self.commands.append(("FIN", self.name, *messages))

    def requeue(self, delays_ms: list[tuple[Message, int]]) -> None:
        self.in_flight -= len(delays_ms)
        self.commands.append(("REQ", self.name, *delays_ms))


class Store:
    partitions = 1

    @property
    def clock(self) -> Any:
        return self


@dataclass
class Batches:
    """In the place of the real ones."""

    arrivals: list[Arrival] = field(default_factory=list)

    commands: list[tuple[Any, ...]] = field(default_factory=list)

    def put(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)

    def give_back_waiting(self) -> None:
        self.commands.append(WAITING_GO_BACK)


@dataclass
class Letters:
    held_bytes: int = 0
    letters: list[Letter] = field(default_factory=list)

    def put(self, connection: Any, letters: list[Letter]) -> None:
        self.letters += letters


class Stage:
    def __init__(self, *names: str) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.metrics = Metrics()
        self.due: list[frozenset[Place]] = []
        self.controller = Controller(MAX_IN_FLIGHT, Curve(1.0, 8.0, jitter="none"), lambda low, high: high)
        self.consumer = Consumer(
            TOPIC,
            SETTINGS,
            options=ConnectionOptions(heartbeat_interval_ms=30_000),
            limits=LIMITS,
            line=line_of(TOPIC, [intake_route()], LIMITS, cast(Any, Store()), self.metrics),
            dead_letters=cast(Any, None),
            controller=self.controller,
            metrics=self.metrics,
            uniform=lambda low, high: (low + high) / 2,
            on_due=self._on_due,
        )
        self.batches, self.letters = Batches(commands=self.commands), Letters()
        self.consumer._batches = cast(Any, self.batches)
        self.consumer._letters = self.consumer._oversize._letters = cast(Any, self.letters)
        self.connections = [Connection(name, self.commands) for name in names or ("a",)]
        for connection in self.connections:
            self.consumer.on_open(cast(Any, connection))
        self.commands.clear()

    def _on_due(self, places: frozenset[Place]) -> None:
        self.due.append(places)

    def bring(self, count: int, connection: int = 0, body: bytes = b"{}") -> list[Message]:
        made_ns = Time().time_ns() - 2_000_000_000
        sent = [Message(b"%016d" % number, made_ns, 1, body) for number in range(count)]
        self.connections[connection].in_flight += count
        self.consumer.on_messages(cast(Any, self.connections[connection]), sent)
        return sent

    def result(self, verdict: Verdict = Verdict.STORED, **lists: Any) -> BatchResult:
        return BatchResult(verdict, {self.controller.decision.epoch: 1}, **lists)

    def names(self) -> list[tuple[str, str]]:
        return [(command[0], command[1]) for command in self.commands]


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Time())


# -- the result of a batch


@simulated
async def test_rdy_is_lowered_before_a_batch_that_failed_and_what_waits_behind_it_go_back() -> None:
    stage = Stage("a", "b")
    one, two = stage.bring(2)
    a, b = stage.connections
    a.rdy = b.rdy = 5
    result = stage.result(Verdict.FAILED, finish=[(a, [one])], give_back=[(a, [two])])
    stage.consumer.on_batch_result(result)
    assert stage.names() == [("RDY", "a"), ("RDY", "b"), WAITING_GO_BACK, ("FIN", "a"), ("REQ", "a")]
    assert stage.commands[3:] == [("FIN", "a", one), ("REQ", "a", (two, 500))]
    assert (a.rdy, b.rdy, a.in_flight) == (0, 0, 0)
    assert stage.controller.decision.state is State.BACKOFF


@simulated
async def test_every_group_of_a_result_is_answered_and_taken_out() -> None:
    stage = Stage("a", "b")
    a, b = stage.connections
    one, two = stage.bring(2)
    three, four, five = stage.bring(3, connection=1)
    letter = Letter(five, DeadLetterReason.NOT_JSON, "it is none")
    result = stage.result(
        finish=[(a, [one]), (b, [three])], give_back=[(a, [two]), (b, [four])], letters=[(b, [letter])]
    )
    stage.consumer.on_batch_result(result)
    assert (result.finish, result.give_back, result.letters) == ([], [], [])
    assert sorted(stage.names()) == [("FIN", "a"), ("FIN", "b"), ("REQ", "a"), ("REQ", "b")]
    assert stage.letters.letters == [letter]
    assert [connection.in_flight for connection in (a, b)] == [0, 1]
    found = {name: stage.metrics.value(f"messages_{name}_total", topic=TOPIC) for name in ("finished", "requeued")}
    assert found == {"finished": 2, "requeued": 2}


@simulated
async def test_where_answering_raises_the_groups_without_an_answer_stay() -> None:
    stage = Stage("a", "b")
    a, b = stage.connections
    one, two, three = stage.bring(3)
    (four,) = stage.bring(1, connection=1)
    b.mistakes = 1
    result = stage.result(finish=[(a, [one]), (b, [four]), (a, [two])], give_back=[(a, [three])])
    with pytest.raises(RuntimeError):
        stage.consumer.on_batch_result(result)
    assert result.finish == cast(Any, [(a, [one]), (b, [four])])
    assert result.give_back == cast(Any, [(a, [three])])
    assert stage.names() == [("FIN", "a")]


@simulated
async def test_the_age_of_what_is_finished_and_the_size_of_the_batch_are_observed() -> None:
    stage = Stage("a", "b")
    first, second = stage.bring(3), stage.bring(2, connection=1)
    a, b = stage.connections
    await asyncio.sleep(1)
    stage.consumer.on_batch_result(stage.result(finish=[(a, first[:1]), (b, second)], give_back=[(a, first[1:])]))
    page = stage.metrics.text()
    assert 'message_age_seconds_count{topic="events"} 3' in page
    assert 'message_age_seconds_sum{topic="events"} 9' in page
    assert 'batch_messages_sum{topic="events"} 3' in page
    assert 'batch_messages_count{topic="events"} 1' in page


@simulated
async def test_a_batch_of_which_nothing_is_finished_is_not_observed() -> None:
    stage = Stage()
    sent = stage.bring(1)
    stage.consumer.on_batch_result(stage.result(give_back=[(stage.connections[0], sent)]))
    assert (stage.metrics.total("batch_messages"), stage.metrics.total("message_age_seconds")) == (0, 0)


@simulated
async def test_who_delivers_learns_where_a_timeline_is_due() -> None:
    stage, places = Stage(), frozenset([("events", 0)])
    stage.consumer.on_batch_result(stage.result())
    stage.consumer.on_batch_result(stage.result(due=places))
    assert stage.due == [places]


@simulated
async def test_a_late_answer_that_nsqd_refuses_is_a_failure_of_its_epoch() -> None:
    stage = Stage()
    sent = stage.bring(1)
    (arrival,) = stage.batches.arrivals
    (connection,) = stage.connections
    stage.consumer.on_batch_result(stage.result(finish=[(connection, sent)], late=[arrival]))
    error = NsqdRefused("E_FIN_FAILED", f"FIN {sent[0].id.decode()} failed ID not in flight")
    stage.consumer.on_refused(cast(Any, connection), error)
    assert stage.controller.decision.state is State.BACKOFF
    stage.consumer.on_refused(cast(Any, connection), error)  # counts once
    assert stage.controller.decision.level == 1


@simulated
async def test_an_answer_in_time_that_nsqd_refuses_is_no_failure() -> None:
    stage = Stage()
    sent = stage.bring(1)
    (connection,) = stage.connections
    stage.consumer.on_batch_result(stage.result(finish=[(connection, sent)]))
    stage.consumer.on_refused(
        cast(Any, connection), NsqdRefused("E_FIN_FAILED", f"FIN {sent[0].id.decode()} failed ID not in flight")
    )
    assert stage.controller.decision.state is State.FLOWING


# -- messages that arrive


@simulated
async def test_what_arrives_keeps_its_connection_and_epoch_and_when_it_may_be_a_repeat() -> None:
    stage = Stage()
    sent = stage.bring(2)
    assert stage.batches.arrivals == [
        Arrival(
            cast(Any, stage.connections[0]),
            sent,
            0,
            repeat_at_s=BEGAN_S + POSSIBLE_REPEAT_FRACTION * TIMEOUT_S,
            expired_at_s=BEGAN_S + TIMEOUT_S,
        )
    ]


@simulated
async def test_after_a_standstill_what_arrives_for_a_while_may_be_a_repeat_at_once() -> None:
    stage = Stage("a", "b")
    stage.connections[0].msg_timeout_s = 8.0
    stage.consumer.on_closed(cast(Any, stage.connections[1]), ConnectionLost("gone"))  # looks at all time-outs again
    await asyncio.sleep(POSSIBLE_REPEAT_FRACTION * 8.0 - 0.001)
    stage.bring(1)
    await asyncio.sleep(0.001)
    stage.bring(1, connection=1)
    now_s = Time.monotonic()
    await asyncio.sleep(SUSPECT_FOR_S)
    stage.consumer._ticked_s = Time.monotonic()
    stage.bring(1)
    before, suspect, after = [arrival.repeat_at_s for arrival in stage.batches.arrivals]
    assert suspect == pytest.approx(now_s)
    assert stage.batches.arrivals[1].expired_at_s == pytest.approx(now_s + (1 - POSSIBLE_REPEAT_FRACTION) * TIMEOUT_S)
    assert before == pytest.approx(now_s - 0.001 + POSSIBLE_REPEAT_FRACTION * 8.0)
    assert after == pytest.approx(now_s + SUSPECT_FOR_S + POSSIBLE_REPEAT_FRACTION * 8.0)


@simulated
async def test_an_oversize_message_is_a_letter_and_its_neighbours_are_put_in() -> None:
    stage = Stage()
    (large,) = stage.bring(1, body=b"x" * (LIMITS.event_bytes + 1))
    assert [letter.message for letter in stage.letters.letters] == [large]
    assert stage.batches.arrivals == []
    exact = stage.bring(1, body=b"x" * LIMITS.event_bytes)
    assert [arrival.messages for arrival in stage.batches.arrivals] == [exact]


@simulated
async def test_an_oversize_probe_leads_to_the_next_probe() -> None:
    stage = Stage("a", "b")
    stage.consumer.on_batch_result(stage.result(Verdict.FAILED))
    await asyncio.sleep(stage.controller.decision.wake_at_s - Time.monotonic() + 0.01)  # type: ignore[operator]
    assert stage.controller.decision.state is State.PROBING
    armed = next(number for number, connection in enumerate(stage.connections) if connection.rdy)
    epoch = stage.controller.decision.epoch
    stage.bring(1, connection=armed, body=b"x" * (LIMITS.event_bytes + 1))
    assert (stage.controller.decision.state, stage.controller.decision.epoch) == (State.PROBING, epoch + 1)
    assert len(stage.letters.letters) == 1
    stage.consumer.pause()  # ends its timers


@simulated
async def test_while_paused_what_arrives_goes_back_unprocessed() -> None:
    stage = Stage()
    assert stage.consumer.pause()
    assert stage.names()[-1] == WAITING_GO_BACK
    (message,) = stage.bring(1)
    assert stage.commands[-1] == ("REQ", "a", (message, 500))
    assert stage.batches.arrivals == []
