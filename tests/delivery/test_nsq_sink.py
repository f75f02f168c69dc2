"""The sink that publishes: by itself, and with a scheduler, a store and a daemon before it, on real nsqds."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.errors import Applied, PublishError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.config import Address, Secret, SinkSettings, Tls, tls_files
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import BulkSink, Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.nsq import MOST_AT_ONCE, NsqSinkSettings, NsqTopic, verdict_of
from nsqdigest.delivery.targets import Target
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.delivery.verdicts import ATTEMPTS_WHEN_REFUSED
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.store.dead import Dead
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from support import settings as usual
from support.auth_server import AuthServer
from support.nsqclient import NsqClient
from support.ports import HOST, free_port
from support.servers import Nsqd
from support.settings import ROUTE
from support.stage import TOPIC, Stage
from support.stores import OpenStore, add, rec
from support.waiting import until, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

BODY = b'{"type":"digest","data":{"records":[{"value":{"n": 1.50,\n"n":2}}]}}\r\n'
PARCEL = OutgoingDigest(id="id", route="r", timeline="t", attempt=1, records=1, body=BODY)
OPTIONS = ConnectionOptions(heartbeat_interval_ms=30_000)
TOPICS = (f"digests-{number}" for number in itertools.count())
NARROW_BYTES = 300
SOON_S = 2.0
Make = Callable[..., NsqTopic]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """The nsqd that digests go to. A test that holds or ends it brings it back."""
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as nsqd:
        yield nsqd


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    sizes = f"--max-msg-size={NARROW_BYTES}", f"--max-body-size={NARROW_BYTES * 4}"
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *sizes) as nsqd:
        yield nsqd


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


def low(least: float, _most: float) -> float:
    return least


def settings_of(topic: str, *nsqds: Address, **changes: Any) -> NsqSinkSettings:
    common = {each.name: getattr(usual.SINK, each.name) for each in fields(SinkSettings)}
    common |= {"type": "nsq", "max_age_ms": 3_600_000, "retry_base_ms": 10, "retry_cap_ms": 10}
    return NsqSinkSettings(**(common | changes), topic=topic, nsqd_tcp_addresses=nsqds)


@pytest.fixture
async def make(topic: str) -> AsyncIterator[Make]:
    """Makes sinks that the test need not close."""
    made: list[NsqTopic] = []

    def make(*nsqds: Nsqd | Address, options: ConnectionOptions = OPTIONS, **changes: Any) -> NsqTopic:
        addresses = [nsqd if isinstance(nsqd, Address) else Address(*nsqd.tcp_address) for nsqd in nsqds]
        made.append(NsqTopic(settings_of(topic, *addresses, **changes), options, uniform=low))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def taken(nsqd: Nsqd, topic: str, count: int = 1) -> list[bytes]:
    """The bodies that are in the topic; one more than there should be would be taken, too."""
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await client.sub(topic, "ch")
        client.rdy(count + 1)
        bodies = [message.body for message in await client.take(count)]
        assert client.messages == []
        return bodies


# -- by itself


async def test_a_digest_arrives_with_its_very_bytes(out: Nsqd, topic: str, make: Make) -> None:
    assert await make(out).deliver(PARCEL) == Outcome(Verdict.DELIVERED)
    assert await taken(out, topic) == [BODY]


async def test_the_next_address_takes_what_the_first_did_not(out: Nsqd, topic: str, make: Make) -> None:
    sink = make(Address(HOST, free_port()), out)
    assert [(await sink.deliver(PARCEL)).verdict for _ in range(2)] == [Verdict.DELIVERED] * 2
    assert await taken(out, topic, 2) == [BODY, BODY]


async def test_as_many_as_there_may_be_on_their_way_go_at_once(out: Nsqd, topic: str, make: Make) -> None:
    sink = make(out, concurrency=4)
    outcomes = await asyncio.gather(*(sink.deliver(PARCEL._replace(body=b"%d" % n)) for n in range(40)))
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
    assert sorted(await taken(out, topic, 40)) == sorted(b"%d" % n for n in range(40))
    topics = [[count["topic"] for count in each["pub_counts"]] for each in out.stats()["producers"]]
    assert 1 <= topics.count([topic]) <= 4


async def test_an_nsqd_that_does_not_answer_in_time_is_unavailable(out: Nsqd, make: Make) -> None:
    sink = make(out, timeout_ms=1000)
    assert await sink.deliver(PARCEL) == Outcome(Verdict.DELIVERED)
    out.pause()
    try:
        assert await sink.deliver(PARCEL) == Outcome(Verdict.UNAVAILABLE, "no acknowledgement within 1 s")
    finally:
        out.resume()
    await until(lambda: _is_delivered(sink))


async def _is_delivered(sink: NsqTopic) -> bool:
    return (await sink.deliver(PARCEL)).verdict is Verdict.DELIVERED


async def test_tls_that_nsqd_does_not_offer_is_unavailable_with_the_cause(out: Nsqd, make: Make) -> None:
    context = tls_files.client(Tls(ca_file="", cert_file="", key_file="", insecure=True))
    outcome = await make(out, options=replace(OPTIONS, tls=context)).deliver(PARCEL)
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "TLS" in outcome.cause
    # No longer than an attempt waits: the controller's probe has to find out. Two would leave the other its time.
    assert re.search(r"tried again in [01]\.\d+ s", outcome.cause)


async def test_what_is_under_way_at_the_end_gets_a_moment_and_an_outcome(out: Nsqd, make: Make) -> None:
    sink = make(out)
    await sink.deliver(PARCEL)
    out.pause()
    try:
        sending = asyncio.create_task(sink.deliver(PARCEL))
        await asyncio.sleep(0)  # it has begun
        await sink.close()
        assert (await sending).verdict is Verdict.UNAVAILABLE
    finally:
        out.resume()
    assert (await sink.deliver(PARCEL)).cause == "the publisher ends: nothing was sent"


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("", Verdict.UNAVAILABLE),
        ("E_AUTH_FAILED", Verdict.UNAVAILABLE),
        ("E_UNAUTHORIZED", Verdict.UNAVAILABLE),
        ("E_PUB_FAILED", Verdict.UNAVAILABLE),
        ("E_MPUB_FAILED", Verdict.UNAVAILABLE),
        ("E_BAD_TOPIC", Verdict.REFUSED),
        ("E_BAD_MESSAGE", Verdict.REFUSED),
        ("E_INVALID", Verdict.AGAIN),
    ],
)
def test_what_nsqds_word_means(code: str, verdict: Verdict) -> None:
    assert verdict_of(PublishError("it said so", applied=Applied.NO, code=code)) is verdict


# -- several at once


def digests_of(*bodies: bytes) -> list[OutgoingDigest]:
    return [PARCEL._replace(id=f"id-{number}", body=body) for number, body in enumerate(bodies)]


def aimed(body: bytes, topic: str) -> OutgoingDigest:
    return PARCEL._replace(body=body, target=Target({"topic": topic}, f"topic {topic}"))


def verdicts_of(outcomes: list[Outcome]) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]


NUMBERS = [b"%02d" % number for number in range(MOST_AT_ONCE)]


def test_it_is_a_sink_that_takes_several(make: Make) -> None:
    assert isinstance(make(Address(HOST, 1)), BulkSink)


async def test_many_are_one_command_and_each_is_delivered_once(out: Nsqd, topic: str, make: Make) -> None:
    outcomes = await make(out).deliver_all(digests_of(*NUMBERS))
    assert outcomes == [Outcome(Verdict.DELIVERED)] * MOST_AT_ONCE
    assert sorted(await taken(out, topic, MOST_AT_ONCE)) == NUMBERS


async def test_several_topics_go_together(out: Nsqd, topic: str, make: Make) -> None:
    digests = [aimed(body, f"{topic}-{number % 7}") for number, body in enumerate(NUMBERS)]
    assert verdicts_of(await make(out).deliver_all(digests)) == [Verdict.DELIVERED] * MOST_AT_ONCE
    for each in range(7):
        assert sorted(await taken(out, f"{topic}-{each}", len(NUMBERS[each::7]))) == NUMBERS[each::7]


async def test_one_that_nsqd_finds_too_large_is_the_only_one_refused(narrow: Nsqd, topic: str, make: Make) -> None:
    """The others are more than one MPUB holds there, too."""
    bodies = [b"%02d" % number + b"x" * (NARROW_BYTES if number in (5, 6, 11) else 100) for number in range(30)]
    sink = make(narrow)
    for _ in range(2):
        outcomes = await sink.deliver_all(digests_of(*bodies))
        refused = [number for number, outcome in enumerate(outcomes) if outcome.verdict is Verdict.REFUSED]
        assert refused == [5, 6, 11]
        assert all(f"--max-msg-size={NARROW_BYTES + 2}" in outcomes[number].cause for number in refused)
        for number in refused:
            assert "too big" in outcomes[number].answer, "nsqd's own words"
            assert "too big" not in outcomes[number].cause
        assert verdicts_of(outcomes).count(Verdict.DELIVERED) == 27
    fitting = [body for number, body in enumerate(bodies) if number not in (5, 6, 11)]
    assert sorted(await taken(narrow, topic, 54)) == sorted(fitting * 2)


async def test_an_empty_body_and_a_name_that_no_topic_has_are_refused_alone(out: Nsqd, topic: str, make: Make) -> None:
    digests = [aimed(b"1", topic), aimed(b"", topic), aimed(b"2", "no topic"), aimed(b"3", topic)]
    outcomes = await make(out).deliver_all(digests)
    assert verdicts_of(outcomes) == [Verdict.DELIVERED, Verdict.REFUSED, Verdict.REFUSED, Verdict.DELIVERED]
    assert [outcome.cause.partition(":")[0] for outcome in outcomes[1:3]] == ["E_BAD_MESSAGE", "E_BAD_TOPIC"]
    assert sorted(await taken(out, topic, 2)) == [b"1", b"3"]


async def test_all_go_to_the_next_address_where_the_first_can_not_be_reached(out: Nsqd, topic: str, make: Make) -> None:
    sink = make(Address(HOST, free_port()), out)
    assert set(await sink.deliver_all(digests_of(*NUMBERS))) == {Outcome(Verdict.DELIVERED)}
    assert sorted(await taken(out, topic, MOST_AT_ONCE)) == NUMBERS


async def test_without_any_nsqd_all_are_unavailable(make: Make) -> None:
    outcomes = await make(Address(HOST, free_port())).deliver_all(digests_of(*NUMBERS))
    assert set(verdicts_of(outcomes)) == {Verdict.UNAVAILABLE}
    assert "Connection refused" in outcomes[0].cause


async def test_an_nsqd_that_stands_still_makes_all_of_them_unavailable_in_time(out: Nsqd, make: Make) -> None:
    sink = make(out, timeout_ms=1000)
    await sink.deliver(PARCEL)
    out.pause()
    try:
        async with asyncio.timeout(MOST_AT_ONCE / 2):  # one after the other they take a second each
            outcomes = await sink.deliver_all(digests_of(*NUMBERS))
        assert outcomes == [Outcome(Verdict.UNAVAILABLE, "no acknowledgement within 1 s")] * MOST_AT_ONCE
    finally:
        out.resume()
    await until(lambda: _is_delivered(sink))


async def test_a_killed_nsqd_makes_all_of_them_unavailable_and_takes_them_when_it_is_back(
    out: Nsqd, topic: str, make: Make
) -> None:
    sink = make(out)
    await sink.deliver(PARCEL)
    out.pause()
    sending = asyncio.create_task(sink.deliver_all(digests_of(*NUMBERS)))
    await asyncio.sleep(0)  # it has begun
    out.kill()
    outcomes = await sending
    assert set(verdicts_of(outcomes)) == {Verdict.UNAVAILABLE}
    assert "nsqd may have it or not" in outcomes[0].cause
    await asyncio.to_thread(out.start)

    async def all_are_delivered() -> bool:
        return set(verdicts_of(await sink.deliver_all(digests_of(*NUMBERS)))) == {Verdict.DELIVERED}

    await until(all_are_delivered)


async def test_a_paused_topic_takes_them(out: Nsqd, topic: str, make: Make) -> None:
    out.create_topic(topic)
    out.request("POST", "/topic/pause", topic=topic)
    assert set(verdicts_of(await make(out).deliver_all(digests_of(*NUMBERS)))) == {Verdict.DELIVERED}
    out.request("POST", "/topic/unpause", topic=topic)
    assert sorted(await taken(out, topic, MOST_AT_ONCE)) == NUMBERS


async def test_a_disk_that_is_full_makes_duplicates_once_and_then_each_is_stored_or_not(
    tmp_path: Path, topic: str, make: Make
) -> None:
    """In memory nsqd has room for ten. After that it cannot write: its folder has gone elsewhere."""
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    with Nsqd(folder, "--mem-queue-size=10") as nsqd:
        folder.rename(elsewhere)
        sink = make(nsqd)
        outcomes = await sink.deliver_all(digests_of(*NUMBERS))
        assert set(verdicts_of(outcomes)) == {Verdict.UNAVAILABLE}
        assert "E_MPUB_FAILED" in outcomes[0].cause
        assert nsqd.topic_stats(topic)["depth"] == 10
        nsqd.request("POST", "/topic/empty", topic=topic)
        outcomes = await sink.deliver_all(digests_of(*NUMBERS))
        assert verdicts_of(outcomes) == [Verdict.DELIVERED] * 10 + [Verdict.UNAVAILABLE] * (MOST_AT_ONCE - 10)
        assert "E_PUB_FAILED" in outcomes[-1].cause
        assert nsqd.topic_stats(topic)["depth"] == 10
        elsewhere.rename(folder)
        outcomes = await sink.deliver_all(digests_of(*NUMBERS[10:]))
        assert set(verdicts_of(outcomes)) == {Verdict.DELIVERED}
        assert sorted(await taken(nsqd, topic, MOST_AT_ONCE)) == NUMBERS


async def test_a_topic_that_auth_does_not_permit_makes_its_digests_unavailable_alone(
    tmp_path: Path, topic: str, make: Make
) -> None:
    may: list[dict[str, Any]] = [
        {"topic": f"^{topic}$", "channels": [".*"], "permissions": ["subscribe", "publish"]},
    ]
    with (
        AuthServer({"secret": may}) as auth_server,
        Nsqd(tmp_path, f"--auth-http-address={auth_server.address}") as nsqd,
    ):
        sink = make(nsqd, options=replace(OPTIONS, auth_secret=Secret("secret")))
        digests = [aimed(b"1", topic), aimed(b"2", "another"), aimed(b"3", "a-third"), aimed(b"4", topic)]
        outcomes = await sink.deliver_all(digests)
        assert verdicts_of(outcomes) == [Verdict.DELIVERED, *[Verdict.UNAVAILABLE] * 2, Verdict.DELIVERED]
        assert "E_UNAUTHORIZED" in outcomes[1].cause
        assert "publish to a-third" in outcomes[2].cause
        assert nsqd.topic_stats(topic)["message_count"] == 2


async def test_they_are_bounded_by_writes_and_bytes_whatever_is_asked_for(out: Nsqd, topic: str, make: Make) -> None:
    sink = make(out, concurrency=2)
    large = [b"%02d" % number + b"x" * 10_000 for number in range(25)]
    outcomes = await asyncio.gather(*(sink.deliver_all(digests_of(*large)) for _ in range(8)))
    assert {outcome.verdict for each in outcomes for outcome in each} == {Verdict.DELIVERED}
    topics = [[count["topic"] for count in each["pub_counts"]] for each in out.stats()["producers"]]
    assert 1 <= topics.count([topic]) <= 2
    assert sorted(await taken(out, topic, 200)) == sorted(large * 8)


async def test_closed_while_many_are_under_way_each_has_an_outcome(out: Nsqd, make: Make) -> None:
    sink = make(out)
    await sink.deliver(PARCEL)
    out.pause()
    try:
        sending = asyncio.create_task(sink.deliver_all(digests_of(*NUMBERS)))
        await asyncio.sleep(0)  # it has begun
        await sink.close()
        assert verdicts_of(await sending) == [Verdict.UNAVAILABLE] * MOST_AT_ONCE
    finally:
        out.resume()


# -- with a scheduler and a store


class Recording:
    """The sink, and what it was given."""

    def __init__(self, sink: NsqTopic) -> None:
        self._sink = sink
        self.parcels: list[OutgoingDigest] = []

    async def deliver(self, parcel: OutgoingDigest) -> Outcome:
        self.parcels.append(parcel)
        return await self._sink.deliver(parcel)

    async def close(self) -> None:
        await self._sink.close()


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str) -> Store:
    store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)])
    await store.start()
    return store


@pytest.fixture
async def deliver_to(store: Store) -> AsyncIterator[Callable[[NsqTopic], Recording]]:
    """Begins to deliver what is in the store."""
    schedulers: list[Scheduler] = []

    def begin(sink: NsqTopic) -> Recording:
        recording = Recording(sink)
        controller = Controller(8, Curve(0.01, 0.05, jitter="none"), low)
        post = Outlet(settings_of("t"), recording, controller)
        policy = replace(usual.POLICY, minimum_delay_ms=0, maximum_delay_ms=0)
        scheduler = Scheduler(
            SchedulerSettings(interval_ms=20, lease_ms=60_000, batch=100),
            {"r": DeliveryRoute(ROUTE, Plan(policy), post)}, store, Metrics(), low,
        )  # fmt: skip
        schedulers.append(scheduler)
        scheduler.start()
        return recording

    yield begin
    for scheduler in schedulers:
        await scheduler.drain(time.monotonic() + SOON_S)


async def test_while_nsqd_is_down_the_same_bytes_are_tried_until_it_is_back(
    out: Nsqd, topic: str, make: Make, store: Store, deliver_to: Callable[[NsqTopic], Recording]
) -> None:
    out.stop()
    try:
        await add(store, rec(b"k", 1, b'{"n": 1.50}'))
        sent = deliver_to(make(out))
        await until(lambda: len(sent.parcels) > 1)
    finally:
        await asyncio.to_thread(out.start)
    (body,) = await taken(out, topic)
    assert {parcel.body for parcel in sent.parcels} == {body}
    assert b'"value":{"n": 1.50}' in body


async def test_what_is_too_large_for_nsqd_is_buried_with_its_word(
    narrow: Nsqd, make: Make, store: Store, deliver_to: Callable[[NsqTopic], Recording]
) -> None:
    await add(store, rec(b"k", 1, b'{"long":"%s"}' % (b"x" * NARROW_BYTES)))
    sent = deliver_to(make(narrow))

    async def buried() -> list[Dead]:
        return await store.dead.page(0, 0)

    (dead,) = await until(buried)
    assert (dead.details.reason, len(sent.parcels)) == (BuryReason.REFUSED, ATTEMPTS_WHEN_REFUSED)
    assert "E_BAD_MESSAGE" in dead.details.cause
    assert "--max-msg-size=" in dead.details.cause


# -- with a daemon


async def test_a_daemon_drains_and_what_its_nsqd_did_not_acknowledge_stays(stage: Stage, out: Nsqd, topic: str) -> None:
    nsqd = stage.nsqd()
    address = "{}:{}".format(*out.tcp_address)
    queue = {"type": "nsq", "nsqd_tcp_addresses": [address], "topic": topic, "timeout": "500ms"}
    daemon = stage.daemon({"sinks.queue": queue}, [{"topic": TOPIC, "timeline": "{user}", "sink": "queue"}])
    daemon.start()
    nsqd.publish(TOPIC, b'{"user":"ada", "n":1e2}')
    (body,) = await taken(out, topic)
    assert b'"value":{"user":"ada", "n":1e2}' in body
    wait_until(lambda: daemon.metric("digests_delivered_total", sink="queue") == 1)
    out.pause()
    try:
        nsqd.publish(TOPIC, b'{"user":"eve"}')
        wait_until(lambda: stage.ledger().get("snapshots") == 1)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    finally:
        out.resume()
    assert (stage.ledger()["delivered"], stage.ledger()["snapshots"], stage.unfinished()) == (1, 1, 0)
    stage.check_logs()


async def test_a_daemon_delivers_a_backlog_past_an_nsqd_that_stands_still_and_restarts(
    stage: Stage, out: Nsqd, topic: str
) -> None:
    nsqd, count = stage.nsqd(), 2_000
    address = "{}:{}".format(*out.tcp_address)
    queue = {
        "type": "nsq", "nsqd_tcp_addresses": [address], "topic": topic, "timeout": "500ms", "retry_base": "10ms",
        "retry_cap": "200ms",
    }  # fmt: skip
    daemon = stage.daemon({"sinks.queue": queue}, [{"topic": TOPIC, "timeline": "{user}", "sink": "queue"}])
    daemon.start()
    half = count // 2
    out.pause()
    nsqd.publish_many(TOPIC, [b'{"user":"u%d"}' % number for number in range(half)])
    wait_until(lambda: daemon.metric("digest_attempts_total", sink="queue", outcome="unavailable") >= 1)
    out.resume()
    wait_until(lambda: stage.ledger().get("delivered") == half)
    nsqd.publish_many(TOPIC, [b'{"user":"u%d"}' % number for number in range(half, count)])
    await asyncio.to_thread(out.restart)
    wait_until(lambda: stage.ledger().get("delivered") == count)
    daemon.stop()
    arrived = out.topic_stats(topic)["depth"]
    bodies = await taken(out, topic, arrived)
    assert len({json.loads(body)["data"]["id"] for body in bodies}) == count
    assert len(bodies) <= 2 * count
    stage.check_logs()
