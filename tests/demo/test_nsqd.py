"""The embedded nsqd against the real one: every test of the contract runs against both.

nsqd looks at the timeouts of a channel only from up to 5 s after it was made, so the channels whose tests wait for a
timeout or a delay are made with the server.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from nsq import protocol

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Options, Refusal
from nsqdigest.nsq import commands
from nsqdigest.nsq.frames import FrameType, frame
from support.nsqclient import NsqClient
from support.servers import Nsqd
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

MAX_MSG_BYTES = 1 << 20
CHANNEL = "ch"
TIMED_TOPICS = ("late", "touched", "left", "deferred", "postponed")
UNKNOWN_ID = b"0123456789abcdef"
TOPICS = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def real_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd"), "--snappy=false", "--deflate=false") as nsqd:
        for name in TIMED_TOPICS:
            nsqd.create_channel(name, CHANNEL)
        yield nsqd
    nsqd.forget()


@pytest.fixture
async def embedded() -> AsyncIterator[EmbeddedNsqd]:
    async with EmbeddedNsqd() as nsqd:
        yield nsqd


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.servers), "embedded"])
def server(request: pytest.FixtureRequest) -> Nsqd | EmbeddedNsqd:
    name = {"real": "real_nsqd", "embedded": "embedded"}[request.param]
    found: Nsqd | EmbeddedNsqd = request.getfixturevalue(name)
    return found


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


@pytest.fixture
async def connect(server: Nsqd | EmbeddedNsqd) -> AsyncIterator[Callable[[], Awaitable[NsqClient]]]:
    clients: list[NsqClient] = []

    async def connect_one() -> NsqClient:
        clients.append(await NsqClient.connect(server.tcp_address))
        return clients[-1]

    yield connect_one
    for client in clients:
        await client.close()


@pytest.fixture
async def client(connect: Callable[[], Awaitable[NsqClient]]) -> NsqClient:
    return await connect()


Connect = Callable[[], Awaitable[NsqClient]]
Server = Nsqd | EmbeddedNsqd


async def http(server: Server, method: str, path: str, body: bytes = b"", **query: str) -> tuple[int, Any]:
    """Status, and the JSON or text of the answer."""
    host, port = server.http_address
    async with (
        aiohttp.ClientSession(f"http://{host}:{port}") as session,
        # Asked first, because nsqd refuses a body that is too large by its announced length, and hangs up on the rest.
        session.request(method, path, params=query, data=io.BytesIO(body), expect100=bool(body)) as response,
    ):
        answer = await (response.json() if response.content_type == "application/json" else response.text())
        return response.status, answer


async def stats_of(server: Server, topic: str, channel: str = CHANNEL) -> dict[str, Any]:
    _, stats = await http(server, "GET", "/stats", format="json", topic=topic, channel=channel)
    found: dict[str, Any] = stats["topics"][0]["channels"][0]
    return found


async def in_stats(server: Server, topic: str, **wanted: object) -> None:
    async def hold() -> bool:
        stats = await stats_of(server, topic)
        return all(stats[name] == value for name, value in wanted.items())

    await until(hold, timeout_s=PATIENCE_S, what=f"stats of {topic} to be {wanted}")


def sized(size: int) -> bytes:
    return struct.pack(">i", size)


def identify(**fields: object) -> bytes:
    return protocol.identify(fields)  # type: ignore[no-any-return]


# -- the handshake


async def test_identify_answers_with_what_was_negotiated(client: NsqClient) -> None:
    assert await client.identify(
        heartbeat_interval=5_000, output_buffer_size=64, output_buffer_timeout=25, msg_timeout=2_000, sample_rate=0
    ) == {
        "max_rdy_count": 2_500,
        "version": "1.3.0",
        "max_msg_timeout": 900_000,
        "msg_timeout": 2_000,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 6,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 64,
        "output_buffer_timeout": 25,
    }


async def test_identify_offers_no_upgrade_that_it_cannot_do(client: NsqClient) -> None:
    answer = await client.identify(tls_v1=True, snappy=True, deflate=True, deflate_level=3, unknown_field=[1])
    assert (answer["tls_v1"], answer["snappy"], answer["deflate"]) == (False, False, False)


async def test_identify_keeps_its_defaults_where_nothing_is_asked(client: NsqClient) -> None:
    answer = await client.identify()
    assert (answer["msg_timeout"], answer["output_buffer_size"], answer["output_buffer_timeout"]) == (
        60_000,
        16_384,
        250,
    )


async def test_minus_one_turns_output_buffering_off(client: NsqClient) -> None:
    answer = await client.identify(output_buffer_size=-1)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


async def test_identify_without_feature_negotiation_answers_ok(client: NsqClient) -> None:
    client.send(identify(client_id="me"))
    assert await client.response() == b"OK"


async def test_identify_may_come_again_before_sub(client: NsqClient) -> None:
    await client.identify(msg_timeout=2_000)
    assert (await client.identify())["msg_timeout"] == 2_000


# -- what ends a connection, and with which word

FATAL_AT_FIRST = {
    "unknown command": (b"HELLO\n", "E_INVALID"),
    "empty line": (b"\n", "E_INVALID"),
    "small letters": (b"nop\n", "E_INVALID"),
    "RDY before SUB": (b"RDY 1\n", "E_INVALID"),
    "FIN before SUB": (b"FIN " + UNKNOWN_ID + b"\n", "E_INVALID"),
    "REQ before SUB": (b"REQ " + UNKNOWN_ID + b" 0\n", "E_INVALID"),
    "TOUCH before SUB": (b"TOUCH " + UNKNOWN_ID + b"\n", "E_INVALID"),
    "CLS before SUB": (b"CLS\n", "E_INVALID"),
    "SUB without names": (b"SUB\n", "E_INVALID"),
    "SUB without a channel": (b"SUB topic\n", "E_INVALID"),
    "SUB to a bad topic": (b"SUB to*pic ch\n", "E_BAD_TOPIC"),
    "SUB to a topic of 65 characters": (b"SUB " + b"t" * 65 + b" ch\n", "E_BAD_TOPIC"),
    "SUB to a bad channel": (b"SUB topic c*h\n", "E_BAD_CHANNEL"),
    "SUB to a channel without a name": (b"SUB topic \n", "E_BAD_CHANNEL"),
    "SUB to a name that is not UTF-8": (b"SUB \xff ch\n", "E_BAD_TOPIC"),
    "SUB without heartbeats": (identify(heartbeat_interval=-1) + b"SUB topic ch\n", "E_INVALID"),
    "PUB without a topic": (b"PUB\n", "E_INVALID"),
    "PUB to a bad topic": (b"PUB to*pic\n", "E_BAD_TOPIC"),
    "PUB of nothing": (b"PUB topic\n" + sized(0), "E_BAD_MESSAGE"),
    "PUB of a negative size": (b"PUB topic\n" + sized(-1), "E_BAD_MESSAGE"),
    "PUB of too much": (b"PUB topic\n" + sized(MAX_MSG_BYTES + 1), "E_BAD_MESSAGE"),
    "MPUB without a topic": (b"MPUB\n", "E_INVALID"),
    "MPUB to a bad topic": (b"MPUB to*pic\n", "E_BAD_TOPIC"),
    "MPUB of nothing": (b"MPUB topic\n" + sized(0), "E_BAD_BODY"),
    "MPUB of too much": (b"MPUB topic\n" + sized(5 * MAX_MSG_BYTES + 1), "E_BAD_BODY"),
    "MPUB of no message": (b"MPUB topic\n" + sized(4) + sized(0), "E_BAD_BODY"),
    "MPUB of more messages than fit": (b"MPUB topic\n" + sized(4) + sized(2_000_000), "E_BAD_BODY"),
    "MPUB of an empty message": (b"MPUB topic\n" + sized(8) + sized(1) + sized(0), "E_BAD_MESSAGE"),
    "MPUB of too large a message": (b"MPUB topic\n" + sized(8) + sized(1) + sized(MAX_MSG_BYTES + 1), "E_BAD_MESSAGE"),
    "DPUB without a delay": (b"DPUB topic\n", "E_INVALID"),
    "DPUB to a bad topic": (b"DPUB to*pic 1\n", "E_BAD_TOPIC"),
    "DPUB with words for a delay": (b"DPUB topic soon\n", "E_INVALID"),
    "DPUB beyond max-req-timeout": (b"DPUB topic 3600001\n", "E_INVALID"),
    "DPUB of nothing": (b"DPUB topic 1\n" + sized(0), "E_BAD_MESSAGE"),
    "AUTH": (b"AUTH\n" + sized(6) + b"secret", "E_AUTH_DISABLED"),
    "AUTH with a parameter": (b"AUTH now\n", "E_INVALID"),
    "AUTH of nothing": (b"AUTH\n" + sized(0), "E_BAD_BODY"),
    "IDENTIFY of nothing": (b"IDENTIFY\n" + sized(0), "E_BAD_BODY"),
    "IDENTIFY of too much": (b"IDENTIFY\n" + sized(5 * MAX_MSG_BYTES + 1), "E_BAD_BODY"),
    "IDENTIFY not JSON": (b"IDENTIFY\n" + sized(3) + b"{]}", "E_BAD_BODY"),
    "IDENTIFY not an object": (b"IDENTIFY\n" + sized(2) + b"[]", "E_BAD_BODY"),
    "IDENTIFY with a word for a number": (identify(heartbeat_interval="1s"), "E_BAD_BODY"),
    "heartbeat below 1 s": (identify(heartbeat_interval=999), "E_BAD_BODY"),
    "heartbeat above 60 s": (identify(heartbeat_interval=60_001), "E_BAD_BODY"),
    "heartbeat below -1": (identify(heartbeat_interval=-2), "E_BAD_BODY"),
    "output buffer below 64 bytes": (identify(output_buffer_size=63), "E_BAD_BODY"),
    "output buffer above 64 KiB": (identify(output_buffer_size=65_537), "E_BAD_BODY"),
    "output buffer timeout below 25 ms": (identify(output_buffer_timeout=24), "E_BAD_BODY"),
    "output buffer timeout above 30 s": (identify(output_buffer_timeout=30_001), "E_BAD_BODY"),
    "sample rate of 100": (identify(sample_rate=100), "E_BAD_BODY"),
    "sample rate below 0": (identify(sample_rate=-1), "E_BAD_BODY"),
    "message timeout below 1 s": (identify(msg_timeout=999), "E_BAD_BODY"),
    "message timeout above 15 min": (identify(msg_timeout=900_001), "E_BAD_BODY"),
}

FATAL_WHEN_SUBSCRIBED = {
    "RDY above 2500": (b"RDY 2501\n", "E_INVALID"),
    "RDY below 0": (b"RDY -1\n", "E_INVALID"),
    "RDY of a word": (b"RDY all\n", "E_INVALID"),
    "FIN without an id": (b"FIN\n", "E_INVALID"),
    "FIN of a short id": (b"FIN abc\n", "E_INVALID"),
    "REQ without a delay": (b"REQ " + UNKNOWN_ID + b"\n", "E_INVALID"),
    "REQ with a word for a delay": (b"REQ " + UNKNOWN_ID + b" soon\n", "E_INVALID"),
    "TOUCH without an id": (b"TOUCH\n", "E_INVALID"),
    "SUB again": (b"SUB topic ch\n", "E_INVALID"),
    "IDENTIFY after SUB": (identify(), "E_INVALID"),
    "AUTH after SUB": (b"AUTH\n", "E_INVALID"),
}


@pytest.mark.parametrize(("sent", "code"), FATAL_AT_FIRST.values(), ids=FATAL_AT_FIRST)
async def test_refused_and_closed(client: NsqClient, sent: bytes, code: str) -> None:
    client.send(sent)
    assert await client.error() == code
    await client.end()


@pytest.mark.parametrize(("sent", "code"), FATAL_WHEN_SUBSCRIBED.values(), ids=FATAL_WHEN_SUBSCRIBED)
async def test_refused_and_closed_when_subscribed(client: NsqClient, topic: str, sent: bytes, code: str) -> None:
    await client.sub(topic, CHANNEL)
    client.send(sent)
    assert await client.error() == code
    await client.end()


async def test_another_magic_is_refused_and_closed(server: Server) -> None:
    async with await NsqClient.connect(server.tcp_address, magic=b"  V1") as client:
        assert await client.error() == "E_BAD_PROTOCOL"
        await client.end()


async def test_a_line_without_an_end_is_cut_off_without_a_word(client: NsqClient) -> None:
    client.send(b"x" * 16 * 1024)
    await client.end()
    assert client.errors == []


async def test_nothing_behind_a_fatal_error_is_carried_out(server: Server, client: NsqClient, topic: str) -> None:
    client.send(b"HELLO\n" + protocol.pub(topic, b"lost") + b"HELLO\n")
    assert await client.error() == "E_INVALID"
    await client.end()
    assert (client.errors, client.responses) == ([], [])
    _, stats = await http(server, "GET", "/stats", format="json", topic=topic)
    assert not stats["topics"]


async def test_who_stops_sending_still_gets_the_answer(client: NsqClient, topic: str) -> None:
    client.send(protocol.pub(topic, b"last words"))
    client.half_close()
    assert await client.response() == b"OK"
    await client.end()


@pytest.mark.parametrize("command", [b"FIN %s\n", b"REQ %s 0\n", b"TOUCH %s\n"])
async def test_the_failure_of_fin_req_and_touch_keeps_the_connection(
    client: NsqClient, topic: str, command: bytes
) -> None:
    await client.sub(topic, CHANNEL)
    client.send(command % UNKNOWN_ID)
    assert await client.error() == f"E_{command[:-1].split()[0].decode()}_FAILED"
    await client.pub(topic, b"still here")
    client.rdy(1)
    (message,) = await client.take()
    assert message.body == b"still here"


async def test_only_who_it_was_delivered_to_may_finish_a_message(connect: Connect, topic: str) -> None:
    owner, other = await connect(), await connect()
    await owner.sub(topic, CHANNEL)
    await other.sub(topic, CHANNEL)
    owner.rdy(1)
    await owner.pub(topic, b"mine")
    (message,) = await owner.take()
    other.fin(message)
    assert await other.error() == "E_FIN_FAILED"


# -- messages


async def test_a_message_comes_as_it_was_published(client: NsqClient, topic: str) -> None:
    before_ns = time.time_ns()
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, b"\x00\n one \xff")
    (message,) = await client.take()
    assert message.body == b"\x00\n one \xff"
    assert message.attempts == 1
    assert before_ns <= message.timestamp_ns <= time.time_ns()
    assert len(message.id) == 16
    int(message.id, 16)


async def test_mpub_publishes_each_under_its_own_id(client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(100)
    bodies = [b"%d" % number for number in range(100)]
    await client.pub(topic, *bodies)
    messages = await client.take(100)
    assert sorted(message.body for message in messages) == sorted(bodies)
    assert len({message.id for message in messages}) == 100


async def test_the_largest_message_passes(client: NsqClient, topic: str) -> None:
    body = bytes(range(256)) * (MAX_MSG_BYTES // 256)
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, body)
    (message,) = await client.take()
    assert message.body == body


async def test_lines_may_end_in_crlf(client: NsqClient, topic: str) -> None:
    client.send(f"SUB {topic} {CHANNEL}\r\n".encode())
    assert await client.response() == b"OK"


async def test_the_first_channel_gets_what_was_published_before_it(client: NsqClient, topic: str) -> None:
    await client.pub(topic, b"early", b"bird")
    await client.sub(topic, CHANNEL)
    client.rdy(2)
    assert {message.body for message in await client.take(2)} == {b"early", b"bird"}


async def test_each_channel_gets_every_message(connect: Connect, topic: str) -> None:
    one, two = await connect(), await connect()
    await one.sub(topic, "one")
    await two.sub(topic, "two")
    await one.pub(topic, b"a", b"b")
    for client in (one, two):
        client.rdy(2)
        messages = await client.take(2)
        assert {message.body for message in messages} == {b"a", b"b"}
        assert {message.attempts for message in messages} == {1}


async def test_the_clients_of_a_channel_share_its_messages(server: Server, connect: Connect, topic: str) -> None:
    one, two = await connect(), await connect()
    for client in (one, two):
        await client.sub(topic, CHANNEL)
        client.rdy(5)
    await one.pub(topic, *(b"%d" % number for number in range(10)))
    messages = [*await one.take(5), *await two.take(5)]
    assert len({message.id for message in messages}) == 10


async def test_an_ephemeral_channel_goes_with_its_last_client(server: Server, client: NsqClient, topic: str) -> None:
    await client.sub(topic, "ch#ephemeral")
    await client.close()

    async def gone() -> bool:
        _, stats = await http(server, "GET", "/stats", format="json", topic=topic)
        return not stats["topics"][0]["channels"]

    await until(gone)


# -- RDY


async def test_rdy_is_a_ceiling_on_what_is_in_flight(server: Server, client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(2)
    await client.pub(topic, *(b"%d" % number for number in range(5)))
    first, second = await client.take(2)
    await in_stats(server, topic, depth=3, in_flight_count=2)
    client.fin(first)
    (third,) = await client.take()
    await in_stats(server, topic, depth=2, in_flight_count=2)
    client.send(commands.fin([second.id, third.id]))
    assert len(await client.take(2)) == 2
    assert client.messages == []


async def test_nothing_comes_before_rdy_or_after_rdy_0(server: Server, client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    await client.pub(topic, b"a", b"b", b"c")
    await in_stats(server, topic, depth=3, in_flight_count=0)
    client.rdy(1)
    (message,) = await client.take()
    client.rdy(0)
    client.fin(message)
    await in_stats(server, topic, depth=2, in_flight_count=0)
    assert client.messages == []


async def test_a_lower_rdy_than_what_is_in_flight_holds_the_rest_back(
    server: Server, client: NsqClient, topic: str
) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(2)
    await client.pub(topic, b"a", b"b", b"c")
    first, second = await client.take(2)
    client.rdy(1)
    client.fin(first)
    await in_stats(server, topic, depth=1, in_flight_count=1)
    client.fin(second)
    assert len(await client.take()) == 1


async def test_a_raised_rdy_delivers_at_once(client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, b"a", b"b", b"c")
    await client.take()
    client.rdy(2_500)
    await client.take(2)


async def test_rdy_without_a_count_is_1(client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    client.send(b"RDY\n")
    await client.pub(topic, b"a", b"b")
    await client.take()
    assert client.messages == []


# -- requeueing


async def test_req_0_brings_a_message_back_at_once_as_another_attempt(
    server: Server, client: NsqClient, topic: str
) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, b"again")
    for attempt in (1, 2, 3):
        (message,) = await client.take()
        assert (message.body, message.attempts) == (b"again", attempt)
        client.req(message)
    await client.take()
    stats = await stats_of(server, topic)
    assert (stats["requeue_count"], stats["message_count"]) == (3, 1)


async def test_req_defers_by_its_delay(server: Server, client: NsqClient) -> None:
    await client.sub("postponed", CHANNEL)
    client.rdy(1)
    await client.pub("postponed", b"later")
    (first,) = await client.take()
    requeued_at = time.monotonic()
    client.req(first, delay_ms=300)
    await in_stats(server, "postponed", deferred_count=1, in_flight_count=0, depth=0)
    (again,) = await client.take()
    assert time.monotonic() - requeued_at >= 0.29
    assert (again.id, again.timestamp_ns, again.attempts) == (first.id, first.timestamp_ns, 2)
    client.fin(again)


async def test_a_delay_beyond_max_req_timeout_is_cut_without_a_word(
    server: Server, client: NsqClient, topic: str
) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, b"much later")
    (message,) = await client.take()
    client.req(message, delay_ms=4_000_000)
    await in_stats(server, topic, deferred_count=1, in_flight_count=0)
    assert client.errors == []


async def test_dpub_holds_a_message_back_for_its_delay(server: Server, client: NsqClient) -> None:
    await client.sub("deferred", CHANNEL)
    client.rdy(1)
    published_at = time.monotonic()
    client.send(protocol.dpub("deferred", 300, b"later"))
    assert await client.response() == b"OK"
    await in_stats(server, "deferred", deferred_count=1, depth=0)
    (message,) = await client.take()
    assert time.monotonic() - published_at >= 0.29
    assert (message.body, message.attempts) == (b"later", 1)
    client.fin(message)


async def test_what_is_not_finished_in_time_is_no_longer_the_clients(server: Server, client: NsqClient) -> None:
    await client.identify(msg_timeout=1_000)
    await client.sub("late", CHANNEL)
    client.rdy(1)
    await client.pub("late", b"slow")
    (first,) = await client.take()
    taken_at = time.monotonic()
    client.rdy(0)
    await in_stats(server, "late", in_flight_count=1, timeout_count=0)
    await in_stats(server, "late", in_flight_count=0, depth=1, timeout_count=1)
    assert time.monotonic() - taken_at >= 0.95
    client.fin(first)
    assert await client.error() == "E_FIN_FAILED"
    client.rdy(1)
    (again,) = await client.take()
    assert (again.id, again.attempts) == (first.id, 2)
    client.fin(again)


async def test_touch_puts_the_timeout_off(client: NsqClient) -> None:
    await client.identify(msg_timeout=1_000)
    await client.sub("touched", CHANNEL)
    client.rdy(2)
    await client.pub("touched", b"a", b"b")
    left, touched = await client.take(2)
    returned = asyncio.ensure_future(client.take())
    while not returned.done():
        client.touch(touched)
        await asyncio.wait([returned], timeout=0.1)
    (again,) = returned.result()
    assert (again.id, again.attempts) == (left.id, 2)
    client.send(commands.fin([again.id, touched.id]))
    await client.pub("touched", b"barrier")
    (barrier,) = await client.take()
    assert barrier.body == b"barrier"
    assert client.errors == []
    client.fin(barrier)


async def test_a_disconnect_requeues_nothing_until_the_timeout(server: Server, connect: Connect) -> None:
    leaving = await connect()
    await leaving.identify(msg_timeout=1_000)
    await leaving.sub("left", CHANNEL)
    leaving.rdy(3)
    await leaving.pub("left", b"a", b"b", b"c")
    taken = {message.id for message in await leaving.take(3)}
    taken_at = time.monotonic()
    await leaving.close()
    await in_stats(server, "left", client_count=0, in_flight_count=3, depth=0)
    staying = await connect()
    await staying.sub("left", CHANNEL)
    staying.rdy(3)
    returned = await staying.take(3)
    assert time.monotonic() - taken_at >= 0.95
    assert {(message.id, message.attempts) for message in returned} == {(message_id, 2) for message_id in taken}
    staying.send(commands.fin(list(taken)))
    await in_stats(server, "left", in_flight_count=0)


# -- the end of a connection


async def test_cls_is_answered_and_stops_new_messages_but_takes_fin_and_req(
    server: Server, client: NsqClient, topic: str
) -> None:
    await client.sub(topic, CHANNEL)
    client.rdy(3)
    await client.pub(topic, b"a", b"b", b"c")
    first, second, third = await client.take(3)
    client.cls()
    assert await client.response() == b"CLOSE_WAIT"
    client.rdy(5)
    client.fin(first)
    client.touch(second)
    client.req(second)
    client.req(third)
    await in_stats(server, topic, depth=2, in_flight_count=0, requeue_count=2)
    client.half_close()
    await client.end()
    assert (client.messages, client.errors) == ([], [])
    await in_stats(server, topic, depth=2, in_flight_count=0, client_count=0)


async def test_a_second_cls_is_refused(client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    client.cls()
    client.cls()
    assert await client.response() == b"CLOSE_WAIT"
    assert await client.error() == "E_INVALID"
    await client.end()


async def test_who_leaves_two_heartbeats_unanswered_is_cut_off(connect: Connect, topic: str) -> None:
    silent, alive = await connect(), await connect()
    silent_since = time.monotonic()
    for client in (silent, alive):
        await client.identify(heartbeat_interval=1_000)
        await client.sub(topic, CHANNEL)

    async def answer_heartbeats() -> None:
        while True:
            await alive.heartbeat()
            alive.send(b"NOP\n")

    answering = asyncio.ensure_future(answer_heartbeats())
    await silent.end()
    answering.cancel()
    await asyncio.wait([answering])
    assert time.monotonic() - silent_since >= 1.9
    assert 1 <= silent.heartbeats <= 2
    await alive.pub(topic, b"still here")


# -- HTTP


async def test_ping(server: Server) -> None:
    assert await http(server, "GET", "/ping") == (200, "OK")


async def test_http_publishes_one_or_many(server: Server, client: NsqClient, topic: str) -> None:
    binary = sized(2) + sized(3) + b"x\ny" + sized(1) + b"z"
    assert await http(server, "POST", "/pub", b"one", topic=topic) == (200, "OK")
    assert await http(server, "POST", "/mpub", b"two\n\nthree\n", topic=topic) == (200, "OK")
    assert await http(server, "POST", "/mpub", binary, topic=topic, binary="true") == (200, "OK")
    assert await http(server, "POST", "/pub", b"much later", topic=topic, defer="60000") == (200, "OK")
    await client.sub(topic, CHANNEL)
    client.rdy(10)
    assert {message.body for message in await client.take(5)} == {b"one", b"two", b"three", b"x\ny", b"z"}
    await in_stats(server, topic, deferred_count=1)


HTTP_PROBLEMS = [
    ("POST", "/pub", b"", {"topic": "problems"}, (400, "MSG_EMPTY")),
    ("POST", "/pub", b"x" * (MAX_MSG_BYTES + 1), {"topic": "problems"}, (413, "MSG_TOO_BIG")),
    ("POST", "/pub", b"x", {}, (400, "MISSING_ARG_TOPIC")),
    ("POST", "/pub", b"x", {"topic": "bad*"}, (400, "INVALID_TOPIC")),
    ("POST", "/pub", b"x", {"topic": "problems", "defer": "soon"}, (400, "INVALID_DEFER")),
    ("POST", "/mpub", b"x" * (MAX_MSG_BYTES + 1), {"topic": "problems"}, (413, "MSG_TOO_BIG")),
    ("POST", "/mpub", b"x" * (5 * MAX_MSG_BYTES + 1), {"topic": "problems"}, (413, "BODY_TOO_BIG")),
    ("POST", "/mpub", sized(0), {"topic": "problems", "binary": "true"}, (413, "BAD_BODY")),
    ("POST", "/mpub", sized(1) + sized(0), {"topic": "problems", "binary": "true"}, (413, "BAD_MESSAGE")),
    ("POST", "/topic/create", b"", {}, (400, "MISSING_ARG_TOPIC")),
    ("POST", "/channel/create", b"", {"topic": "problems"}, (400, "MISSING_ARG_CHANNEL")),
    ("POST", "/channel/create", b"", {"topic": "not-there", "channel": "ch"}, (404, "TOPIC_NOT_FOUND")),
    ("POST", "/channel/pause", b"", {"topic": "not-there", "channel": "ch"}, (404, "TOPIC_NOT_FOUND")),
    ("GET", "/pub", b"", {"topic": "problems"}, (405, "METHOD_NOT_ALLOWED")),
    ("GET", "/nothing", b"", {}, (404, "NOT_FOUND")),
]


@pytest.mark.parametrize("problem", HTTP_PROBLEMS, ids=[f"{path} {word}" for _, path, _, _, (_, word) in HTTP_PROBLEMS])
async def test_http_problems_have_nsqds_words(
    server: Server, problem: tuple[str, str, bytes, dict[str, str], tuple[int, str]]
) -> None:
    method, path, body, query, (status, word) = problem
    assert await http(server, method, path, body, **query) == (status, {"message": word})


async def test_a_paused_channel_delivers_nothing_until_it_goes_on(
    server: Server, client: NsqClient, topic: str
) -> None:
    assert (await http(server, "POST", "/topic/create", topic=topic))[0] == 200
    assert (await http(server, "POST", "/channel/create", topic=topic, channel=CHANNEL))[0] == 200
    assert (await http(server, "POST", "/channel/pause", topic=topic, channel=CHANNEL))[0] == 200
    await client.sub(topic, CHANNEL)
    client.rdy(1)
    await client.pub(topic, b"held")
    await in_stats(server, topic, paused=True, depth=1, in_flight_count=0)
    assert (await http(server, "POST", "/channel/unpause", topic=topic, channel=CHANNEL))[0] == 200
    (message,) = await client.take()
    assert message.body == b"held"
    assert (await stats_of(server, topic))["paused"] is False


async def test_stats_count_what_happened(server: Server, client: NsqClient, topic: str) -> None:
    await client.identify(client_id="me", hostname="here", user_agent="test/1")
    await client.sub(topic, CHANNEL)
    client.rdy(3)
    await client.pub(topic, *(b"%d" % number for number in range(6)))
    first, second, _ = await client.take(3)
    client.rdy(1)
    client.fin(first)
    client.req(second)
    await in_stats(server, topic, in_flight_count=1, requeue_count=1)
    stats = await stats_of(server, topic)
    counts = {name: value for name, value in stats.items() if isinstance(value, int)}
    assert counts == {
        "depth": 4,
        "backend_depth": 0,
        "in_flight_count": 1,
        "deferred_count": 0,
        "message_count": 6,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": 1,
        "paused": False,
    }
    (one,) = stats["clients"]
    expected = {
        "client_id": "me",
        "hostname": "here",
        "version": "V2",
        "state": 3,
        "ready_count": 1,
        "in_flight_count": 1,
        "message_count": 3,
        "finish_count": 1,
        "requeue_count": 1,
        "user_agent": "test/1",
    }
    assert expected.items() <= one.items()
    assert abs(one["connect_ts"] - time.time()) < 60
    assert one["remote_address"].startswith("127.0.0.1:")
    _, whole = await http(server, "GET", "/stats", format="json", topic=topic)
    assert (whole["version"], whole["health"]) == ("1.3.0", "OK")
    of_topic = {name: whole["topics"][0][name] for name in ("topic_name", "depth", "message_count", "message_bytes")}
    assert of_topic == {"topic_name": topic, "depth": 0, "message_count": 6, "message_bytes": 6}


async def test_stats_can_leave_clients_out(server: Server, client: NsqClient, topic: str) -> None:
    await client.sub(topic, CHANNEL)
    _, stats = await http(server, "GET", "/stats", format="json", topic=topic, include_clients="false")
    (channel,) = stats["topics"][0]["channels"]
    assert (channel["client_count"], channel["clients"]) == (1, None)


async def test_stats_of_an_unknown_topic_are_empty(server: Server) -> None:
    _, stats = await http(server, "GET", "/stats", format="json", topic="never-seen")
    assert not stats["topics"]


# -- the embedded one alone: how it is directed


async def test_it_remembers_what_each_client_sent(embedded: EmbeddedNsqd, topic: str) -> None:
    async with await NsqClient.connect(embedded.tcp_address) as client:
        await client.identify(client_id="me", own_field=[1])
        await client.sub(topic, CHANNEL)
        for count in (5, 0, 1):
            client.rdy(count)
        await embedded.until(lambda: embedded.connections[0].rdy_sequence == [5, 0, 1])
    (connection,) = embedded.connections
    assert connection.commands[1] == ("SUB", (topic, CHANNEL))
    assert connection.identify["own_field"] == [1]
    await embedded.until(lambda: not connection.open)


async def test_a_script_may_answer_refuse_or_be_silent(embedded: EmbeddedNsqd, topic: str) -> None:
    answers: list[bytes | Refusal | None] = [
        b"",
        frame(FrameType.RESPONSE, b"mine"),
        None,
        Refusal("E_PUB_FAILED", "disk full"),
    ]
    seen: list[str] = []

    def answer(connection: Connection, command: str, params: tuple[str, ...]) -> bytes | Refusal | None:
        return answers.pop(0) if command == "PUB" else None

    embedded.script.answer = answer
    embedded.script.on_command = lambda connection, command, params: seen.append(command)
    async with await NsqClient.connect(embedded.tcp_address) as client:
        for body in (b"1", b"2", b"3", b"4"):
            client.send(protocol.pub(topic, body))
        assert [await client.response(), await client.response()] == [b"mine", b"OK"]
        assert await client.error() == "E_PUB_FAILED"
        await client.end()
    assert seen == ["PUB"] * 4
    assert embedded.stats(topic)["topics"][0]["depth"] == 1


async def test_any_bytes_can_be_sent_to_a_client(embedded: EmbeddedNsqd) -> None:
    async with await NsqClient.connect(embedded.tcp_address) as client:
        await client.identify()
        embedded.send_raw(
            embedded.connections[0], frame(FrameType.ERROR, b"E_ODD one") + frame(FrameType.RESPONSE, b"")
        )
        assert await client.error() == "E_ODD"
        assert await client.response() == b""


async def test_a_frozen_one_is_silent_and_goes_on_afterwards(topic: str) -> None:
    async with EmbeddedNsqd(Options(shortest_ms=20)) as nsqd, await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify(heartbeat_interval=30)
        await client.sub(topic, CHANNEL)
        client.rdy(1)
        await nsqd.until(lambda: nsqd.connections[0].rdy_sequence == [1])
        nsqd.freeze()
        nsqd.publish(topic, b"waits")
        assert nsqd.stats(topic)["topics"][0]["channels"][0]["in_flight_count"] == 0
        client.send(b"NOP\n")
        async with await NsqClient.connect(nsqd.tcp_address) as late:
            late.send(b"NOP\n")
            with pytest.raises(TimeoutError):
                await nsqd.until(lambda: any(c.params_of("NOP") for c in nsqd.connections), timeout_s=0.2)
            assert [connection.open for connection in nsqd.connections] == [True, True]
            nsqd.thaw()
            await nsqd.until(lambda: all(c.params_of("NOP") for c in nsqd.connections))
        assert [message.body for message in await client.take()] == [b"waits"]


async def test_stop_and_start_keep_address_and_messages_also_those_in_flight(topic: str) -> None:
    nsqd = EmbeddedNsqd()
    await nsqd.start()
    addresses = nsqd.tcp_address, nsqd.http_address
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.sub(topic, CHANNEL)
        client.rdy(1)
        await client.pub(topic, b"a", b"b")
        await client.take()
        await nsqd.stop()
        await client.end()
    assert not nsqd.running
    await nsqd.stop()
    await nsqd.start()
    assert (nsqd.tcp_address, nsqd.http_address) == addresses
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.sub(topic, CHANNEL)
        client.rdy(2)
        assert {message.body: message.attempts for message in await client.take(2)} == {b"a": 2, b"b": 1}
    await nsqd.stop()


async def test_it_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with EmbeddedNsqd() as nsqd, await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await http(nsqd, "GET", "/ping")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_client_that_does_not_read_is_not_sent_more_than_it_can_hold(topic: str) -> None:
    body = b"x" * MAX_MSG_BYTES
    async with EmbeddedNsqd() as nsqd, await NsqClient.connect(nsqd.tcp_address) as client:
        await client.sub(topic, CHANNEL)
        client.rdy(2_500)
        await nsqd.until(lambda: nsqd.connections[0].rdy_sequence == [2_500])
        for _ in range(40):
            nsqd.publish(topic, body)
            await asyncio.sleep(0)
        (channel,) = nsqd.stats(topic)["topics"][0]["channels"]
        assert channel["depth"] > 20
        assert len(await client.take(40)) == 40


async def test_direct_publishing_is_held_to_the_same_rules(embedded: EmbeddedNsqd) -> None:
    with pytest.raises(Refusal, match="E_BAD_TOPIC"):
        embedded.publish("bad*", b"x")
    for body in (b"", b"x" * (MAX_MSG_BYTES + 1)):
        with pytest.raises(Refusal, match="E_BAD_MESSAGE"):
            embedded.publish("topic", body)


async def test_it_does_not_start_twice_or_on_a_port_that_is_taken(embedded: EmbeddedNsqd) -> None:
    with pytest.raises(NsqdigestError, match="running already"):
        await embedded.start()
    other = EmbeddedNsqd()
    with pytest.raises(OSError, match="address already in use"):
        await other.start(http_port=embedded.http_address[1])
    assert not other.running
