"""A connection: against the real nsqd, the embedded one, and one that is told to misbehave."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from nsq import protocol

import nsqdigest
from nsqdigest.base.errors import BehindRefusal, ConnectionLost, NsqdigestError, NsqdRefused, ProtocolError
from nsqdigest.config import Address
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Options, Refusal
from nsqdigest.nsq import connection as connection_module
from nsqdigest.nsq import handshake, negotiation
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import HEARTBEAT, FrameType, Message, frame, message_frame
from nsqdigest.nsq.held_frames import HeldFrames
from support.nsqclient import NsqClient
from support.ports import HOST, free_port
from support.servers import Nsqd
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

CHANNEL = "ch"
HEARTBEAT_MS = 30_000
FAST_MS = 150
STEADY_MS = 600
"""Heartbeats of a connection that is to stay open: a machine that is busy for a second keeps it."""
TOPICS = (f"conn-{number}" for number in itertools.count())

Server = Nsqd | EmbeddedNsqd


class Recorder:
    """Who gets what connections read; remembers all of it."""

    def __init__(self) -> None:
        self.reads: list[list[Message]] = []
        self.refused: list[NsqdRefused] = []
        self.closed: list[NsqdigestError] = []

    @property
    def messages(self) -> list[Message]:
        return [message for read in self.reads for message in read]

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.reads.append(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        self.refused.append(error)

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        self.closed.append(reason)

    async def take(self, count: int) -> list[Message]:
        await until(lambda: len(self.messages) >= count, PATIENCE_S, f"{count} messages")
        return self.messages


@pytest.fixture(scope="module")
def real_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as nsqd:
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
def recorder() -> Recorder:
    return Recorder()


Make = Callable[..., NsqConnection]


@pytest.fixture
async def to(recorder: Recorder) -> AsyncIterator[Make]:
    """Makes connections that the test need not end."""
    made: list[NsqConnection] = []

    def make(server: Server | tuple[str, int], heartbeat_ms: int = HEARTBEAT_MS, **options: Any) -> NsqConnection:
        address = Address(*(server if isinstance(server, tuple) else server.tcp_address))
        made.append(NsqConnection(address, ConnectionOptions(heartbeat_interval_ms=heartbeat_ms, **options), recorder))
        return made[-1]

    yield make
    for connection in made:
        connection.close("the test ends")
        await connection.hang_up()


async def subscribed(connection: NsqConnection, topic: str, rdy: int = 100) -> NsqConnection:
    await connection.open()
    await connection.subscribe(topic, CHANNEL)
    connection.set_rdy(rdy)
    return connection


async def publish(server: Server, topic: str, *bodies: bytes) -> None:
    async with await NsqClient.connect(server.tcp_address) as client:
        await client.pub(topic, *bodies)


async def channel_is(server: Server, topic: str, **wanted: int) -> None:
    """Waits until the channel's numbers are these."""

    async def numbers() -> dict[str, int]:
        if isinstance(server, Nsqd):
            stats = await asyncio.to_thread(server.channel_stats, topic, CHANNEL)
        else:
            stats = server.stats(topic, CHANNEL)["topics"][0]["channels"][0]
        return {name: stats[name] for name in wanted}

    async def hold() -> bool:
        return await numbers() == wanted

    await until(hold, PATIENCE_S, f"{topic} to have {wanted}")


# -- both nsqds: beginning


async def test_open_answers_what_nsqd_said_about_itself(server: Server, to: Make) -> None:
    connection = to(server)
    negotiated = await connection.open()
    assert negotiated.version == "1.3.0"
    assert (connection.max_rdy, connection.msg_timeout_s, connection.is_open) == (2500, 60.0, True)


async def test_the_message_timeout_that_was_agreed_on_is_known(server: Server, to: Make) -> None:
    connection = to(server, msg_timeout_ms=5_000)
    await connection.open()
    assert connection.msg_timeout_s == 5.0


async def test_nsqd_knows_who_we_are(embedded: EmbeddedNsqd, to: Make) -> None:
    await to(embedded).open()
    identify = embedded.connections[0].identify
    assert identify["user_agent"] == f"nsqdigest/{nsqdigest.__version__}"
    assert (identify["feature_negotiation"], identify["heartbeat_interval"]) == (True, HEARTBEAT_MS)
    assert "msg_timeout" not in identify


async def test_a_message_timeout_beyond_what_nsqd_allows_is_refused_with_the_remedy(
    server: Server, to: Make, recorder: Recorder
) -> None:
    with pytest.raises(NsqdRefused) as caught:
        await to(server, msg_timeout_ms=3_600_000).open()
    assert str(caught.value) == (
        'E_BAD_BODY: IDENTIFY msg timeout (3600000) is invalid; nsq.msg_timeout asks for "3600s", more than '
        "nsqd's --max-msg-timeout: write a shorter one, or raise that"
    )
    assert (caught.value.code, caught.value.needs_operator) == ("E_BAD_BODY", True)
    assert recorder.closed == [caught.value]


async def test_a_command_that_nsqd_refuses_ends_the_connection_with_its_word(
    server: Server, to: Make, recorder: Recorder
) -> None:
    connection = to(server)
    await connection.open()
    with pytest.raises(NsqdRefused) as caught:
        await connection.request(b"SUB not+a+topic ch\n")
    assert caught.value.code == "E_BAD_TOPIC"
    assert await connection.closed() is caught.value
    assert recorder.closed == [caught.value]


async def test_where_nobody_listens_it_says_so(to: Make, recorder: Recorder) -> None:
    port = free_port()
    with pytest.raises(ConnectionLost, match=f"nsqd at {HOST}:{port}: Connection refused") as caught:
        await to((HOST, port)).open()
    assert recorder.closed == [caught.value]


# -- both nsqds: messages


async def test_messages_come_as_they_were_published(server: Server, to: Make, recorder: Recorder, topic: str) -> None:
    bodies = [b"one", b"\x00\xff\n", b"x" * 300_000]
    await publish(server, topic, *bodies)
    connection = await subscribed(to(server), topic)
    messages = await recorder.take(3)
    assert sorted(message.body for message in messages) == sorted(bodies)
    assert {message.attempts for message in messages} == {1}
    assert connection.in_flight == 3


async def test_what_one_read_brings_is_handed_on_as_one_list(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    for number in range(500):
        embedded.publish(topic, b"%d" % number)
    await subscribed(to(embedded), topic, rdy=1_000)
    assert [message.body for message in await recorder.take(500)] == [b"%d" % number for number in range(500)]
    assert len(recorder.reads) == 1


async def test_what_is_finished_is_gone(server: Server, to: Make, recorder: Recorder, topic: str) -> None:
    await publish(server, topic, *[b"x"] * 50)
    connection = await subscribed(to(server), topic)
    connection.fin(await recorder.take(50))
    await channel_is(server, topic, in_flight_count=0, depth=0, message_count=50)
    assert connection.in_flight == 0


async def test_what_is_requeued_comes_again_as_another_attempt(
    server: Server, to: Make, recorder: Recorder, topic: str
) -> None:
    await publish(server, topic, b"x")
    connection = await subscribed(to(server), topic)
    (first,) = await recorder.take(1)
    connection.requeue([(first, 0)])
    _, again = await recorder.take(2)
    assert (again.id, again.timestamp_ns, again.body) == (first.id, first.timestamp_ns, first.body)
    assert again.attempts == 2
    assert connection.in_flight == 1


async def test_finishing_twice_is_refused_and_the_connection_goes_on(
    server: Server, to: Make, recorder: Recorder, topic: str
) -> None:
    await publish(server, topic, b"x", b"y")
    connection = await subscribed(to(server), topic, rdy=1)
    (first,) = await recorder.take(1)
    connection.fin([first])
    connection.fin([first])
    connection.requeue([(first, 0)])
    await until(lambda: len(recorder.refused) == 2, PATIENCE_S, "two refusals")
    assert [error.code for error in recorder.refused] == ["E_FIN_FAILED", "E_REQ_FAILED"]
    await recorder.take(2)
    assert connection.is_open
    assert recorder.closed == []


async def test_nothing_to_finish_or_requeue_sends_nothing(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(embedded), topic)
    connection.fin([])
    connection.requeue([])
    connection.set_rdy(7)
    await embedded.until(lambda: embedded.connections[0].rdy_sequence == [100, 7])
    assert {name for name, _ in embedded.connections[0].commands} == {"IDENTIFY", "SUB", "RDY"}


async def test_what_nsqd_took_back_is_no_longer_in_flight_here(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    for _ in range(3):
        embedded.publish(topic, b"x")
    connection = await subscribed(to(embedded), topic)
    await recorder.take(3)
    connection.forget_in_flight(2)
    assert connection.in_flight == 1


# -- both nsqds: the end


async def test_a_goodbye_that_nobody_waits_for_any_more_can_be_waited_for_again(
    embedded: EmbeddedNsqd, topic: str, to: Make
) -> None:
    """A second TERM cuts the drain off: what nsqd sends before CLOSE_WAIT has to be given back all the same."""
    embedded.script.answer = lambda _, name, __: b"" if name == "CLS" else None
    connection = await subscribed(to(embedded), topic)
    first = asyncio.create_task(connection.say_goodbye())
    (client,) = embedded.connections
    await embedded.until(lambda: client.params_of("CLS"))
    first.cancel()
    second = asyncio.create_task(connection.say_goodbye())
    await asyncio.sleep(0)
    assert not second.done()
    embedded.send_raw(client, frame(FrameType.RESPONSE, b"CLOSE_WAIT"))
    await second
    assert len(client.params_of("CLS")) == 1


async def test_a_message_that_nsqd_held_in_hand_when_the_goodbye_came_is_not_missed(
    embedded: EmbeddedNsqd, topic: str, to: Make, recorder: Recorder
) -> None:
    """A real nsqd hands one over behind CLOSE_WAIT in one of twenty ends under load."""
    embedded.script.answer = lambda _, name, __: b"" if name == "CLS" else None
    connection = await subscribed(to(embedded), topic)
    goodbye = asyncio.create_task(connection.say_goodbye())
    (client,) = embedded.connections
    await embedded.until(lambda: client.params_of("CLS"))
    embedded.send_raw(client, frame(FrameType.RESPONSE, b"CLOSE_WAIT"))
    await until(lambda: connection._goodbye is not None and connection._goodbye.done(), PATIENCE_S, "CLOSE_WAIT")
    embedded.send_raw(client, message_frame(Message(b"0" * 16, 1, 1, b"x")))
    await recorder.take(1)
    assert not goodbye.done()
    await goodbye


async def test_after_cls_nothing_new_comes_and_what_is_in_flight_can_be_finished(
    server: Server, to: Make, recorder: Recorder, topic: str
) -> None:
    await publish(server, topic, b"a", b"b")
    connection = await subscribed(to(server), topic, rdy=1)
    (first,) = await recorder.take(1)
    await connection.say_goodbye()
    connection.fin([first])
    await channel_is(server, topic, in_flight_count=0, depth=1, message_count=2)
    assert connection.is_open
    assert len(recorder.messages) == 1


async def test_hanging_up_leaves_nothing_in_flight(server: Server, to: Make, recorder: Recorder, topic: str) -> None:
    await publish(server, topic, *[b"x"] * 1_000)
    connection = await subscribed(to(server), topic, rdy=2_000)
    messages = await recorder.take(1_000)
    await connection.say_goodbye()
    connection.fin(messages[:400])
    connection.requeue((message, 0) for message in messages[400:])
    await connection.hang_up()
    assert not connection.is_open
    assert len(recorder.closed) == 1
    await channel_is(server, topic, in_flight_count=0, depth=600, requeue_count=600)


async def test_hanging_up_first_writes_what_the_sockets_have_no_room_for(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = to(embedded)
    await connection.open()
    embedded.freeze()
    command = protocol.pub(topic, b"x" * (1 << 20))
    waiting = [asyncio.ensure_future(connection.request(command)) for _ in range(16)]
    await asyncio.sleep(0)
    hanging_up = asyncio.ensure_future(connection.hang_up())
    await asyncio.sleep(0)
    embedded.thaw()
    await hanging_up
    await asyncio.gather(*waiting, return_exceptions=True)
    assert embedded.stats(topic)["topics"][0]["message_count"] == 16


async def test_hanging_up_can_be_cancelled_while_nsqd_reads_nothing(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    connection = to(embedded)
    await connection.open()
    embedded.freeze()
    command = protocol.pub(topic, b"x" * (1 << 20))
    waiting = [asyncio.ensure_future(connection.request(command)) for _ in range(16)]
    await asyncio.sleep(0)
    hanging_up = asyncio.ensure_future(connection.hang_up())
    await asyncio.sleep(0)
    hanging_up.cancel()
    await asyncio.wait([hanging_up])
    connection.close("the test ends")
    await asyncio.gather(*waiting, return_exceptions=True)
    embedded.thaw()
    assert unhandled == []


async def test_a_server_that_ends_is_noticed(embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str) -> None:
    connection = await subscribed(to(embedded), topic)
    await embedded.stop()
    reason = await connection.closed()
    assert isinstance(reason, ConnectionLost)
    assert recorder.closed == [reason]
    assert str(connection.address) in str(reason)


# -- a handshake that goes wrong


def answer_identify_with(nsqd: EmbeddedNsqd, answer: bytes | Refusal) -> None:
    nsqd.script.answer = lambda _, name, __: answer if name == "IDENTIFY" else None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (frame(FrameType.RESPONSE, b"OK"), "answered IDENTIFY with something else: is it an nsqd?"),
        (frame(FrameType.RESPONSE, b""), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b"\xff\xfe"), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b"[1]"), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b"null"), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b'{"max_rdy_count":"many"}'), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b'{"msg_timeout":null}'), "answered IDENTIFY with something else"),
        (frame(FrameType.RESPONSE, b'{"max_rdy_count":0}'), "answered IDENTIFY with something else"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP; write nsqd's TCP port, usually 4150"),
        (b"\xff\xff\xff\xffwhatever it is", "began with a frame of -1 bytes: is it an nsqd?"),
        (struct.pack(">i", -1) + b"x" * 8, "began with a frame of -1 bytes"),
        (struct.pack(">i", 3) + b"x" * 8, "began with a frame of 3 bytes"),
        (struct.pack(">i", (1 << 20) + 1) + b"x" * 8, "began with a frame of 1048577 bytes"),
    ],
)
async def test_an_answer_that_no_nsqd_gives_is_a_protocol_error(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, answer: bytes, said: str
) -> None:
    answer_identify_with(embedded, answer)
    with pytest.raises(ProtocolError) as caught:
        await to(embedded).open()
    assert said in str(caught.value)
    assert str(Address(*embedded.tcp_address)) in str(caught.value)
    assert recorder.closed == [caught.value]
    await embedded.until(lambda: not embedded.connections[0].open)


async def test_a_refused_handshake_has_nsqds_own_word(embedded: EmbeddedNsqd, to: Make) -> None:
    answer_identify_with(embedded, Refusal("E_BAD_BODY", "IDENTIFY heartbeat interval (1) is invalid"))
    with pytest.raises(NsqdRefused, match=r"E_BAD_BODY: IDENTIFY heartbeat interval \(1\) is invalid"):
        await to(embedded).open()


async def test_a_handshake_that_breaks_off_is_a_lost_connection(embedded: EmbeddedNsqd, to: Make) -> None:
    def hang_up(connection: Connection, name: str, _: tuple[str, ...]) -> bytes:
        connection.send_raw(frame(FrameType.RESPONSE, b"{}")[:-1])
        connection.end()
        return b""

    embedded.script.answer = hang_up
    with pytest.raises(ConnectionLost, match="it closed the connection"):
        await to(embedded).open()


async def test_a_handshake_without_an_answer_is_given_up(
    embedded: EmbeddedNsqd, to: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 0.05)
    answer_identify_with(embedded, b"")
    with pytest.raises(ConnectionLost, match=r"did not answer within 0.05 s \(IDENTIFY\)"):
        await to(embedded).open()
    await embedded.until(lambda: not embedded.connections[0].open)


@pytest.mark.parametrize("error", [ValueError("odd"), UnicodeError("label too long")])
async def test_whatever_goes_wrong_while_it_opens_is_a_lost_connection(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def identity(*_: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(negotiation, "identity", identity)
    with pytest.raises(ConnectionLost, match=f"nsqd at .*{error}"):
        await to(embedded).open()
    assert len(recorder.closed) == 1
    await embedded.until(lambda: not any(peer.open for peer in embedded.connections))


async def test_a_sub_that_is_never_answered_is_a_lost_connection_though_heartbeats_go_on(
    embedded: EmbeddedNsqd, to: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ANSWERED_WITHIN_S", 4 * FAST_MS / 1000)
    embedded.script.answer = lambda _, name, __: b"" if name == "SUB" else None
    connection = to(embedded, FAST_MS)
    with pytest.raises(ConnectionLost, match=r"did not answer SUB within 0\.6 s"):
        await subscribed(connection, topic)
    assert len(embedded.connections[0].params_of("NOP")) >= 2
    assert not connection.is_open
    await embedded.until(lambda: not embedded.connections[0].open)


async def test_an_answer_in_pieces_is_one_answer(embedded: EmbeddedNsqd, to: Make) -> None:
    whole = frame(FrameType.RESPONSE, b'{"max_rdy_count":7,"msg_timeout":1000}')
    answer_identify_with(embedded, b"")
    connection = to(embedded)
    opening = asyncio.ensure_future(connection.open())
    await embedded.until(lambda: embedded.connections and embedded.connections[0].commands)
    for number in range(len(whole)):
        embedded.send_raw(embedded.connections[0], whole[number : number + 1])
        await asyncio.sleep(0)
    await opening
    assert (connection.max_rdy, connection.msg_timeout_s) == (7, 1.0)


async def test_closed_while_it_waits_for_the_handshake_it_leaves_no_socket(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder
) -> None:
    answer_identify_with(embedded, b"")
    connection = to(embedded)
    opening = asyncio.ensure_future(connection.open())
    await embedded.until(lambda: embedded.connections and embedded.connections[0].commands)
    connection.close("no longer wanted")
    with pytest.raises(ConnectionLost, match="no longer wanted"):
        await opening
    await embedded.until(lambda: not embedded.connections[0].open)
    assert len(recorder.closed) == 1


async def test_closed_while_the_socket_connects_it_leaves_no_socket(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder
) -> None:
    connection = to(embedded)
    opening = asyncio.ensure_future(connection.open())
    await asyncio.sleep(0)
    connection.close("no longer wanted")
    with pytest.raises(ConnectionLost, match="no longer wanted"):
        await opening
    await embedded.until(lambda: not any(peer.open for peer in embedded.connections))
    assert not connection.is_open
    assert len(recorder.closed) == 1


async def test_cancelled_while_it_opens_it_leaves_no_socket(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder
) -> None:
    answer_identify_with(embedded, b"")
    opening = asyncio.ensure_future(to(embedded).open())
    await embedded.until(lambda: embedded.connections and embedded.connections[0].commands)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await embedded.until(lambda: not embedded.connections[0].open)
    assert [str(reason) for reason in recorder.closed] == ["closed while connecting"]


# -- frames that no nsqd sends


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (frame(7, b"data"), "a frame of type 7"),
        (struct.pack(">ii", -5, 2), "a frame of -5 bytes"),
        (struct.pack(">ii", 0, 2), "a frame of 0 bytes"),
        (struct.pack(">ii", 2**31 - 1, 2), "a frame of 2147483647 bytes"),
        (frame(FrameType.MESSAGE, b"short"), "too short for its own header"),
        (frame(FrameType.RESPONSE, b"OK"), "sent an answer without a question: b'OK'"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "bytes: between 4 and"),
    ],
)
async def test_bytes_that_are_no_frame_end_the_connection(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, sent: bytes, said: str
) -> None:
    connection = await subscribed(to(embedded), "events")
    embedded.send_raw(embedded.connections[0], sent)
    reason = await connection.closed()
    assert isinstance(reason, ProtocolError)
    assert said in str(reason)
    assert recorder.closed == [reason]
    await embedded.until(lambda: not embedded.connections[0].open)


async def test_half_a_frame_and_the_end_is_a_lost_connection(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    connection = await subscribed(to(embedded), topic)
    peer = embedded.connections[0]
    peer.send_raw(
        message_frame(Message(b"0" * 16, 1, 1, b"whole")) + message_frame(Message(b"1" * 16, 1, 1, b"x"))[:-1]
    )
    peer.end()
    assert isinstance(await connection.closed(), ConnectionLost)
    assert [message.body for message in recorder.messages] == [b"whole"]


async def test_half_a_frame_and_its_rest_is_a_message(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    await subscribed(to(embedded), topic)
    whole = message_frame(Message(b"0" * 16, 1, 1, b"x" * 100))
    for number in range(0, len(whole), 9):
        embedded.send_raw(embedded.connections[0], whole[number : number + 9])
        await asyncio.sleep(0)
    assert (await recorder.take(1))[0].body == b"x" * 100


@pytest.mark.parametrize("code", ["E_INVALID", "E_BAD_TOPIC", "E_SOMETHING_NEW"])
async def test_any_other_error_frame_ends_the_connection(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str, code: str
) -> None:
    connection = await subscribed(to(embedded), topic)
    embedded.send_raw(embedded.connections[0], frame(FrameType.ERROR, code.encode() + b" it says why"))
    reason = await connection.closed()
    assert isinstance(reason, NsqdRefused)
    assert (reason.code, str(reason)) == (code, f"{code}: it says why")
    assert recorder.refused == []


@pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
async def test_a_command_that_came_too_late_does_not_end_it(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str, code: str
) -> None:
    connection = await subscribed(to(embedded), topic)
    embedded.send_raw(embedded.connections[0], frame(FrameType.ERROR, code.encode() + b" ID failed"))
    await until(lambda: recorder.refused, PATIENCE_S, "the refusal")
    assert [error.code for error in recorder.refused] == [code]
    assert connection.is_open


async def test_messages_that_come_with_garbage_are_not_handed_on(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    """They were never ours to finish on a connection that is at its end: nsqd sends them again."""
    connection = await subscribed(to(embedded), topic)
    embedded.send_raw(embedded.connections[0], message_frame(Message(b"0" * 16, 1, 1, b"x")) + frame(9, b""))
    await connection.closed()
    assert recorder.messages == []


# -- heartbeats and silence


async def test_heartbeats_are_answered_with_the_rdy_that_is_wanted(to: Make, topic: str) -> None:
    async with EmbeddedNsqd(Options(shortest_ms=10, is_unbuffered=True)) as embedded:
        connection = await subscribed(to(embedded, FAST_MS), topic, rdy=5)
        peer = embedded.connections[0]
        await embedded.until(lambda: len(peer.params_of("NOP")) == 2)
        connection.set_rdy(0)
        await embedded.until(lambda: len(peer.params_of("NOP")) == 4)
        await embedded.until(lambda: len(peer.rdy_sequence) >= 6)
        assert peer.rdy_sequence[:6] == [5, 5, 5, 0, 0, 0]


# -- the window of RDY


def ready_count(nsqd: Nsqd, topic: str) -> int:
    return sum(int(client["ready_count"]) for client in nsqd.channel_stats(topic, CHANNEL)["clients"])


@pytest.mark.servers
async def test_a_quiet_connection_leaves_nsqd_room_for_one_message(real_nsqd: Nsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(real_nsqd), topic)
    await until(lambda: connection.rdy_used == 1, PATIENCE_S, "the window to close")
    await until(lambda: ready_count(real_nsqd, topic) == 1, PATIENCE_S, "nsqd to have it")
    assert connection.rdy == 100


@pytest.mark.servers
async def test_a_backlog_opens_the_window_to_all_that_is_granted(
    real_nsqd: Nsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    connection = await subscribed(to(real_nsqd), topic)
    await until(lambda: connection.rdy_used == 1, PATIENCE_S, "the window to close")
    real_nsqd.publish_many(topic, [b"x"] * 150)
    await recorder.take(100)
    assert (connection.in_flight, connection.rdy_used) == (100, 100)
    connection.fin(recorder.messages[:100])
    await recorder.take(150)


async def test_a_heartbeat_repeats_the_rdy_that_nsqd_has(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(embedded, FAST_MS), topic, rdy=5)
    await until(lambda: connection.rdy_used == 1, PATIENCE_S, "the window to close")
    peer = embedded.connections[0]
    await embedded.until(lambda: peer.rdy_sequence[-1] == 1)
    sent = len(peer.rdy_sequence)
    await embedded.until(lambda: len(peer.rdy_sequence) >= sent + 2)
    assert peer.rdy_sequence[sent:] == [1] * (len(peer.rdy_sequence) - sent)


async def test_nothing_is_asked_for_once_it_closes(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    connection = await subscribed(to(embedded), topic)
    await until(lambda: connection.rdy_used == 1, PATIENCE_S, "the window to close")
    peer = embedded.connections[0]
    connection.cls()
    await embedded.until(lambda: peer.params_of("CLS"))
    sent = len(peer.rdy_sequence)
    peer.send_raw(message_frame(Message(b"0" * 16, 1, 1, b"x")))
    connection.fin(await recorder.take(1))
    await embedded.until(lambda: peer.params_of("FIN"))
    assert connection.rdy_used > 1, "while it is open, nsqd would be told"
    assert len(peer.rdy_sequence) == sent


async def test_a_heartbeat_comes_with_messages_and_is_answered(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    await subscribed(to(embedded), topic, rdy=5)
    peer = embedded.connections[0]
    message = message_frame(Message(b"0" * 16, 1, 1, b"x"))
    peer.send_raw(message + frame(FrameType.RESPONSE, HEARTBEAT) + message)
    await embedded.until(lambda: peer.params_of("NOP"))
    assert len(recorder.messages) == 2


async def test_a_connection_that_only_publishes_answers_with_nop_alone(embedded: EmbeddedNsqd, to: Make) -> None:
    await to(embedded, FAST_MS).open()
    peer = embedded.connections[0]
    await embedded.until(lambda: len(peer.params_of("NOP")) == 2)
    assert peer.rdy_sequence == []


async def test_after_cls_heartbeats_are_still_answered_and_no_rdy_is_sent(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = await subscribed(to(embedded, STEADY_MS), topic, rdy=5)
    await connection.say_goodbye()
    peer = embedded.connections[0]
    before = len(peer.params_of("NOP"))
    await embedded.until(lambda: len(peer.params_of("NOP")) >= before + 2)
    commands = [name for name, _ in peer.commands]
    assert "RDY" not in commands[commands.index("CLS") :]
    assert connection.is_open


async def test_heartbeats_alone_keep_a_connection_open(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(embedded, STEADY_MS), topic)
    await embedded.until(lambda: len(embedded.connections[0].params_of("NOP")) >= 4)
    assert connection.is_open


HEARTBEAT_FRAME = frame(FrameType.RESPONSE, HEARTBEAT)


async def test_heartbeats_of_one_read_get_one_answer(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(embedded), topic, rdy=5)
    peer = embedded.connections[0]
    before = len(peer.params_of("NOP"))
    peer.send_raw(HEARTBEAT_FRAME * 10)
    await embedded.until(lambda: len(peer.params_of("NOP")) > before)
    connection.set_rdy(7)
    await embedded.until(lambda: 7 in peer.rdy_sequence)
    assert len(peer.params_of("NOP")) == before + 1


async def test_a_flood_of_heartbeats_ends_the_connection_unanswered(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = await subscribed(to(embedded), topic)
    peer = embedded.connections[0]
    before = len(peer.params_of("NOP"))
    peer.send_raw(HEARTBEAT_FRAME * 5_000)
    async with asyncio.timeout(PATIENCE_S):
        assert "heartbeats within" in str(await connection.closed())
    assert len(peer.params_of("NOP")) <= before + 1


async def test_frames_that_do_not_end_are_bounded_over_all_connections(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    """The connection ends that waits longest. Half a frame behind a whole one is read together with it."""
    held_frames: HeldFrames[NsqConnection] = HeldFrames(1_000)
    slow = await subscribed(to(embedded, held_frames=held_frames), topic)
    sound = await subscribed(to(embedded, held_frames=held_frames), topic)
    whole = message_frame(Message(b"0" * 16, 1, 1, b"x" * 1_000))
    for count, peer in enumerate(embedded.connections, 1):
        peer.send_raw(whole + whole[:600])
        await recorder.take(count)
    async with asyncio.timeout(PATIENCE_S):
        assert "its frame is not complete" in str(await slow.closed())
    embedded.connections[1].send_raw(whole[600:])
    await recorder.take(3)
    assert sound.is_open


async def test_a_frame_that_is_too_much_alone_ends_its_connection(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    connection = await subscribed(to(embedded, held_frames=HeldFrames(1_000)), topic)
    embedded.connections[0].send_raw(message_frame(Message(b"0" * 16, 1, 1, b"x" * 2_000))[:1_500])
    async with asyncio.timeout(PATIENCE_S):
        assert "its frame is not complete" in str(await connection.closed())


async def test_silence_of_two_heartbeats_ends_the_connection(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    connection = await subscribed(to(embedded, FAST_MS), topic)
    embedded.freeze()
    started_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE_S):
        reason = await connection.closed()
    assert isinstance(reason, ConnectionLost)
    assert "has been silent for" in str(reason)
    # The last thing heard may be one heartbeat old.
    assert asyncio.get_running_loop().time() - started_s >= FAST_MS / 1000
    assert recorder.closed == [reason]


@pytest.mark.servers
async def test_a_stopped_nsqd_is_noticed_by_its_silence(
    nsqd_factory: Callable[..., Nsqd], to: Make, topic: str
) -> None:
    nsqd = nsqd_factory()
    connection = await subscribed(to(nsqd, 1_000), topic)
    nsqd.pause()
    try:
        async with asyncio.timeout(PATIENCE_S):
            found = re.search(r"has been silent for (\d+\.\d) s", str(await connection.closed()))
        assert found is not None
        assert float(found[1]) >= 2
    finally:
        nsqd.resume()


async def test_who_waits_for_an_answer_is_told_when_the_connection_ends(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = to(embedded)
    await connection.open()
    embedded.script.answer = lambda *_: b""
    waiting = [asyncio.ensure_future(connection.request(b"PUB %s\n\0\0\0\1x" % topic.encode())) for _ in range(3)]
    await embedded.until(lambda: len(embedded.connections[0].params_of("PUB")) == 3)
    connection.close("enough")
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers] == [f"nsqd at {connection.address}: enough"] * 3


async def test_answers_come_in_the_order_of_requests(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    numbers = itertools.count()
    connection = to(embedded)
    await connection.open()
    embedded.script.answer = lambda *_: frame(FrameType.RESPONSE, b"%d" % next(numbers))
    command = b"PUB %s\n\0\0\0\1x" % topic.encode()
    answers = await asyncio.gather(*(connection.request(command) for _ in range(20)))
    assert answers == [b"%d" % number for number in range(20)]


async def test_several_commands_go_in_one_write_and_each_has_its_answer(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = to(embedded)
    await connection.open()
    publish = b"PUB %s\n\0\0\0\1x" % topic.encode()
    assert await connection.request_all([publish, publish]) == [b"OK", b"OK"]
    answers = await connection.request_all([publish, b"PUB no+topic\n\0\0\0\1x", publish])
    assert [type(answer) for answer in answers] == [bytes, NsqdRefused, BehindRefusal]
    assert embedded.stats(topic)["topics"][0]["message_count"] == 3


async def test_answers_that_are_late_end_the_connection_for_all_that_have_none(
    embedded: EmbeddedNsqd, to: Make, topic: str
) -> None:
    connection = to(embedded)
    await connection.open()
    embedded.script.answer = lambda _, name, __: b"" if name == "MPUB" else None
    late, own = b"MPUB %s\n\0\0\0\1x" % topic.encode(), b"PUB %s\n\0\0\0\1x" % topic.encode()
    answers = await connection.request_all([own, late, late], 0.1)
    assert answers[0] == b"OK"
    problem = f"nsqd at {connection.address} did not answer MPUB within 0.1 s"
    assert [str(answer) for answer in answers[1:]] == [problem] * 2
    assert not connection.is_open


async def test_who_gives_up_on_several_leaves_no_exception_behind(embedded: EmbeddedNsqd, to: Make, topic: str) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    connection = to(embedded)
    await connection.open()
    embedded.script.answer = lambda *_: b""
    publish = b"PUB %s\n\0\0\0\1x" % topic.encode()
    waiting = asyncio.ensure_future(connection.request_all([publish] * 3))
    await embedded.until(lambda: len(embedded.connections[0].params_of("PUB")) == 3)
    waiting.cancel()
    await asyncio.wait([waiting])
    connection.close("enough")
    await asyncio.sleep(0)
    gc.collect()
    assert unhandled == []


async def test_what_is_said_on_a_closed_connection_is_not_sent_and_no_error(
    embedded: EmbeddedNsqd, to: Make, recorder: Recorder, topic: str
) -> None:
    embedded.publish(topic, b"x")
    connection = await subscribed(to(embedded), topic)
    messages = await recorder.take(1)
    connection.close("enough")
    connection.fin(messages)
    connection.set_rdy(3)
    connection.close("again")
    await connection.say_goodbye()
    await connection.hang_up()
    with pytest.raises(ConnectionLost, match="enough"):
        await connection.request(b"NOP\n")
    assert [str(reason) for reason in recorder.closed] == [f"nsqd at {connection.address}: enough"]


async def test_before_it_is_open_it_can_not_be_asked(to: Make) -> None:
    with pytest.raises(ConnectionLost, match="not connected"):
        await to((HOST, 1)).request(b"NOP\n")
