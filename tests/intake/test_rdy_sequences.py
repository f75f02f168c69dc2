"""Exact RDY sequences of a consumer in front of a scripted nsqd: the stories of backing off, as nsqd sees them.

The consumer and its store are the real ones, with a proxy in front of a real Redis that fails calls on demand. Backoffs
are the shortest there are; what happens next is decided when nsqd hears a RDY, so no test depends on how long one was.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from nsqdigest.backoff import Controller, Curve, Reason, State
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address
from nsqdigest.consumer import Consumer, line_of
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Options
from nsqdigest.intake.letters import DeadLetters
from nsqdigest.nsq.connection import ConnectionOptions, options_of
from nsqdigest.nsq.frames import FrameType, frame
from nsqdigest.nsq.publisher import Publisher
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.store import Store
from support import settings
from support.ports import HOST
from support.proxy import Mode, Proxy
from support.routes import LIMITS, intake_route
from support.servers import RedisServer
from support.stores import redis_settings
from support.waiting import NotInTime, until

pytestmark = pytest.mark.integration

TOPIC, CHANNEL = "events", "ch"
MAX_IN_FLIGHT = 5
SHORT = Curve(base_s=0.01, max_duration_s=0.08, jitter="none")  # level cap 3
HOUR_MS = 3_600_000
POLICY = replace(settings.POLICY, immediate=False, minimum_delay_ms=HOUR_MS, maximum_delay_ms=HOUR_MS, capacity=1000)
EVENT = json.dumps({"user": "ada"}).encode()
NO_EVENT = b"not JSON"


class Intake:
    """A consumer, its nsqds and its store."""

    def __init__(self, nsqds: list[EmbeddedNsqd], proxy: Proxy, store: Store) -> None:
        self.nsqds = nsqds
        self.proxy = proxy
        self.store = store
        self.metrics = Metrics()
        self._publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=30_000))
        self.consumer: Consumer | None = None

    def consume(
        self, max_in_flight: int = MAX_IN_FLIGHT, *, slow_start: bool = False, curve: Curve = SHORT
    ) -> Controller:
        controller = Controller(max_in_flight, curve, lambda low, high: high, slow_start=slow_start)
        nsqds = tuple(Address(*nsqd.tcp_address) for nsqd in self.nsqds)
        nsq = replace(settings.NSQ, nsqd_tcp_addresses=nsqds, max_in_flight=max_in_flight, requeue_delay_ms=0)
        self.consumer = Consumer(
            TOPIC,
            nsq,
            options=options_of(nsq),
            limits=LIMITS,
            line=line_of(TOPIC, [intake_route(policy=POLICY)], LIMITS, self.store.timelines, self.metrics),
            dead_letters=DeadLetters(self._publisher, nsq.dead_letter_topic, CHANNEL),
            controller=controller,
            metrics=self.metrics,
            uniform=lambda low, high: low,
            on_due=lambda _: None,
        )
        self.consumer.start()
        return controller

    async def end(self) -> None:
        if self.consumer is not None:
            await self.consumer.stop()
        await self._publisher.close()

    def publish(self, count: int = 1, body: bytes = EVENT, nsqd: int = 0) -> None:
        for _ in range(count):
            self.nsqds[nsqd].publish(TOPIC, body)

    def rdy(self, nsqd: int = 0) -> list[int]:
        """What one nsqd heard so far, over its only subscriber."""
        subscribers = [connection for connection in self.nsqds[nsqd].connections if connection.params_of("SUB")]
        return subscribers[0].rdy_sequence if subscribers else []

    def at_probe(self, nsqd: int, what: dict[int, Callable[[], None]]) -> None:
        """Does something when the n-th probe is asked for: RDY 1, counted from 1."""
        asked = 0

        def heard(_: Connection, name: str, params: tuple[str, ...]) -> None:
            nonlocal asked
            if name == "RDY" and params == ("1",):
                asked += 1
                what.get(asked, lambda: None)()

        self.nsqds[nsqd].script.on_command = heard

    def fail(self) -> None:
        self.proxy.mode = Mode.RESET_REPLIES

    def heal(self) -> None:
        self.proxy.mode = Mode.PASS


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def intake(stack: AsyncExitStack, shared_redis: RedisServer, redis_url: str) -> Intake:
    return await make_intake(stack, shared_redis, 1)


@pytest.fixture
async def two(stack: AsyncExitStack, shared_redis: RedisServer, redis_url: str) -> Intake:
    return await make_intake(stack, shared_redis, 2)


async def make_intake(stack: AsyncExitStack, redis: RedisServer, nsqds: int) -> Intake:
    proxy = await stack.enter_async_context(Proxy(redis.port))
    options = Options(shortest_ms=10, is_unbuffered=True)
    servers = [await stack.enter_async_context(EmbeddedNsqd(options)) for _ in range(nsqds)]
    store = Store(redis_settings(f"redis://{HOST}:{proxy.port}/0"), [StoreRoute("r", 1000, 0, 0)], 1000)
    await store.start()
    stack.push_async_callback(store.close, 1)
    intake = Intake(servers, proxy, store)
    stack.push_async_callback(intake.end)
    return intake


async def heard(intake: Intake, sequence: list[int]) -> None:
    """What was decided last may still be on its way."""
    with suppress(NotInTime):
        await until(lambda: len(intake.rdy()) >= len(sequence), 5.0)
    assert intake.rdy() == sequence


async def flows(controller: Controller) -> None:
    await until(lambda: controller.decision.state is State.FLOWING, 15.0, "the consumer to flow again")


# -- one connection


async def test_one_failure_is_rdy_0_then_a_probe_then_all(intake: Intake) -> None:
    intake.at_probe(0, {1: intake.heal})
    intake.fail()
    controller = intake.consume()
    intake.publish(20)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    await heard(intake, [5, 0, 1, 5])


async def test_failing_probes_are_0_1_0_1_and_successes_step_back_to_all(intake: Intake) -> None:
    """Failures raise the level to 3; each success lowers it by one, with a backoff between."""
    intake.at_probe(0, {3: intake.heal})
    intake.fail()
    controller = intake.consume()
    intake.publish(20)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    #               level  1     2     3  | 2     1     0
    await heard(intake, [5, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 5])


async def test_the_level_is_never_above_its_cap_so_recovery_is_never_longer(intake: Intake) -> None:
    intake.at_probe(0, {6: intake.heal})
    intake.fail()
    controller = intake.consume()
    intake.publish(20)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    await heard(intake, [5, *[0, 1] * 6, 0, 1, 0, 1, 5])


async def test_a_slow_start_goes_by_1_2_4_to_all(intake: Intake) -> None:
    intake.at_probe(0, {1: intake.heal})
    intake.fail()
    controller = intake.consume(20, slow_start=True)
    intake.publish(200)
    await until(lambda: controller.decision.reason is Reason.RAMPED and controller.decision.limit == 20, 15.0)
    await heard(intake, [20, 0, 1, 2, 4, 8, 16, 20])


async def test_a_failure_in_the_slow_start_begins_anew(intake: Intake) -> None:
    said: list[int] = []

    def direct(_: Connection, name: str, params: tuple[str, ...]) -> None:
        if name == "RDY":
            said.append(int(params[0]))
            if said[-1] == 1:
                intake.heal()
            elif said.count(4) == 1 and said[-1] == 4:
                intake.fail()

    intake.nsqds[0].script.on_command = direct
    intake.fail()
    controller = intake.consume(20, slow_start=True)
    intake.publish(400)
    await until(lambda: controller.decision.reason is Reason.RAMPED and controller.decision.limit == 20, 15.0)
    await heard(intake, [20, 0, 1, 2, 4, 0, 1, 2, 4, 8, 16, 20])


async def test_fifty_messages_of_a_failed_batch_are_one_failure(intake: Intake) -> None:
    intake.at_probe(0, {1: intake.heal})
    intake.fail()
    controller = intake.consume(50)
    intake.publish(50)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    await heard(intake, [50, 0, 1, 50])


async def test_a_probe_hands_over_one_message(intake: Intake) -> None:
    """nsqd is told to stop before the probe is finished or given back."""
    intake.at_probe(0, {3: intake.heal})
    intake.fail()
    controller = intake.consume()
    intake.publish(50)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    (connection,) = intake.nsqds[0].connections
    settled = [(name, params) for name, params in connection.commands if name in ("RDY", "REQ", "FIN")]
    after_first_backoff = settled[settled.index(("RDY", ("0",))) :]
    names = [name if name != "RDY" else params[0] for name, params in after_first_backoff]
    probes = "".join(name[0] for name in names).split("1")[1:4]
    assert probes == ["0R", "0R", "0F"]


# -- probes that come to nothing


async def test_a_probe_that_is_a_dead_letter_is_followed_by_another(intake: Intake) -> None:
    intake.fail()
    controller = intake.consume(1)
    intake.publish(1)
    await until(lambda: controller.decision.state is State.BACKOFF, 15.0)
    intake.heal()
    intake.nsqds[0].publish(TOPIC, NO_EVENT)
    intake.publish(5)
    await flows(controller)
    assert intake.rdy()[:2] == [1, 0]
    assert set(intake.rdy()) == {0, 1}
    await until(lambda: intake.metrics.total("messages_finished_total") == 7, 15.0, "all to be finished")


async def test_a_probe_that_no_message_answers_stays_asked_for(intake: Intake) -> None:
    """One connection only: there is no other to ask, and nothing to say again."""
    intake.fail()
    controller = intake.consume()
    intake.publish(1)
    await until(lambda: controller.decision.state is State.BACKOFF, 15.0)
    intake.nsqds[0].freeze()
    intake.heal()
    await until(lambda: controller.decision.reason is Reason.PROBE_LOST, 15.0)
    intake.nsqds[0].thaw()
    await flows(controller)
    await heard(intake, [5, 0, 1, 5])


async def test_a_probe_whose_connection_goes_is_asked_of_the_other(two: Intake) -> None:
    two.fail()
    controller = two.consume(4)
    two.publish(4)
    two.publish(4, nsqd=1)
    await until(lambda: controller.decision.state is State.BACKOFF, 15.0)
    two.heal()
    # The one that is asked goes before it hands anything over.
    asked: list[int] = []

    def break_first(number: int) -> Callable[[Connection, str, tuple[str, ...]], None]:
        def heard(connection: Connection, name: str, params: tuple[str, ...]) -> None:
            if name == "RDY" and params == ("1",):
                asked.append(number)
                if len(asked) == 1:
                    connection.abort()

        return heard

    for number, nsqd in enumerate(two.nsqds):
        nsqd.script.on_command = break_first(number)
    await until(lambda: len(asked) >= 2, 15.0)
    assert asked[1] != asked[0]
    await flows(controller)


def unasked(body: bytes, number: int) -> bytes:
    """A message in a frame, as nsqd may have sent it before it heard of RDY 0."""
    payload = struct.pack(">iqH16s", 2, time.time_ns(), 1, b"%016x" % number) + body
    return struct.pack(">i", len(payload)) + payload


async def test_what_arrives_after_rdy_0_goes_back_unprocessed(intake: Intake) -> None:
    intake.consume()
    await heard(intake, [5])
    assert intake.consumer is not None
    intake.consumer.pause()
    await heard(intake, [5, 0])
    (connection,) = intake.nsqds[0].connections
    late = [b"%016x" % number for number in (1, 2, 3)]
    intake.nsqds[0].send_raw(connection, b"".join(unasked(EVENT, number) for number in (1, 2, 3)))
    await until(lambda: len(connection.params_of("REQ")) == len(late), 15.0, "all to come back")
    intake.consumer.resume()
    intake.publish(1)
    await until(lambda: connection.params_of("FIN"), 15.0, "what came in time to be finished")
    assert not {params[0] for params in connection.params_of("FIN")} & {identity.decode() for identity in late}


async def test_a_probe_that_is_surely_a_dead_letter_leads_on(intake: Intake) -> None:
    sent: list[bytes] = []

    def heard(connection: Connection, name: str, params: tuple[str, ...]) -> None:
        if name == "RDY" and params == ("1",) and not sent:
            sent.append(unasked(NO_EVENT, 1))
            intake.nsqds[0].send_raw(connection, sent[0])

    intake.nsqds[0].script.on_command = heard
    intake.fail()
    controller = intake.consume()
    intake.publish(1)
    await until(lambda: controller.decision.state is State.BACKOFF, 15.0)
    intake.heal()
    await flows(controller)
    assert sent


async def test_a_probe_that_is_worked_on_when_its_connection_goes_is_lost(two: Intake) -> None:
    asked: list[Connection] = []

    def heard(connection: Connection, name: str, params: tuple[str, ...]) -> None:
        if name == "RDY" and params == ("1",) and not asked:
            two.proxy.mode = Mode.PAUSE  # the store keeps the probe waiting
            asked.append(connection)
            received.append(two.metrics.total("messages_received_total"))
            two.nsqds[0].send_raw(connection, unasked(EVENT, 1))

    received: list[float] = []
    for nsqd in two.nsqds:
        nsqd.script.on_command = heard
    two.fail()
    controller = two.consume(4)
    two.publish(4)
    two.publish(4, nsqd=1)
    await until(lambda: received and two.metrics.total("messages_received_total") > received[0], 15.0, "the probe")
    asked[0].abort()
    # Sooner than the store's time-out, which would be a verdict.
    await until(lambda: controller.decision.reason is Reason.PROBE_LOST, 4.0, "the next probe")
    two.heal()
    await flows(controller)


# -- connections


async def test_two_connections_share_what_may_be_in_flight(two: Intake) -> None:
    two.consume()
    # The second to come waits for the first's places: what was lowered is reserved for a second.
    await until(lambda: sorted(two.rdy(0)[-1:] + two.rdy(1)[-1:]) == [2, 3], 15.0)
    first, second = sorted([two.rdy(0), two.rdy(1)], key=len, reverse=True)
    assert first[0] == 5
    assert [len(first), len(second)] == [2, 1]


async def test_two_connections_both_stop_and_one_is_probed(two: Intake) -> None:
    controller = two.consume(4)
    await until(lambda: [two.rdy(0)[-1:], two.rdy(1)[-1:]] == [[2], [2]], 15.0)
    starts = [len(two.rdy(0)), len(two.rdy(1))]
    for number in (0, 1):
        two.at_probe(number, {1: two.heal})
    two.fail()
    two.publish(10)
    two.publish(10, nsqd=1)
    await until(lambda: controller.decision.reason is Reason.RECOVERED, 15.0)
    await until(lambda: [two.rdy(0)[-1], two.rdy(1)[-1]] == [2, 2], 15.0)
    after = sorted([two.rdy(0)[starts[0] :], two.rdy(1)[starts[1] :]], key=len)
    assert after == [[0, 2], [0, 1, 2]]


async def test_without_a_connection_the_probe_waits_for_one(intake: Intake) -> None:
    """The next one to come is asked at once, and for one message only."""
    intake.fail()
    controller = intake.consume()
    intake.publish(5)
    await until(lambda: controller.decision.state is State.BACKOFF, 15.0)
    await heard(intake, [5, 0])
    (first,) = intake.nsqds[0].connections
    await intake.nsqds[0].stop()
    await until(lambda: controller.decision.state is State.PROBING, 15.0)
    intake.heal()
    await intake.nsqds[0].start()
    await flows(controller)
    second = intake.nsqds[0].connections[-1]
    assert first.rdy_sequence == [5, 0]
    await until(lambda: len(second.rdy_sequence) == 2, 5.0)
    assert second.rdy_sequence == [1, 5]


# -- the operator's word


async def test_held_is_rdy_0_and_resume_goes_on(intake: Intake) -> None:
    intake.consume()
    consumer = intake.consumer
    assert consumer is not None
    await until(lambda: consumer.connected == 1 and intake.rdy() == [5], 15.0)
    assert consumer.pause()
    assert not consumer.pause()
    await until(lambda: intake.rdy() == [5, 0], 15.0)
    intake.publish(3)
    assert consumer.resume()
    assert not consumer.resume()
    await until(lambda: intake.metrics.total("messages_finished_total") == 3, 15.0)
    await heard(intake, [5, 0, 5])


async def test_a_fin_that_comes_too_late_counts_as_a_failure(intake: Intake) -> None:
    """The store took it, but so slowly that nsqd had given the message up: what is in flight is too much."""
    controller = intake.consume()
    consumer = intake.consumer
    assert consumer is not None
    await until(lambda: consumer.connected == 1 and intake.rdy() == [5], 15.0)
    (connection,) = consumer.connections
    connection.msg_timeout_s = 0.2  # three quarters of it are over before Redis answers
    intake.nsqds[0].script.answer = lambda c, name, params: _refused_fin(params[0]) if name == "FIN" else None
    intake.proxy.mode = Mode.PAUSE
    intake.publish(1)
    await until(lambda: connection.in_flight == 1, 15.0)
    arrived_s = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() > arrived_s + 0.2, 15.0)
    intake.heal()
    await until(lambda: controller.decision.state is not State.FLOWING, 15.0)
    assert controller.decision.reason is Reason.FAILED


async def test_a_fin_that_is_refused_in_good_time_is_no_failure(intake: Intake) -> None:
    """Somebody emptied the channel, say."""
    controller = intake.consume()
    intake.nsqds[0].script.answer = lambda c, name, params: _refused_fin(params[0]) if name == "FIN" else None
    intake.publish(1)
    await until(lambda: intake.metrics.total("messages_refused_total") == 1, 15.0)
    assert controller.decision.state is State.FLOWING


def _refused_fin(message_id: str) -> bytes:
    return frame(FrameType.ERROR, f"E_FIN_FAILED FIN {message_id} failed ID not in flight".encode())
