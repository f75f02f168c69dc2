"""The publisher: against the real nsqd, the embedded one, and one that is told to misbehave."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from nsqdigest.base.errors import Applied, PublishError
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Tls, tls_files
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Options, Refusal
from nsqdigest.nsq import publish_rules
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.frames import FrameType, Message, frame, message_frame
from nsqdigest.nsq.negotiation import Compression
from nsqdigest.nsq.publisher import RETRY_WAITED_FOR_S, Bounds, Publisher
from support.certificates import Certificates
from support.nsqclient import NsqClient
from support.ports import HOST, free_port
from support.servers import Nsqd
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

CHANNEL = "ch"
SOON_S = 0.1
RESTS_LONG_S = 10 * PATIENCE_S
BAD_TOPIC = "bad!"
TOPICS = (f"pub-{number}" for number in itertools.count())
OPTIONS = ConnectionOptions(heartbeat_interval_ms=30_000)

Server = Nsqd | EmbeddedNsqd
Make = Callable[..., Publisher]


@pytest.fixture(scope="module")
def real_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as nsqd:
        yield nsqd
    nsqd.forget()


@pytest.fixture(scope="module")
def narrow_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """One whose operator allows less than usual."""
    with Nsqd(tmp_path_factory.mktemp("nsqd"), "--max-msg-size=1000", "--max-body-size=4000") as nsqd:
        yield nsqd
    nsqd.forget()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_nsqd(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Nsqd]:
    """TLS is required, the compressions are offered."""
    pair = certificates.server
    flags = (f"--tls-cert={pair.cert_file}", f"--tls-key={pair.key_file}", "--tls-required=tcp-https")
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *flags) as nsqd:
        yield nsqd
    nsqd.forget()


@pytest.fixture
async def embedded() -> AsyncIterator[EmbeddedNsqd]:
    async with EmbeddedNsqd(Options(shortest_ms=10)) as nsqd:
        yield nsqd


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.servers), "embedded"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue({"real": "real_nsqd", "embedded": "embedded"}[request.param])
    return found


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes publishers that the test need not end. How long an nsqd that failed is not tried is given, not drawn."""
    made: list[Publisher] = []

    def make(metrics: Metrics | None = None, retry_s: float = 0.25, **bounds: Any) -> Publisher:
        made.append(Publisher(OPTIONS, metrics, Bounds(**bounds), uniform=lambda _low, _high: retry_s * 1000))
        return made[-1]

    yield make
    for publisher in made:
        await publisher.close()


@pytest.fixture
def publisher(make: Make) -> Publisher:
    return make()


@pytest.fixture
def nothing_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nsqd refuses it (BAD_TOPIC)."""
    monkeypatch.setattr(publish_rules, "refuse_what_no_nsqd_takes", lambda _topic, _bodies: None)


def is_connected(publisher: Publisher) -> bool:
    return any(pool._in_progress for pool in publisher._pools.values())


def address_of(server: Server) -> Address:
    return Address(*server.tcp_address)


async def taken(server: Server, topic: str, count: int) -> list[bytes]:
    """The bodies that are in the topic, sorted; one more than there should be would be taken, too."""
    async with await NsqClient.connect(server.tcp_address) as client:
        await client.identify()
        await client.sub(topic, CHANNEL)
        client.rdy(count + 1)
        bodies = sorted(message.body for message in await client.take(count))
        assert client.messages == []
        return bodies


def message_count(nsqd: EmbeddedNsqd, topic: str) -> int:
    return sum(entry["message_count"] for entry in nsqd.stats(topic)["topics"])


def hang_up_on(nsqd: EmbeddedNsqd, command: str, *, at: int = 1) -> None:
    """The n-th such command is answered by the end of its connection; the others as usual."""
    numbers = itertools.count(1)

    def answer(connection: Connection, name: str, _: tuple[str, ...]) -> bytes | None:
        if name != command or next(numbers) != at:
            return None
        connection.abort()
        return b""

    nsqd.script.answer = answer


def under_way(publisher: Publisher, server: Server, topic: str, count: int, size_bytes: int = 1) -> list[Any]:
    return [
        asyncio.ensure_future(publisher.publish(address_of(server), topic, [b"x" * size_bytes])) for _ in range(count)
    ]


async def problem_of(publish: asyncio.Future[None]) -> PublishError:
    with pytest.raises(PublishError) as caught:
        await publish
    return caught.value


# -- what arrives


async def test_what_is_published_is_there(server: Server, publisher: Publisher, topic: str) -> None:
    await publisher.publish(address_of(server), topic, [b"alone"])
    await publisher.publish(address_of(server), topic, [b"two", b"three\x00\n"])
    assert await taken(server, topic, 3) == [b"alone", b"three\x00\n", b"two"]


async def test_nothing_to_publish_asks_nobody(publisher: Publisher, topic: str) -> None:
    await publisher.publish(Address(HOST, 1), topic, [])


@pytest.mark.parametrize("compression", ["none", "snappy", "deflate"])
@pytest.mark.usefixtures("nothing_refused_here")
async def test_every_kind_of_connection_publishes_and_tells_what_was_refused_from_what_stood_behind(
    tls_nsqd: Nsqd, certificates: Certificates, topic: str, compression: Compression
) -> None:
    trust = tls_files.client(Tls(ca_file=str(certificates.ca_file), cert_file="", key_file="", insecure=False))
    publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=30_000, tls=trust, compression=compression))
    bodies = [b"%02d" % number + b"x" * 1_000 for number in range(20)]
    try:
        await publisher.publish(address_of(tls_nsqd), topic, bodies[:3])
        each = await results_of(publisher, tls_nsqd, [(topic, bodies[3]), (BAD_TOPIC, b"x"), (topic, bodies[4])])
        assert codes_of(each) == ["", "E_BAD_TOPIC", ""]
        refused = asyncio.ensure_future(publisher.publish(address_of(tls_nsqd), BAD_TOPIC, [b"x"]))
        others = [asyncio.ensure_future(publisher.publish(address_of(tls_nsqd), topic, [body])) for body in bodies[5:]]
        assert (await problem_of(refused)).code == "E_BAD_TOPIC"
        await asyncio.gather(*others)
        with pytest.raises(PublishError, match="--max-msg-size=8000000"):
            await publisher.publish(address_of(tls_nsqd), topic, [os.urandom(8_000_000)])
    finally:
        await publisher.close()
    assert tls_nsqd.stats(topic)["topics"][0]["message_count"] == 20


# -- each with its own result


async def results_of(
    publisher: Publisher, server: Server, messages: list[tuple[str, bytes]]
) -> dict[int, PublishError | None]:
    results: dict[int, PublishError | None] = {}
    await publisher.publish_each(address_of(server), messages, results)
    return results


def codes_of(results: dict[int, PublishError | None]) -> list[str]:
    """nsqd's, in the order of the messages; "": acknowledged."""
    return ["" if error is None else error.code for _, error in sorted(results.items())]


async def stopped_by(
    publisher: Publisher, server: Server, messages: list[tuple[str, bytes]]
) -> tuple[PublishError, dict[int, PublishError | None]]:
    results: dict[int, PublishError | None] = {}
    with pytest.raises(PublishError) as caught:
        await publisher.publish_each(address_of(server), messages, results)
    return caught.value, results


def publishes_at(embedded: EmbeddedNsqd) -> list[list[str]]:
    """The names of the commands that publish, by connection."""
    return [[name for name, _ in connection.commands if name.endswith("PUB")] for connection in embedded.connections]


async def test_messages_to_one_topic_go_in_one_command_and_those_to_several_in_one_write(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    metrics = publisher._metrics
    messages = [(topic, b"1"), (f"{topic}-b", b"2"), (topic, b"3")]
    held = 0

    def hold(connection: Connection, name: str, _: tuple[str, ...]) -> bytes | None:
        nonlocal held
        if not name.endswith("PUB"):
            return None
        held += 1
        if held == 2:  # the second came before the first was answered
            connection.send_raw(frame(FrameType.RESPONSE, b"OK") * 2)
        return b""

    embedded.script.answer = hold
    assert await results_of(publisher, embedded, messages) == {0: None, 1: None, 2: None}
    assert publishes_at(embedded) == [["MPUB", "PUB"]]
    assert metrics.value("publishes_total", outcome="acknowledged") == 2


async def test_all_arrive_once_with_their_very_bytes(server: Server, publisher: Publisher, topic: str) -> None:
    bodies = [b"%02d\x00\n" % number for number in range(40)]
    messages = [(f"{topic}-{number % 3}", body) for number, body in enumerate(bodies)]
    assert set((await results_of(publisher, server, messages)).values()) == {None}
    for each in range(3):
        assert await taken(server, f"{topic}-{each}", len(bodies[each::3])) == bodies[each::3]


async def test_nothing_to_publish_to_anybody_asks_nobody(publisher: Publisher) -> None:
    results: dict[int, PublishError | None] = {}
    await publisher.publish_each(Address(HOST, 1), [], results)
    await publisher.publish_each(Address(HOST, 1), [("t", b""), ("no topic", b"x")], results)
    assert codes_of(results) == ["E_BAD_MESSAGE", "E_BAD_TOPIC"]


async def test_what_is_too_large_is_refused_alone(narrow_nsqd: Nsqd, publisher: Publisher, topic: str) -> None:
    bodies = [b"%02d" % number + b"x" * (1000 if number in (3, 17) else 400) for number in range(20)]
    for _ in range(2):
        results = await results_of(publisher, narrow_nsqd, [(topic, body) for body in bodies])
        assert [number for number, error in results.items() if error is not None] == [3, 17]
        error = results[3]
        assert error is not None
        assert "too big 1002 > 1000; start that nsqd with --max-msg-size=1002" in str(error)
        assert (error.code, error.applied) == ("E_BAD_MESSAGE", Applied.NO)
    fitting = [body for body in bodies if len(body) < 1000]
    assert await taken(narrow_nsqd, topic, 36) == sorted(fitting * 2)


@pytest.mark.parametrize("each", [True, False])
async def test_what_nsqd_refuses_of_others_costs_no_try(narrow_nsqd: Nsqd, make: Make, topic: str, each: bool) -> None:
    """They share a connection, which each refusal ends; what stands behind it comes again, and behind the next."""
    publisher = make(connections=1, commands=100)
    refused = asyncio.gather(*[results_of(publisher, narrow_nsqd, [(topic, b"x" * 1001)]) for _ in range(12)])
    if each:
        assert codes_of(await results_of(publisher, narrow_nsqd, [(topic, b"fits")])) == [""]
    else:
        await publisher.publish(address_of(narrow_nsqd), topic, [b"fits"])
    assert [codes_of(results) for results in await refused] == [["E_BAD_MESSAGE"]] * 12
    assert await taken(narrow_nsqd, topic, 1) == [b"fits"]


async def test_once_the_limit_is_known_what_is_beyond_it_goes_last_and_costs_others_nothing(
    narrow_nsqd: Nsqd, embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    def refuse(_: Connection, name: str, __: tuple[str, ...]) -> Refusal | None:
        return Refusal("E_BAD_MESSAGE", "MPUB message too big 9 > 3") if name == "MPUB" else None

    embedded.script.answer = refuse
    messages = [(topic, b"too large"), (topic, b"1"), (topic, b"2")]
    problem, results = await stopped_by(publisher, embedded, messages)
    assert "did not get through" in str(problem), "a limit that does not help is not tried for ever"
    assert results == {}
    embedded.script.answer = lambda _, name, __: Refusal("E_BAD_MESSAGE", "PUB too big") if name == "PUB" else None
    assert codes_of(await results_of(publisher, embedded, messages)) == ["E_BAD_MESSAGE", "", ""]
    assert publishes_at(embedded)[-1] == ["MPUB", "PUB"]


async def test_a_refusal_without_a_limit_sends_each_alone(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    embedded.script.answer = lambda _, name, __: Refusal("E_BAD_MESSAGE", "bad") if name == "MPUB" else None
    assert codes_of(await results_of(publisher, embedded, [(topic, b"1"), (topic, b"2")])) == ["", ""]
    assert publishes_at(embedded) == [["MPUB"], ["PUB", "PUB"]]


@pytest.mark.usefixtures("nothing_refused_here")
async def test_a_topic_that_nsqd_refuses_costs_the_others_nothing(
    server: Server, publisher: Publisher, topic: str
) -> None:
    bad = [f"bad{number}!" for number in range(6)]
    messages = [(name, b"%02d" % number) for number, name in enumerate([topic, *bad, f"{topic}-b", topic])]
    results = await results_of(publisher, server, messages)
    assert codes_of(results) == ["", *["E_BAD_TOPIC"] * 6, "", ""]
    assert all(f"refused a publish to {name}" in str(results[number]) for number, name in enumerate(bad, 1))
    assert await taken(server, topic, 2) == [b"00", b"08"]
    assert await taken(server, f"{topic}-b", 1) == [b"07"]
    assert publisher._metrics.value("publishes_total", outcome="refused") == 6


async def test_a_lost_answer_is_not_that_of_what_was_acknowledged_before(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(retry_s=RESTS_LONG_S)
    messages = [(topic, b"1"), (f"{topic}-b", b"2"), (f"{topic}-c", b"3"), (topic, b"4")]
    embedded.script.answer = lambda _, name, __: b"" if name.endswith("PUB") else None
    async with EmbeddedNsqd() as other:
        results: dict[int, PublishError | None] = {}
        addresses = [address_of(embedded), address_of(other)]
        publish = asyncio.ensure_future(publisher.publish_each(addresses, messages, results))
        await embedded.until(lambda: publishes_at(embedded) == [["MPUB", "PUB", "PUB"]])
        embedded.connections[0].send_raw(frame(FrameType.RESPONSE, b"OK"))
        (connection,) = publisher._pools[address_of(embedded)]._in_progress
        await until(lambda: len(connection._requests._waiting) == 2, PATIENCE_S, "the first answer")
        embedded.connections[0].abort()
        problem = await problem_of(publish)
        assert f"a publish to {topic}-b was not acknowledged, nsqd may have it or not" in str(problem)
        assert (results, problem.applied) == ({0: None, 3: None}, Applied.AMBIGUOUS)
        assert publishes_at(embedded) == [["MPUB", "PUB", "PUB"]]
        assert len(other.connections) == 0


async def test_what_one_nsqd_did_not_get_goes_to_the_next(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    """The first one acknowledges a part, then refuses whatever connects."""
    publisher = make(retry_s=RESTS_LONG_S)
    names = [topic, f"{topic}-b", f"{topic}-c"]

    def answer(_: Connection, name: str, params: tuple[str, ...]) -> Refusal | None:
        if name == "PUB" and params[0] == names[1]:
            return Refusal("E_BAD_TOPIC", "not this one")
        is_again = len(embedded.connections) > 1 and name == "IDENTIFY"
        return Refusal("E_BAD_BODY", "not today") if is_again else None

    embedded.script.answer = answer
    async with EmbeddedNsqd() as other:
        results: dict[int, PublishError | None] = {}
        addresses = [address_of(embedded), address_of(other)]
        await publisher.publish_each(addresses, [(name, b"x") for name in names], results)
        assert codes_of(results) == ["", "E_BAD_TOPIC", ""]
        assert [message_count(embedded, name) for name in names] == [1, 0, 0]
        assert [message_count(other, name) for name in names] == [0, 0, 1]


@pytest.mark.parametrize("code", ["E_AUTH_FIRST", "E_PUB_FAILED", "E_INVALID"])
async def test_a_refusal_of_more_than_one_command_ends_the_rest_at_once(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str, code: str
) -> None:
    names = [topic, f"{topic}-b", f"{topic}-c"]
    embedded.script.answer = lambda _, __, params: Refusal(code, "no") if params[:1] == (names[1],) else None
    problem, results = await stopped_by(publisher, embedded, [(name, b"x") for name in names])
    assert (problem.code, results) == (code, {0: None})
    assert publisher._metrics.value("publishes_total", outcome="refused") == 1
    assert len(embedded.connections) == 1


async def test_after_a_failure_to_store_each_is_stored_or_not(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqdigest.nsq.publisher._ALONE_AFTER_FAILURE", 3)
    messages = [(topic, b"%d" % number) for number in range(2)]
    embedded.script.answer = lambda _, name, __: Refusal("E_MPUB_FAILED", "disk") if name == "MPUB" else None
    problem, results = await stopped_by(publisher, embedded, messages)
    assert (problem.code, problem.applied, results) == ("E_MPUB_FAILED", Applied.AMBIGUOUS, {})
    embedded.script.answer = None
    for _ in range(3):
        await results_of(publisher, embedded, messages)
    assert publishes_at(embedded) == [["MPUB"], ["PUB", "PUB", "PUB", "PUB", "MPUB"]]


async def test_publishes_that_are_not_answered_end_together(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    publisher = make(acknowledged_within_s=SOON_S)
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    messages = [(topic, b"1"), (f"{topic}-b", b"2"), (topic, b"3")]
    problem, results = await stopped_by(publisher, embedded, messages)
    assert "did not answer PUB within 0.1 s" in str(problem)
    assert results == {0: None, 2: None}


async def test_a_caller_that_gives_up_takes_room_until_all_is_answered(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(commands=1)
    embedded.script.answer = lambda _, name, __: b"" if name.endswith("PUB") else None
    messages = [(topic, b"1"), (f"{topic}-b", b"2"), (topic, b"3")]
    first = asyncio.ensure_future(results_of(publisher, embedded, messages))
    await embedded.until(lambda: publishes_at(embedded) == [["MPUB", "PUB"]])
    first.cancel()
    (second,) = under_way(publisher, embedded, topic, 1)
    await asyncio.gather(first, return_exceptions=True)
    peer = embedded.connections[0]
    peer.send_raw(frame(FrameType.RESPONSE, b"OK"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), SOON_S)
    assert publishes_at(embedded) == [["MPUB", "PUB"]]
    embedded.script.answer = None
    peer.send_raw(frame(FrameType.RESPONSE, b"OK"))
    await second


# -- limits of nsqd


async def test_more_than_one_command_holds_goes_in_several(server: Server, publisher: Publisher, topic: str) -> None:
    bodies = [b"%02d" % number + b"x" * 500_000 for number in range(12)]
    await publisher.publish(address_of(server), topic, bodies)
    assert await taken(server, topic, 12) == bodies


async def test_a_limit_that_a_refusal_names_is_learned(narrow_nsqd: Nsqd, publisher: Publisher, topic: str) -> None:
    bodies = [b"%03d" % number + b"x" * 600 for number in range(40)]
    await publisher.publish(address_of(narrow_nsqd), topic, bodies)
    await publisher.publish(address_of(narrow_nsqd), topic, bodies)
    assert await taken(narrow_nsqd, topic, 80) == sorted(bodies * 2)


async def test_a_message_larger_than_nsqd_allows_names_the_option(
    narrow_nsqd: Nsqd, publisher: Publisher, topic: str
) -> None:
    with pytest.raises(PublishError, match=r"too big 1001 > 1000; start that nsqd with --max-msg-size=1001") as caught:
        await publisher.publish(address_of(narrow_nsqd), topic, [b"x" * 1001])
    assert (caught.value.code, caught.value.applied, caught.value.acknowledged) == ("E_BAD_MESSAGE", Applied.NO, 0)


async def test_a_message_that_is_far_too_large_for_the_sockets_is_refused_with_nsqds_word(
    server: Server, publisher: Publisher, topic: str
) -> None:
    with pytest.raises(PublishError, match="--max-msg-size=30000000") as caught:
        await publisher.publish(address_of(server), topic, [b"x" * 30_000_000])
    assert caught.value.applied is Applied.NO


async def test_a_command_is_taken_whole_or_not_at_all(narrow_nsqd: Nsqd, publisher: Publisher, topic: str) -> None:
    with pytest.raises(PublishError, match="--max-msg-size"):
        await publisher.publish(address_of(narrow_nsqd), topic, [b"first", b"x" * 1001])
    await publisher.publish(address_of(narrow_nsqd), topic, [b"after"])
    assert await taken(narrow_nsqd, topic, 1) == [b"after"]


async def test_what_went_before_the_failure_is_counted(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    bodies = [b"%d" % number + b"x" * 1_000_000 for number in range(9)]
    hang_up_on(embedded, "MPUB", at=2)
    with pytest.raises(PublishError) as caught:
        await publisher.publish(address_of(embedded), topic, bodies)
    assert (caught.value.acknowledged, caught.value.applied) == (5, Applied.AMBIGUOUS)
    assert message_count(embedded, topic) == 5


async def test_what_no_nsqd_takes_is_refused_before_it_is_sent(publisher: Publisher) -> None:
    nowhere = Address(HOST, 1)
    for topic, body, code in (
        ("t" * 65, b"x", "E_BAD_TOPIC"),
        ("a\nNOP", b"x", "E_BAD_TOPIC"),
        ("t", b"", "E_BAD_MESSAGE"),
    ):
        with pytest.raises(PublishError) as caught:
            await publisher.publish(nowhere, topic, [body])
        assert caught.value.code == code


# -- connections


async def test_all_publishes_to_one_nsqd_share_a_connection(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    await asyncio.gather(*(publisher.publish(address_of(embedded), topic, [b"%d" % n]) for n in range(50)))
    assert len(embedded.connections) == 1
    assert message_count(embedded, topic) == 50


async def test_busy_publishers_use_as_many_connections_as_they_may(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(connections=3)
    for _ in range(20):
        await asyncio.gather(*under_way(publisher, embedded, topic, 10))
    assert len(embedded.connections) == 3
    await publisher.publish(address_of(embedded), topic, [b"x"])
    assert message_count(embedded, topic) == 201


async def test_a_quiet_publisher_uses_one_connection_however_many_it_may(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(connections=3)
    for _ in range(10):
        await publisher.publish(address_of(embedded), topic, [b"x"])
    assert len(embedded.connections) == 1


async def test_each_nsqd_has_its_own_connection(embedded: EmbeddedNsqd, publisher: Publisher, topic: str) -> None:
    async with EmbeddedNsqd() as other:
        for nsqd in (embedded, other, embedded, other):
            await publisher.publish(address_of(nsqd), topic, [b"x"])
        assert (len(embedded.connections), len(other.connections)) == (1, 1)


async def test_a_connection_that_breaks_while_nothing_is_under_way_costs_nothing(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    await publisher.publish(address_of(embedded), topic, [b"x"])
    embedded.connections[0].abort()
    await until(lambda: not is_connected(publisher), PATIENCE_S, "the end of the connection to be noticed")
    await publisher.publish(address_of(embedded), topic, [b"x"])
    assert message_count(embedded, topic) == 2


async def test_a_restarted_nsqd_is_found_again(embedded: EmbeddedNsqd, publisher: Publisher, topic: str) -> None:
    await publisher.publish(address_of(embedded), topic, [b"x"])
    await embedded.stop()
    await until(lambda: not is_connected(publisher), PATIENCE_S, "the end of the connection to be noticed")
    assert (await problem_of(under_way(publisher, embedded, topic, 1)[0])).applied is Applied.NO
    await embedded.start()

    async def gets_through() -> bool:
        try:
            await publisher.publish(address_of(embedded), topic, [b"x"])
        except PublishError:
            return False
        return True

    await until(gets_through, PATIENCE_S, "a publish to get through")


async def test_an_nsqd_that_can_not_be_reached_is_not_knocked_at_again_at_once(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(retry_s=RESTS_LONG_S)
    embedded.script.answer = lambda *_: Refusal("E_BAD_BODY", "not today")
    problems = [await problem_of(under_way(publisher, embedded, topic, 1)[0]) for _ in range(20)]
    assert all("not today" in str(problem) for problem in problems)
    problem = problems[-1]
    assert re.search(r"tried again in \d+\.\d\d s at the earliest", str(problem))
    assert problem.applied is Applied.NO
    assert len(embedded.connections) == 1


async def test_the_end_of_a_short_rest_is_waited_for(embedded: EmbeddedNsqd, publisher: Publisher, topic: str) -> None:
    embedded.script.answer = lambda *_: Refusal("E_BAD_BODY", "not today")
    await problem_of(under_way(publisher, embedded, topic, 1)[0])
    embedded.script.answer = None
    await asyncio.gather(*under_way(publisher, embedded, topic, 5))
    assert len(embedded.connections) == 2


async def test_closed_while_it_waits_for_the_end_of_a_rest_it_tells_who_waits(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(retry_s=RETRY_WAITED_FOR_S - 0.1)
    embedded.script.answer = lambda *_: Refusal("E_BAD_BODY", "not today")
    await problem_of(under_way(publisher, embedded, topic, 1)[0])
    (publish,) = under_way(publisher, embedded, topic, 1)
    await asyncio.sleep(0)
    await publisher.close()
    assert "the publisher ends" in str(await problem_of(publish))
    assert len(embedded.connections) == 1


async def test_an_nsqd_that_hangs_up_on_each_publish_is_not_connected_to_at_once(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(retry_s=RESTS_LONG_S)
    hang_up_on(embedded, "PUB")
    assert (await problem_of(under_way(publisher, embedded, topic, 1)[0])).applied is Applied.AMBIGUOUS
    assert (await problem_of(under_way(publisher, embedded, topic, 1)[0])).applied is Applied.NO
    assert len(embedded.connections) == 1


async def test_an_nsqd_that_is_gone_is_forgotten(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    """Addresses of nsqds that move are new each time."""
    publisher = make(retry_cap_ms=1)
    await publisher.publish(address_of(embedded), topic, [b"x"])

    async def publish_to_another() -> None:
        with pytest.raises(PublishError):
            await publisher.publish(Address(HOST, free_port()), topic, [b"x"])

    for _ in range(10):
        await publish_to_another()
    await until(lambda: all(pool.retry_at_s < time.monotonic() for pool in publisher._pools.values()), what="a rest")
    await publish_to_another()
    assert len(publisher._pools) == 2
    assert address_of(embedded) in publisher._pools, "it is connected"
    await publisher.publish(address_of(embedded), topic, [b"y"])
    assert len(embedded.connections) == 1


async def test_where_no_nsqd_is_publishing_says_so(publisher: Publisher, topic: str) -> None:
    with pytest.raises(PublishError, match="Connection refused") as caught:
        await publisher.publish(Address(HOST, free_port()), topic, [b"x"])
    assert caught.value.applied is Applied.NO


async def test_messages_for_a_publisher_end_its_connection(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    peer.send_raw(message_frame(Message(b"0" * 16, 1, 1, b"x")))
    await embedded.until(lambda: not peer.open)
    await publisher.publish(address_of(embedded), topic, [b"y"])


# -- what may have happened, and what certainly did not


async def test_a_connection_lost_before_the_answer_leaves_it_open_and_nothing_is_sent_twice(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    hang_up_on(embedded, "PUB")
    with pytest.raises(PublishError, match="nsqd may have it or not") as caught:
        await publisher.publish(address_of(embedded), topic, [b"x"])
    assert (caught.value.applied, caught.value.code) == (Applied.AMBIGUOUS, "")
    assert sum(len(peer.params_of("PUB")) for peer in embedded.connections) == 1


async def test_a_publish_that_is_not_acknowledged_raises_and_its_connection_is_given_up(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(acknowledged_within_s=0.5)
    await publisher.publish(address_of(embedded), topic, [b"w"])
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    with pytest.raises(PublishError, match=r"not acknowledged.*did not answer PUB within 0\.5 s") as caught:
        await publisher.publish(address_of(embedded), topic, [b"x"])
    assert caught.value.applied is Applied.AMBIGUOUS
    embedded.script.answer = None
    await publisher.publish(address_of(embedded), topic, [b"y"])
    await embedded.until(lambda: [connection.open for connection in embedded.connections] == [False, True])


@pytest.mark.usefixtures("nothing_refused_here")
async def test_what_stood_behind_a_refused_publish_gets_through_once(
    server: Server, publisher: Publisher, topic: str
) -> None:
    """nsqd ends the connection with each refusal, and reads nothing more from it."""
    await publisher.publish(address_of(server), topic, [b"00"])
    refused = asyncio.ensure_future(publisher.publish(address_of(server), BAD_TOPIC, [b"x"]))
    others = [
        asyncio.ensure_future(publisher.publish(address_of(server), topic, [b"%02d" % number]))
        for number in range(1, 30)
    ]
    assert (await problem_of(refused)).code == "E_BAD_TOPIC"
    await asyncio.gather(*others)
    assert await taken(server, topic, 30) == [b"%02d" % number for number in range(30)]


async def test_where_nsqd_fails_while_it_queues_messages_may_be_there(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    embedded.script.answer = lambda _, name, __: Refusal("E_MPUB_FAILED", "exiting") if name == "MPUB" else None
    with pytest.raises(PublishError) as caught:
        await publisher.publish(address_of(embedded), topic, [b"x", b"y"])
    assert (caught.value.applied, caught.value.code) == (Applied.AMBIGUOUS, "E_MPUB_FAILED")


# -- several addresses


async def test_the_next_address_is_taken_where_one_can_not_be_reached(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    addresses = [Address(HOST, free_port()), address_of(embedded)]
    for _ in range(3):
        await publisher.publish(addresses, topic, [b"x"])
    assert message_count(embedded, topic) == 3


async def test_no_other_address_is_tried_when_the_first_may_have_it(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(retry_s=RESTS_LONG_S)
    hang_up_on(embedded, "PUB")
    async with EmbeddedNsqd() as other:
        with pytest.raises(PublishError):
            await publisher.publish([address_of(embedded), address_of(other)], topic, [b"x"])
        assert other.stats(topic)["topics"] == []
        await publisher.publish([address_of(embedded), address_of(other)], topic, [b"y"])
        assert message_count(other, topic) == 1


async def test_what_one_nsqd_refuses_is_not_carried_to_the_next(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    async with EmbeddedNsqd() as other:
        with pytest.raises(PublishError, match="--max-msg-size"):
            await publisher.publish([address_of(embedded), address_of(other)], topic, [b"x" * 2_000_000])
        assert len(other.connections) == 0


# -- bounds


async def test_no_more_commands_are_under_way_than_there_is_room_for(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    metrics = Metrics()
    publisher = make(metrics, commands=3)
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    publishes = under_way(publisher, embedded, topic, 10)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 4)
    assert metrics.total("publish_waits_total") == 7
    peer.send_raw(frame(FrameType.RESPONSE, b"OK") * 2)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 6)
    embedded.script.answer = None
    peer.send_raw(frame(FrameType.RESPONSE, b"OK") * 3)
    await asyncio.gather(*publishes)
    assert len(peer.params_of("PUB")) == 11


async def test_no_more_bytes_are_under_way_than_there_is_room_for(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(size_bytes=2_500)
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    publishes = under_way(publisher, embedded, topic, 4, size_bytes=1_000)
    # Larger than all the room there is: it goes when nothing else does.
    publishes += under_way(publisher, embedded, topic, 1, size_bytes=9_000)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 3)
    peer.send_raw(frame(FrameType.RESPONSE, b"OK") * 2)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 5)
    embedded.script.answer = None
    peer.send_raw(frame(FrameType.RESPONSE, b"OK") * 2)
    await asyncio.gather(*publishes)


async def test_a_wait_for_room_that_takes_too_long_says_what_is_in_the_way(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(commands=1, admitted_within_s=SOON_S)
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    first, second = under_way(publisher, embedded, topic, 2)
    problem = await problem_of(second)
    assert f"a publish of {len(topic) + 10} bytes to {topic} waited 0.1 s and was not sent: 1 commands" in str(problem)
    assert problem.applied is Applied.NO
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_who_gives_up_waiting_makes_way_for_the_next(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    publisher = make(size_bytes=2_500)
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    small, large, next_small = (
        under_way(publisher, embedded, topic, 1, size_bytes=size)[0] for size in (900, 2_000, 900)
    )
    await embedded.until(lambda: len(peer.params_of("PUB")) == 2)
    large.cancel()
    await embedded.until(lambda: len(peer.params_of("PUB")) == 3)
    peer.send_raw(frame(FrameType.RESPONSE, b"OK") * 2)
    await asyncio.gather(small, next_small)


async def test_the_room_of_a_cancelled_publish_is_taken_until_nsqd_has_answered(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    publisher = make(commands=1)
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    first, second = under_way(publisher, embedded, topic, 2)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert len(peer.params_of("PUB")) == 2
    embedded.script.answer = None
    peer.send_raw(frame(FrameType.RESPONSE, b"OK"))
    await second
    assert len(peer.params_of("PUB")) == 3


# -- the end


async def nothing_is_left(before: set[asyncio.Task[Any]]) -> None:
    await until(lambda: asyncio.all_tasks() == before, PATIENCE_S, "every task to end")


async def test_closed_it_leaves_no_connection_and_no_task(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    before = asyncio.all_tasks()
    publisher = make(connections=2)
    await asyncio.gather(*under_way(publisher, embedded, topic, 20))
    await publisher.close()
    await embedded.until(lambda: not any(connection.open for connection in embedded.connections))
    await nothing_is_left(before)
    with pytest.raises(PublishError, match="the publisher ends"):
        await publisher.publish(address_of(embedded), topic, [b"x"])


async def test_closed_while_it_connects_it_tells_who_waits(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    before = asyncio.all_tasks()
    publisher = make()
    embedded.script.answer = lambda _, name, __: b"" if name == "IDENTIFY" else None
    publishes = under_way(publisher, embedded, topic, 3)
    await embedded.until(lambda: embedded.connections and embedded.connections[0].commands)
    await publisher.close()
    for publish in publishes:
        problem = await problem_of(publish)
        assert (str(problem), problem.applied) == ("the publisher ends: nothing was sent", Applied.NO)
    await embedded.until(lambda: not embedded.connections[0].open)
    await nothing_is_left(before)


async def test_closed_it_gives_what_is_under_way_a_moment(embedded: EmbeddedNsqd, make: Make, topic: str) -> None:
    publisher = make(commands=1)
    await publisher.publish(address_of(embedded), topic, [b"x"])
    peer = embedded.connections[0]
    embedded.script.answer = lambda _, name, __: b"" if name == "PUB" else None
    first, second = under_way(publisher, embedded, topic, 2)
    await embedded.until(lambda: len(peer.params_of("PUB")) == 2)
    closing = asyncio.ensure_future(publisher.close())
    assert (await problem_of(second)).applied is Applied.NO
    peer.send_raw(frame(FrameType.RESPONSE, b"OK"))
    await first
    await closing


async def test_closed_it_does_not_wait_for_an_nsqd_that_stands_still(
    embedded: EmbeddedNsqd, make: Make, topic: str
) -> None:
    before = asyncio.all_tasks()
    publisher = make()
    await publisher.publish(address_of(embedded), topic, [b"x"])
    embedded.freeze()
    (publish,) = under_way(publisher, embedded, topic, 1)
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await publisher.close()
    assert (await problem_of(publish)).applied is Applied.AMBIGUOUS
    embedded.thaw()
    await nothing_is_left(before)


async def test_a_caller_that_gives_up_leaves_the_connection_to_the_others(
    embedded: EmbeddedNsqd, publisher: Publisher, topic: str
) -> None:
    embedded.script.answer = lambda _, name, __: b"" if name == "IDENTIFY" else None
    first, second = under_way(publisher, embedded, topic, 2)
    await embedded.until(lambda: embedded.connections and embedded.connections[0].commands)
    first.cancel()
    embedded.script.answer = None
    embedded.connections[0].send_raw(frame(FrameType.RESPONSE, b"{}"))
    await second
    assert first.cancelled()
    assert message_count(embedded, topic) == 1
