"""A handshake with an nsqd that is told what to say: at each step it may stall, break off, lie or talk garbage.

However it goes, it ends in a usable connection or in one error of this product, no socket and no task is left, and
other connections do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.errors import ConnectionLost, NsqdigestError, NsqdMismatch, NsqdRefused, ProtocolError
from nsqdigest.base.resolver import Resolver
from nsqdigest.config import Address, Secret, Tls, tls_files
from nsqdigest.demo.servers.nsqd import EmbeddedNsqd
from nsqdigest.nsq import handshake
from nsqdigest.nsq.compression import Deflate, Snappy, Stage
from nsqdigest.nsq.connection import TURN_BYTES, UNREAD_BYTES, ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import HEARTBEAT, FrameType, Message, frame, message_frame
from support.certificates import Certificates
from support.fuzzing import times
from support.ports import HOST
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

OK = frame(FrameType.RESPONSE, b"OK")
BEAT = frame(FrameType.RESPONSE, HEARTBEAT)
FUZZED = times(2)
"""200 inputs in a normal run, 4,000 with HYPOTHESIS_PROFILE=deep."""

Speak = Callable[["Peer"], Awaitable[None]]


def answer(**said: Any) -> bytes:
    return frame(FrameType.RESPONSE, json.dumps(said).encode())


class Peer:
    """The server's side of one connection, inside of whatever was begun."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stage: Stage | None = None
        self._unpacked = b""

    async def identify(self, *, then: bytes) -> dict[str, Any]:
        assert await self.read(4) == b"  V2"
        said: dict[str, Any] = json.loads(await self.command(b"IDENTIFY"))
        await self.say(then)
        return said

    async def command(self, name: bytes) -> bytes:
        """Of a command with a body, that."""
        assert await self.read(len(name) + 1) == name + b"\n"
        return await self.read(int.from_bytes(await self.read(4), "big"))

    async def subscribed(self) -> None:
        assert await self.read(8) == b"SUB t c\n"
        await self.say(OK)

    async def read(self, size: int) -> bytes:
        if self._stage is None:
            return await self._reader.readexactly(size)
        while len(self._unpacked) < size:
            self._unpacked += b"".join(self._stage.decode(await self._reader.read(1)))
        found, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return found

    async def say(self, data: bytes) -> None:
        self._writer.write(data if self._stage is None else self._stage.encode(data))
        await self._writer.drain()

    async def begin_tls(self, context: ssl.SSLContext) -> None:
        await self._writer.start_tls(context)

    def begin(self, stage: Stage) -> None:
        self._stage = stage

    async def ended(self) -> None:
        """Returns when the client has gone."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await self._reader.read(1 << 16):
                pass


class Told:
    """An nsqd that says what it is told. `gone` counts the clients that left."""

    def __init__(self, speak: Speak) -> None:
        self.address = Address(HOST, 0)
        self.came = self.gone = 0
        self.problems: list[BaseException] = []
        self._speak = speak

    async def __aenter__(self) -> Told:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = Address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await until(lambda: self.gone == self.came, PATIENCE_S, "every client to leave")
        await self._server.wait_closed()
        assert self.problems == []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        peer = Peer(reader, writer)
        try:
            await self._speak(peer)
            await peer.ended()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client had enough
        except Exception as error:
            self.problems.append(error)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.gone += 1


class Nobody:
    """Gets what connections read, and remembers how they ended."""

    def __init__(self) -> None:
        self.closed: list[NsqdigestError] = []

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        pass

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        pass

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        self.closed.append(reason)


def options(**said: Any) -> ConnectionOptions:
    return ConnectionOptions(**{"heartbeat_interval_ms": 30_000, **said})


def connect(told: Told, nobody: Nobody | None = None, **said: Any) -> NsqConnection:
    return NsqConnection(told.address, options(**said), nobody or Nobody())


async def ends(connection: NsqConnection) -> None:
    connection.close("the test ends")
    await connection.hang_up()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> tls_files.TlsClient:
    return tls_files.client(Tls(ca_file=str(certificates.ca_file), cert_file="", key_file="", insecure=False))


@pytest.fixture(scope="module")
def server_side(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
    return context


# -- upgrades, in nsqd's order


@pytest.mark.parametrize("name", ["snappy", "deflate"])
async def test_what_comes_at_once_behind_an_answer_is_not_swallowed(name: str) -> None:
    """The OK inside the compression, and more behind it, in the same segment as the answer in the clear."""

    async def speak(peer: Peer) -> None:
        stage = Snappy() if name == "snappy" else Deflate(6)
        await peer.identify(then=answer(**{name: True}) + stage.encode(OK + BEAT + BEAT[:5]))
        peer.begin(stage)
        assert await peer.read(4) == b"NOP\n"
        await peer.say(BEAT[5:])
        assert await peer.read(4) == b"NOP\n"
        alive.set()

    alive = asyncio.Event()
    async with Told(speak) as told:
        connection = connect(told, compression=name)
        await connection.open()
        async with asyncio.timeout(PATIENCE_S):
            await alive.wait()
        await ends(connection)


async def test_tls_then_compression_then_auth_each_inside_the_one_before(
    client: tls_files.TlsClient, server_side: ssl.SSLContext
) -> None:
    async def speak(peer: Peer) -> None:
        said = await peer.identify(then=answer(tls_v1=True, snappy=True, auth_required=True))
        assert (said["tls_v1"], said["snappy"], said["deflate"]) == (True, True, False)
        await peer.begin_tls(server_side)
        await peer.say(OK)
        peer.begin(Snappy())
        await peer.say(OK)
        secrets.append(await peer.command(b"AUTH"))
        await peer.say(answer(permission_count=1))

    secrets: list[bytes] = []
    async with Told(speak) as told:
        connection = connect(told, tls=client, compression="snappy", auth_secret=Secret("hunter2"))
        await connection.open()
        assert (secrets, connection.tls_version) == ([b"hunter2"], "TLSv1.3")
        await ends(connection)


@pytest.mark.parametrize("name", ["none", "snappy"])
async def test_heartbeats_are_answered_while_auth_takes_its_time(name: str) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(auth_required=True, snappy=name == "snappy"))
        if name == "snappy":
            peer.begin(Snappy())
            await peer.say(OK)
        await peer.command(b"AUTH")
        for _ in range(3):
            await peer.say(BEAT)
            assert await peer.read(4) == b"NOP\n"
        await peer.say(answer(permission_count=1))

    async with Told(speak) as told:
        connection = connect(told, compression=name, auth_secret=Secret("s"))
        await connection.open()
        await ends(connection)


async def test_a_name_that_tls_cannot_ask_for_is_told_as_that(
    client: tls_files.TlsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver may accept what TLS does not."""

    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(tls_v1=True))

    async def look_up(_: object, __: str, port: int, **___: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, port))]

    monkeypatch.setattr(Resolver, "look_up", look_up)
    async with Told(speak) as told:
        told.address = told.address._replace(host="x" * 64)
        with pytest.raises(ConnectionLost, match="its name cannot be used for TLS"):
            await connect(told, tls=client).open()


async def test_auth_has_more_time_than_nsqd_gives_its_auth_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(auth_required=True))
        await peer.command(b"AUTH")
        await asyncio.sleep(0.4)
        await peer.say(answer(permission_count=1))

    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 0.2)
    assert handshake.AUTH_TIMEOUT_S > 5.0
    async with Told(speak) as told:
        connection = connect(told, auth_secret=Secret("s"))
        await connection.open()
        await ends(connection)


async def test_an_auth_that_is_never_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(auth_required=True))

    monkeypatch.setattr(handshake, "AUTH_TIMEOUT_S", 0.05)
    async with Told(speak) as told:
        with pytest.raises(ConnectionLost, match=r"did not answer within 0\.05 s \(AUTH\)"):
            await connect(told, auth_secret=Secret("s")).open()


async def test_a_flood_lets_the_others_have_their_turn_between_small_parts_of_it() -> None:
    """What one turn of the loop hands on, at the most, when all of it is there."""
    loop = asyncio.get_running_loop()
    of_turn: dict[int, int] = {}
    turn = 0

    class Counting(Nobody):
        def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
            of_turn[turn] = of_turn.get(turn, 0) + sum(len(message.body) for message in messages)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if sum(of_turn.values()) < total_bytes:
            loop.call_soon(next_turn)

    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer())
        await peer.subscribed()
        assert await peer.read(8) == b"RDY 100\n"
        await peer.say(message_frame(Message(b"0" * 16, 1, 1, b"x" * 60_000)) * 100)

    total_bytes = 6_000_000
    async with Told(speak) as told:
        connection = connect(told, Counting())
        await connection.open()
        await connection.subscribe("t", "c")
        connection.set_rdy(100)
        next_turn()
        await until(lambda: sum(of_turn.values()) == total_bytes, PATIENCE_S, "all of it")
        assert max(of_turn.values()) <= 2 * TURN_BYTES
        await ends(connection)


async def test_a_flood_that_unfolds_a_thousandfold_lets_the_others_have_their_turn() -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(deflate=True))
        peer.begin(Deflate(6))
        await peer.say(OK)
        await peer.subscribed()
        await peer.command(b"PUB t")
        await peer.say(message_frame(Message(b"0" * 16, 1, 1, b"\0" * (1 << 20))) * 16)
        await peer.say(OK)

    async with Told(speak) as told:
        connection = connect(told, compression="deflate")
        await connection.open()
        await connection.subscribe("t", "c")
        asking = asyncio.create_task(connection.request(b"PUB t\n\0\0\0\1x"))
        turns = 0
        async with asyncio.timeout(PATIENCE_S):
            while not asking.done():
                await asyncio.sleep(0)
                turns += connection.in_flight > 0
        assert (await asking, connection.in_flight) == (b"OK", 16)
        assert turns > 10
        await ends(connection)


async def test_messages_that_nobody_subscribed_to_end_the_connection() -> None:
    """Nobody would count them: they would come on top of max_in_flight."""

    class Refusing(Nobody):
        def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
            raise AssertionError("handed on")

    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer())
        await peer.say(message_frame(Message(b"0" * 16, 1, 1, b"x")) * 3)

    async with Told(speak) as told:
        connection = connect(told, Refusing())
        await connection.open()
        reason = await connection.closed()
        assert isinstance(reason, ProtocolError)
        assert "without a subscription" in str(reason)
        assert connection.in_flight == 0


async def test_an_nsqd_that_reads_nothing_is_left_when_so_much_waits_for_it() -> None:
    left = asyncio.Event()

    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer())
        await left.wait()

    async with Told(speak) as told:
        connection = connect(told)
        await connection.open()
        many = [(Message(b"0" * 16, 1, 1, b"x"), 0)] * 100_000
        for _ in range(2 * UNREAD_BYTES // (100_000 * len(b"REQ 0000000000000000 0\n"))):
            connection.requeue(many)
        assert "nsqd reads nothing" in str(await connection.closed())
        left.set()


# -- what no nsqd says


async def cut_off(peer: Peer) -> None:
    peer._writer.close()


STEPS: dict[str, dict[str, Any]] = {
    "IDENTIFY": {},
    "snappy": {"compression": "snappy"},
    "deflate": {"compression": "deflate"},
    "AUTH": {"auth_secret": Secret("s")},
}
SAID = {"IDENTIFY": {}, "snappy": {"snappy": True}, "deflate": {"deflate": True}, "AUTH": {"auth_required": True}}


def up_to(step: str, then: bytes) -> Speak:
    """Goes well as far as the step; what is said there is `then`, inside of what was begun."""

    async def speak(peer: Peer) -> None:
        if step == "IDENTIFY":
            await peer.identify(then=then)
            return
        await peer.identify(then=answer(**SAID[step]))
        if step == "AUTH":
            await peer.command(b"AUTH")
        else:
            peer.begin(Snappy() if step == "snappy" else Deflate(6))
        await peer.say(then)

    return speak


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (frame(7, b"data"), ProtocolError),
        (frame(-1, b"data"), ProtocolError),
        (message_frame(Message(b"0" * 16, 1, 1, b"x")), ProtocolError),
        (struct.pack(">ii", 2**31 - 1, 0), ProtocolError),
        (struct.pack(">ii", 0, 0), ProtocolError),
        (frame(FrameType.ERROR, b"E_INVALID it says why"), NsqdRefused),
    ],
)
async def test_at_each_step_a_frame_that_can_not_be_ends_it(step: str, then: bytes, kind: type[Exception]) -> None:
    nobody = Nobody()
    async with Told(up_to(step, then)) as told:
        with pytest.raises(kind) as caught:
            await connect(told, nobody, **STEPS[step]).open()
        assert nobody.closed == [caught.value]


@pytest.mark.parametrize("name", ["snappy", "deflate"])
@pytest.mark.parametrize("said", [b"no", b"", b"OK and more"])
async def test_what_is_not_ok_does_not_begin_a_compression(name: str, said: bytes) -> None:
    async with Told(up_to(name, frame(FrameType.RESPONSE, said))) as told:
        with pytest.raises(ProtocolError, match=f"where {name} was to begin"):
            await connect(told, compression=name).open()


@pytest.mark.parametrize("name", ["snappy", "deflate"])
async def test_plain_bytes_where_a_compression_was_to_begin_are_refused(name: str) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(**{name: True}) + b"\xff" + OK)

    async with Told(speak) as told:
        with pytest.raises(ProtocolError, match=f"what came is not {name}"):
            await connect(told, compression=name).open()


async def test_plain_bytes_where_tls_was_to_begin_are_refused(client: tls_files.TlsClient) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(tls_v1=True) + OK)

    async with Told(speak) as told:
        with pytest.raises((ProtocolError, NsqdMismatch), match=r"sent more bytes in the clear|does not speak TLS"):
            await connect(told, tls=client).open()


async def test_a_peer_that_does_not_speak_tls_is_told(client: tls_files.TlsClient) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(tls_v1=True))
        await peer.read(1)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with Told(speak) as told:
        with pytest.raises(NsqdMismatch, match="the server at this address does not speak TLS; check the address"):
            await connect(told, tls=client).open()


async def test_a_peer_that_hangs_up_in_the_middle_of_tls_is_a_lost_connection(client: tls_files.TlsClient) -> None:
    async def speak(peer: Peer) -> None:
        await peer.identify(then=answer(tls_v1=True))
        await peer.read(1)
        peer._writer.close()

    async with Told(speak) as told:
        with pytest.raises(ConnectionLost, match=r"\(TLS\)") as caught:
            await connect(told, tls=client).open()
        assert not caught.value.needs_operator


# -- closing at each step


async def stall(peer: Peer) -> None:
    """Accepts, and says nothing."""


async def stall_before_tls(peer: Peer) -> None:
    await peer.identify(then=answer(tls_v1=True))


async def stall_after_half_of_tls(peer: Peer) -> None:
    await peer.identify(then=answer(tls_v1=True))
    await peer.read(5)
    await peer.say(b"\x16\x03\x03\x00\x7a\x02")


STALLS: dict[str, tuple[Speak, dict[str, Any]]] = {
    "nothing": (stall, {}),
    "half an answer": (up_to("IDENTIFY", answer()[:-1]), {}),
    "no TLS": (stall_before_tls, {"tls": True}),
    "half of TLS": (stall_after_half_of_tls, {"tls": True}),
    "no OK of snappy": (up_to("snappy", b""), {"compression": "snappy"}),
    "half an OK of deflate": (up_to("deflate", OK[:-1]), {"compression": "deflate"}),
    "no answer to AUTH": (up_to("AUTH", b""), {"auth_secret": Secret("s")}),
}


@pytest.mark.parametrize("how", ["close", "cancel"])
@pytest.mark.parametrize("where", STALLS)
async def test_it_can_be_closed_wherever_nsqd_stalls(where: str, how: str, client: tls_files.TlsClient) -> None:
    speak, said = STALLS[where]
    if "tls" in said:
        said = {**said, "tls": client}
    spoken = asyncio.Event()

    async def speak_and_tell(peer: Peer) -> None:
        await speak(peer)
        spoken.set()

    nobody = Nobody()
    tasks_before = asyncio.all_tasks()
    async with Told(speak_and_tell) as told:
        connection = connect(told, nobody, **said)
        opening = asyncio.create_task(connection.open())
        async with asyncio.timeout(PATIENCE_S):
            await spoken.wait()
            for _ in range(5):  # what was said arrives
                await asyncio.sleep(0)
            if how == "close":
                connection.close("no longer wanted")
                with pytest.raises(ConnectionLost, match="no longer wanted"):
                    await opening
            else:
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
        assert len(nobody.closed) == 1
        assert not connection.is_open
    assert asyncio.all_tasks() == tasks_before


async def test_closed_before_it_could_begin_it_never_connects() -> None:
    async with Told(stall) as told:
        connection = connect(told)
        connection.close("no longer wanted")
        with pytest.raises(ConnectionLost, match="no longer wanted"):
            await connection.open()
        assert told.came == 0


async def test_one_connection_that_talks_garbage_does_not_disturb_the_others() -> None:
    async with EmbeddedNsqd() as nsqd, Told(up_to("IDENTIFY", b"\xff" * 1_000)) as told:
        good = NsqConnection(Address(*nsqd.tcp_address), options(), Nobody())
        await good.open()
        await good.subscribe("events", "ch")
        for _ in range(20):
            with pytest.raises(ProtocolError):
                await connect(told).open()
        assert await good.request(b"PUB events\n\0\0\0\1x") == b"OK"
        await ends(good)


# -- IPv6


async def test_an_address_of_ipv6_is_one_like_others(certificates: Certificates, client: tls_files.TlsClient) -> None:
    async with EmbeddedNsqd() as nsqd:
        await nsqd.stop()
        await nsqd.start("::1")
        connection = NsqConnection(Address("::1", nsqd.tcp_address[1]), options(), Nobody())
        await connection.open()
        assert await connection.request(b"PUB events\n\0\0\0\1x") == b"OK"
        await ends(connection)


# -- fuzz: whatever is answered, it is a connection or an error of this product


async def _any_answer(step: str, then: bytes) -> None:
    async def speak(peer: Peer) -> None:
        await up_to(step, then)(peer)
        peer._writer.write_eof()

    nobody = Nobody()
    async with Told(speak) as told:
        connection = connect(told, nobody, **STEPS[step])
        with contextlib.suppress(NsqdigestError):
            await connection.open()
            await connection.closed()
        await connection.hang_up()
        assert len(nobody.closed) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
)
NAMES = ["max_rdy_count", "version", "msg_timeout", "max_msg_timeout", "tls_v1", "snappy", "deflate", "deflate_level",
         "auth_required"]  # fmt: skip
ANSWERS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4).map(lambda said: answer(**said))
FRAMES = st.builds(
    frame, st.sampled_from([0, 1, 2, 3, -1]), st.sampled_from([b"OK", HEARTBEAT, b"E_X y"]) | st.binary()
)
BYTES = st.lists(st.binary(max_size=40) | FRAMES | ANSWERS, max_size=4).map(b"".join)


@FUZZED
@given(st.sampled_from(list(STEPS)), BYTES)
def test_any_bytes_at_any_step_give_a_connection_or_an_error_of_ours(step: str, then: bytes) -> None:
    asyncio.run(_any_answer(step, then))
