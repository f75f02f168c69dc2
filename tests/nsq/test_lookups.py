"""Which nsqds are followed, and that a directory in trouble troubles nobody: real nsqds and nsqlookupds.

`Follower` stands where the consumer stands: it finishes every message that its links bring. What the daemon as a whole
makes of it is at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Nsq, parse_text
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Refusal
from nsqdigest.nsq import connections as connections_module
from nsqdigest.nsq import lookups as discovery_module
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.connections import Connections
from nsqdigest.nsq.directory import Directory
from nsqdigest.nsq.frames import FrameType, Message, frame
from nsqdigest.nsq.lookups import Discovery
from support.lookupd import Reply, ScriptedLookupd, http, naming
from support.ports import HOST, free_port
from support.publishing import Background
from support.servers import Nsqd, Nsqlookupd, NsqServer
from support.stage import CHANNEL as STAGE_CHANNEL
from support.stage import TOPIC, Stage
from support.waiting import until, wait_until

CHANNEL = "ch"
POLL_S = 0.1
SLACK_S = 2.0
"""What a shared machine may take over what is promised."""
TOPICS = (f"found-{number}" for number in itertools.count())
HasHttp = Nsqlookupd | ScriptedLookupd


def settings(lookupds: list[HasHttp], nsqds: list[Nsqd], lookupd_poll_interval: str = f"{POLL_S * 1000:g}ms") -> Nsq:
    def addresses(pairs: list[tuple[str, int]]) -> str:
        return ", ".join(f'"{Address(*pair)}"' for pair in pairs)

    text = f"""
        [nsq]
        nsqd_tcp_addresses = [{addresses([nsqd.tcp_address for nsqd in nsqds])}]
        lookupd_http_addresses = [{addresses([lookupd.http_address for lookupd in lookupds])}]
        lookupd_poll_interval = "{lookupd_poll_interval}"
        heartbeat_interval = "1s"
        [sinks.out]
        type = "log"
        [[routes]]
        topic = "t"
        timeline = "x"
        sink = "out"
        """
    return parse_text(text, "test.toml", {}).nsq


class Follower:
    def __init__(self, topic: str, lookupds: list[HasHttp], nsqds: list[Nsqd], **more: str) -> None:
        nsq = settings(lookupds, nsqds, **more)
        self.topic = topic
        self.metrics = Metrics()
        self.bodies: list[bytes] = []
        self.opened: list[NsqConnection] = []
        self.open: list[NsqConnection] = []
        self.drawn: list[tuple[float, float]] = []
        self.directory = Directory(nsq.nsqd_tcp_addresses, time.monotonic())
        self.connections = Connections(
            topic,
            CHANNEL,
            self.directory,
            ConnectionOptions(heartbeat_interval_ms=nsq.heartbeat_interval_ms),
            self,
            metrics=self.metrics,
            uniform=self.uniform,
        )
        self.discovery = Discovery(
            nsq, {topic: self.connections.on_lookup_answer}, metrics=self.metrics, uniform=self.uniform
        )
        self.longest_wait_s = 2.0

    def uniform(self, low: float, high: float) -> float:
        """The longest wait that may be drawn, up to a test's patience."""
        self.drawn.append((low, high))
        return min(high, self.longest_wait_s * 1000)

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.connections.run())
        self.discovery.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.discovery.stop()
        self.connections.stop_connecting()
        for connection in list(self.open):
            connection.close("the test ends")
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    # -- as the owner of the connections

    def on_open(self, connection: NsqConnection) -> None:
        self.opened.append(connection)
        self.open.append(connection)
        connection.set_rdy(100)

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]
        connection.fin(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        raise AssertionError(error)

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        if connection in self.open:
            self.open.remove(connection)

    # -- what the test asks

    @property
    def connected(self) -> set[tuple[str, int]]:
        return {(connection.address.host, connection.address.port) for connection in self.open}

    async def reaches(self, *nsqds: Nsqd, within_s: float = 5.0) -> None:
        wanted = {nsqd.tcp_address for nsqd in nsqds}
        await until(lambda: self.connected == wanted, within_s, f"connections to {wanted}")

    async def gets(self, nsqd: Nsqd, body: bytes, within_s: float = 5.0) -> None:
        await asyncio.to_thread(nsqd.publish, self.topic, body)
        await until(lambda: body in self.bodies, within_s, f"{body!r}")

    def failures(self) -> float:
        return self.metrics.total("lookupd_failures_total")

    def lost(self, reason: str) -> int:
        """Connections that ended for this reason, by the metric; of no other reason is there any."""
        name = "nsqd_connections_lost_total"
        count = self.metrics.value(name, topic=self.topic, reason=reason) or 0
        assert count == self.metrics.total(name)
        return int(count)

    async def several_rounds(self, lookupd: ScriptedLookupd, count: int = 5) -> None:
        asked = len(lookupd.requests) + count
        await until(lambda: len(lookupd.requests) >= asked, 10.0, "some rounds")


class Heard(logging.Handler):
    """The log's lines, as (level, event, fields)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, str(record.msg), getattr(record, "fields", {})))

    def said(self, event: str, level: int = logging.INFO) -> list[dict[str, Any]]:
        return [fields for at, name, fields in self.lines if name == event and at >= level]

    @property
    def warnings(self) -> list[str]:
        return [name for at, name, _ in self.lines if at >= logging.WARNING]


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler, ours = Heard(), logging.getLogger("nsqdigest")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(level)


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    with Nsqlookupd(tmp_path_factory.mktemp("nsqlookupd")) as server:
        yield server
    server.forget()


def registering(*lookupds: Nsqlookupd) -> list[str]:
    return [f"--lookupd-tcp-address={Address(*each.tcp_address)}" for each in lookupds]


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    """An nsqd that nothing is done to, known to the nsqlookupd of the module."""
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *registering(lookupd)) as server:
        yield server
    server.forget()


Start = Callable[..., Any]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of the test's own: `started(Nsqd, "--option")`."""
    with contextlib.ExitStack() as ending:

        def start(kind: type[NsqServer], *options: str, **more: Any) -> NsqServer:
            server = kind(tmp_path / f"server-{time.monotonic_ns()}", *options, **more)
            ending.callback(server.forget)
            return ending.enter_context(server)

        yield start


@pytest.fixture
async def following(topic: str) -> AsyncIterator[Start]:
    """Starts a follower of the test's topic: `await following([lookupd], [nsqd])`."""
    async with AsyncExitStack() as ending:

        async def follow(lookupds: list[HasHttp], nsqds: list[Nsqd] | None = None, **more: str) -> Follower:
            return await ending.enter_async_context(Follower(topic, lookupds, nsqds or [], **more))

        yield follow


pytestmark = [pytest.mark.integration, pytest.mark.servers]


# -- finding


async def test_what_a_nsqlookupd_names_is_connected_to_and_flows(
    lookupd: Nsqlookupd, steady: Nsqd, following: Start, topic: str, heard: Heard
) -> None:
    steady.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(steady, b"one")
    assert heard.warnings == []
    (found,) = heard.said("consumer.nsqd.found")
    assert found["lookupd"] == str(Address(*lookupd.http_address))


async def test_a_topic_that_does_not_exist_yet_is_waited_for(
    lookupd: Nsqlookupd, steady: Nsqd, following: Start, topic: str, heard: Heard
) -> None:
    follower = await following([lookupd])
    await until(lambda: follower.discovery.has_answers, what="an answer")
    assert follower.directory.addresses == ()
    await follower.gets(steady, b"the first of its topic", within_s=POLL_S * 1.3 + SLACK_S)
    assert heard.warnings == []
    assert follower.failures() == 0


async def test_a_topic_that_no_nsqlookupd_knows_yet_is_asked_for_at_its_own_pace_and_said(
    *, started: Start, following: Start, topic: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval is an hour; the nsqlookupd does not know the topic when it is asked first."""
    monkeypatch.setattr(discovery_module, "UNKNOWN_TOPIC_MS", 100)
    nsqd = started(Nsqd)
    async with ScriptedLookupd(naming()) as lookupd:
        follower = await following([lookupd], lookupd_poll_interval="1h")
        await follower.several_rounds(lookupd)
        lookupd.reply = naming(nsqd.tcp_address)
        await follower.gets(nsqd, b"the first of its topic", within_s=SLACK_S)
        asked = len(lookupd.requests)
        (said,) = heard.said("discovery.topic.unknown")
        assert (said["topic"], said["detail"], said["again_s"]) == (topic, "no nsqd has it yet", 0.1)
        lookupd.reply = naming()
        await follower.gets(nsqd, b"another")
        assert len(lookupd.requests) == asked, "known once, it is asked for at the interval"


async def test_two_nsqlookupds_that_know_different_nsqds_are_put_together(
    lookupd: Nsqlookupd, steady: Nsqd, started: Start, following: Start, topic: str
) -> None:
    other_lookupd = started(Nsqlookupd)
    other = started(Nsqd, *registering(other_lookupd))
    both = started(Nsqd, *registering(lookupd, other_lookupd))
    for nsqd in (steady, other, both):
        nsqd.create_topic(topic)
    follower = await following([lookupd, other_lookupd])
    await follower.reaches(steady, other, both)
    names = [str(Address(*each.http_address)) for each in (lookupd, other_lookupd)]
    sources = {address: follower.connections.entry(address).sources for address in follower.connections.addresses}
    assert sources == {
        Address(*steady.tcp_address): (names[0],),
        Address(*other.tcp_address): (names[1],),
        Address(*both.tcp_address): tuple(sorted(names)),
    }


async def test_an_nsqd_of_the_file_and_of_a_nsqlookupd_is_one_connection(
    lookupd: Nsqlookupd, steady: Nsqd, following: Start, topic: str
) -> None:
    steady.create_channel(topic, CHANNEL)
    follower = await following([lookupd], [steady])
    await until(lambda: len(follower.connections.entry(Address(*steady.tcp_address)).sources) == 2, what="both sources")
    await follower.gets(steady, b"one")
    assert len(follower.opened) == 1
    assert len(steady.channel_stats(topic, CHANNEL)["clients"]) == 1


async def test_on_ipv6_alone(started: Start, following: Start, topic: str) -> None:
    own = started(Nsqlookupd, host="::1")
    nsqd = started(Nsqd, *registering(own), host="::1")
    nsqd.create_topic(topic)
    follower = await following([own])
    await follower.gets(nsqd, b"over six")
    assert [str(address) for address in follower.connections.addresses] == [f"[::1]:{nsqd.ports[0]}"]


# -- nsqlookupds in trouble

BODY = b'{"channels":[],"producers":[]}'
TROUBLES: dict[str, tuple[Reply, str]] = {
    "bytes": (Reply(b"\x00\xff\x17 this is no HTTP\r\n\r\n"), "garbage"),
    "bad headers": (Reply(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}"), "garbage"),
    "a page": (Reply(http("200 OK", b"<html>hello</html>", "content-type: text/html")), "garbage"),
    "other JSON": (Reply(http("200 OK", b'{"producers": [{"broadcast_address": 7}]}')), "garbage"),
    "no body": (Reply(http("200 OK", b"")), "garbage"),
    "compressed": (Reply(http("200 OK", b"\x1f\x8b\x08\x00", "content-encoding: gzip")), "garbage"),
    "500": (Reply(http("500 Internal Server Error", b'{"message":"INTERNAL_ERROR"}')), "status"),
    "elsewhere": (Reply(http("302 Found", b"", "location: http://127.0.0.1:1/lookup")), "status"),
    "huge": (Reply(http("200 OK", b"[" * (2 << 20))), "too-large"),
    "half": (Reply(http("200 OK", BODY, length=500)), "garbage"),
    "silence": (Reply(b"", hangs_up=False), "slow"),
    "slow motion": (Reply(http("200 OK", BODY), pause_s=0.05), "slow"),
    "hanging up": (Reply(b""), "unreachable"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_nsqlookupd_in_trouble_hurts_nobody(
    *,
    trouble: str,
    lookupd: Nsqlookupd,
    steady: Nsqd,
    started: Start,
    following: Start,
    topic: str,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What flows keeps flowing, what is new is found through the other one, and it is said once."""
    reply, reason = TROUBLES[trouble]
    if reason == "slow":
        monkeypatch.setattr(discovery_module, "ANSWER_WITHIN_S", 0.3)
    flowing = started(Nsqd)
    async with ScriptedLookupd(naming(flowing.tcp_address)) as unwell:
        follower = await following([unwell, lookupd])
        await follower.gets(flowing, b"before")
        unwell.reply = reply
        await until(lambda: follower.failures() >= 1, what="a failure")
        await follower.gets(steady, b"new", within_s=POLL_S * 1.3 + SLACK_S)
        await until(lambda: follower.failures() >= 3, what="some failures")
        await follower.gets(flowing, b"after")
        assert [connection.address.port for connection in follower.opened] == [flowing.ports[0], steady.ports[0]]
        assert heard.warnings == ["discovery.lookupd.failed"]
        assert heard.said("discovery.lookupd.failed")[0]["reason"] == reason
        assert f'reason="{reason}"' in follower.metrics.text()
        unwell.reply = naming(flowing.tcp_address)
        await until(lambda: heard.said("discovery.lookupd.back"), what="its return to be said")
        assert heard.warnings == ["discovery.lookupd.failed"]


@pytest.mark.parametrize("reply", [naming(), Reply(http("404 Not Found", b'{"message":"TOPIC_NOT_FOUND"}'))])
async def test_a_nsqlookupd_that_forgets_a_live_nsqd_does_not_end_it(
    reply: Reply, steady: Nsqd, following: Start, heard: Heard
) -> None:
    async with ScriptedLookupd(naming(steady.tcp_address)) as forgetful:
        follower = await following([forgetful])
        await follower.gets(steady, b"before")
        forgetful.reply = reply
        await follower.several_rounds(forgetful)
        await follower.gets(steady, b"after")
        assert len(follower.opened) == 1
        assert heard.warnings == []


@pytest.mark.parametrize(("end", "begin"), [("stop", "start"), ("kill", "start"), ("pause", "resume")])
async def test_a_nsqlookupd_that_goes_and_comes_back(
    *,
    end: str,
    begin: str,
    started: Start,
    following: Start,
    topic: str,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery_module, "ANSWER_WITHIN_S", 0.3)
    own = started(Nsqlookupd)
    nsqd = started(Nsqd, *registering(own))
    nsqd.create_topic(topic)
    follower = await following([own])
    await follower.gets(nsqd, b"before")
    getattr(own, end)()
    await until(lambda: follower.failures() >= 2, what="failures")
    await follower.gets(nsqd, b"meanwhile")
    getattr(own, begin)()
    await until(lambda: heard.said("discovery.lookupd.back"), what="it to be back")
    await follower.gets(nsqd, b"after")
    assert len(follower.opened) == 1
    assert heard.warnings == ["discovery.lookupd.failed"]
    # nsqd speaks to its nsqlookupd again as soon as it has something to say.
    nsqd.create_topic(f"{topic}-other")
    newcomer = started(Nsqd, *registering(own))
    newcomer.create_topic(topic)
    await follower.reaches(nsqd, newcomer, within_s=POLL_S * 1.3 + SLACK_S)


async def test_without_any_nsqlookupd_an_nsqd_that_restarts_flows_again(
    started: Start, following: Start, topic: str, heard: Heard
) -> None:
    own = started(Nsqlookupd)
    nsqd = started(Nsqd, *registering(own))
    nsqd.create_topic(topic)
    follower = await following([own])
    await follower.gets(nsqd, b"before")
    own.kill()
    await until(lambda: follower.failures() >= 5, what="failures")
    nsqd.restart()
    await follower.gets(nsqd, b"after", within_s=follower.longest_wait_s + SLACK_S)
    assert heard.said("consumer.connection.open")[-1]["after_s"] < follower.longest_wait_s + SLACK_S


# -- nsqds in trouble


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_nsqd_that_ends_and_starts_again_flows_again(
    *, end: str, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, heard: Heard
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    nsqd.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(nsqd, b"before")
    getattr(nsqd, end)()
    await until(lambda: heard.said("consumer.connection.lost"), what="the loss to be said")
    nsqd.start()
    await follower.gets(nsqd, b"after", within_s=follower.longest_wait_s + SLACK_S)
    assert len(heard.said("consumer.connection.lost")) == 1
    assert follower.lost("closed") == 1


async def test_an_nsqd_that_moves_is_followed_and_its_old_address_forgotten(
    started: Start, following: Start, topic: str, lookupd: Nsqlookupd, heard: Heard
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    nsqd.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(nsqd, b"before")
    before = Address(*nsqd.tcp_address)
    nsqd.move()
    await follower.gets(nsqd, b"after", within_s=POLL_S * 1.3 + SLACK_S)
    await until(lambda: heard.said("consumer.nsqd.forgotten"), what="the old address to be forgotten")
    assert heard.said("consumer.nsqd.forgotten")[0]["nsqd"] == str(before)
    assert follower.connections.addresses == (Address(*nsqd.tcp_address),)
    assert follower.metrics.total("nsqd_addresses") == 1


async def test_an_nsqd_that_stands_still_slows_no_other_and_is_given_up_and_counted(
    *, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, steady: Nsqd, heard: Heard
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    for each in (nsqd, steady):
        each.create_topic(topic)
    follower = await following([lookupd])
    await follower.reaches(nsqd, steady)
    nsqd.pause()
    number = 0
    while not heard.said("consumer.connection.lost"):
        number += 1
        await follower.gets(steady, b"%d" % number)
    assert number >= 10, "it was waited for"
    assert follower.lost("silent") == 1
    nsqd.resume()
    await follower.gets(nsqd, b"after", within_s=connections_module.RECONNECT_FIRST_MS / 1000 + 5 + SLACK_S)


async def test_an_nsqd_that_is_named_again_is_tried_at_once(
    started: Start, following: Start, monkeypatch: pytest.MonkeyPatch, heard: Heard
) -> None:
    monkeypatch.setattr(connections_module, "RECONNECT_FIRST_MS", 3_600_000)
    nsqd = started(Nsqd)
    async with ScriptedLookupd(naming(nsqd.tcp_address)) as lookupd:
        # Of the file as well, so that its link goes on waiting.
        follower = await following([lookupd], [nsqd])
        follower.longest_wait_s = 3600.0
        await follower.reaches(nsqd)
        lookupd.reply = naming()
        nsqd.stop()
        await until(lambda: heard.said("consumer.connection.lost"), what="the loss")
        await follower.several_rounds(lookupd)
        nsqd.start()
        lookupd.reply = naming(nsqd.tcp_address)
        await follower.reaches(nsqd, within_s=POLL_S * 1.3 + SLACK_S)


# -- what cannot be reached


async def test_a_broadcast_address_that_can_not_be_reached_is_named_once_with_the_remedy(
    *, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, steady: Nsqd, heard: Heard
) -> None:
    nowhere = free_port()
    nsqd = started(Nsqd, *registering(lookupd), f"--broadcast-tcp-port={nowhere}")
    for each in (nsqd, steady):
        each.create_topic(topic)
    follower = await following([lookupd])
    follower.longest_wait_s = 0.3
    await until(lambda: len(heard.said("consumer.connection.failed", logging.DEBUG)) >= 4, what="some tries")
    await follower.gets(steady, b"one")
    (said,) = heard.said("consumer.connection.failed")
    assert said["nsqd"] == f"{HOST}:{nowhere}"
    assert "-broadcast-address" in said["hint"]
    assert heard.warnings == ["consumer.connection.failed"]


async def test_what_is_no_address_at_all_is_named_once_and_the_others_serve(
    following: Start, steady: Nsqd, heard: Heard
) -> None:
    async with ScriptedLookupd(naming(("two words", 4150), steady.tcp_address)) as lookupd:
        follower = await following([lookupd])
        await follower.gets(steady, b"one")
        await follower.several_rounds(lookupd)
        (said,) = heard.said("discovery.address.unusable")
        assert said["addresses"] == "two words:4150"
        assert "-broadcast-address" in said["hint"]
        assert heard.warnings == ["discovery.address.unusable"]


async def test_a_name_that_no_resolver_takes_is_named_once_and_the_others_serve(
    following: Start, steady: Nsqd, heard: Heard
) -> None:
    """Linux allows a host name of 64 characters, and nsqd broadcasts its host name."""
    async with ScriptedLookupd(naming(("x" * 64, 4150), ("a..b", 4150), steady.tcp_address)) as lookupd:
        follower = await following([lookupd])
        await follower.gets(steady, b"one")
        await follower.several_rounds(lookupd)
        (said,) = heard.said("discovery.address.unusable")
        assert said["count"] == 2
        assert heard.warnings == ["discovery.address.unusable"]


@pytest.mark.parametrize("where", ["name", "host"])
async def test_an_exception_of_one_connection_ends_no_other(
    *, where: str, following: Start, started: Start, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is, its address is tried again: a name that got past every check, or a bug in the host."""
    well, unwell = started(Nsqd), started(Nsqd)
    follower = await following([], [well])
    await follower.reaches(well)
    bad = Address("x" * 64, 4150) if where == "name" else Address(*unwell.tcp_address)
    on_open = follower.on_open

    def failing(connection: NsqConnection) -> None:
        if connection.address == bad:
            raise ValueError("odd")
        on_open(connection)

    monkeypatch.setattr(follower, "on_open", failing)
    follower.longest_wait_s = 0.01
    follower.connections.on_lookup_answer("lookupd", [bad])
    await until(lambda: len(heard.said("consumer.connection.failed", logging.DEBUG)) >= 3, what="some tries")
    assert not follower.task.done()
    await follower.gets(well, b"flows")
    bugs = {name for _, name, _ in heard.lines if name.endswith(".bug")}
    assert bugs == (set() if where == "name" else {"consumer.connection.bug"})


async def test_the_address_of_the_file_that_can_not_be_reached_has_no_such_hint(
    following: Start, started: Start, heard: Heard
) -> None:
    nsqd = started(Nsqd)
    nsqd.stop()
    await following([], [nsqd])
    await until(lambda: heard.said("consumer.connection.failed"), what="the failure")
    assert "hint" not in heard.said("consumer.connection.failed")[0]


# -- trying again


def refusing(code: str) -> Callable[[Connection, str, Any], Refusal | None]:
    return lambda _connection, name, _params: Refusal(code, "it says why") if name == "SUB" else None


async def failing_follower(following: Start, embedded: EmbeddedNsqd, tries: int) -> Follower:
    """One that tries so often as fast as it may, whatever it draws."""
    async with ScriptedLookupd(naming(embedded.tcp_address)) as lookupd:
        follower: Follower = await following([lookupd])
        follower.longest_wait_s = 0.01
        await embedded.until(lambda: len(embedded.connections) >= tries)
        return follower


async def test_the_wait_is_drawn_from_a_growing_window_up_to_5_s(following: Start, heard: Heard) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = refusing("E_BAD_CHANNEL")
        follower = await failing_follower(following, embedded, 7)
        windows = [window for window in follower.drawn if window[0] == connections_module.RECONNECT_FIRST_MS]
        assert windows[:6] == [(250, high) for high in (750, 2_250, 5_000, 5_000, 5_000, 5_000)]
        assert len(heard.said("consumer.connection.failed")) == 1, "the same failure was said again"


async def test_another_failure_is_said(following: Start, heard: Heard) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = refusing("E_BAD_CHANNEL")
        follower = await failing_follower(following, embedded, 3)
        embedded.script.answer = refusing("E_BAD_TOPIC")
        await until(lambda: len(heard.said("consumer.connection.failed")) == 2, what="the other failure")
        embedded.script.answer = None
        await until(lambda: follower.open, what="a connection")
        assert "after_s" in heard.said("consumer.connection.open")[0]


async def test_whoever_hangs_up_at_once_is_tried_less_and_less(following: Start) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = lambda _connection, name, _params: (
            Refusal("E_INVALID", "no RDY here") if name == "RDY" else None
        )
        follower = await failing_follower(following, embedded, 5)
        windows = [window for window in follower.drawn if window[0] == connections_module.RECONNECT_FIRST_MS]
        assert [high for _, high in windows[:4]] == [750, 2_250, 5_000, 5_000]


async def test_a_connection_that_ends_with_the_answer_to_sub_is_not_handed_on(following: Start) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = lambda _connection, name, _params: (
            frame(FrameType.RESPONSE, b"OK") + frame(FrameType.ERROR, b"E_INVALID after all") if name == "SUB" else None
        )
        follower = await failing_follower(following, embedded, 3)
        assert follower.opened == []


async def test_where_only_the_operator_can_help_the_wait_is_long_from_the_first(
    started: Start, following: Start, heard: Heard
) -> None:
    nsqd = started(Nsqd, "--auth-http-address=127.0.0.1:1")
    follower = await following([], [nsqd])
    follower.longest_wait_s = 60.0
    await until(lambda: heard.said("consumer.connection.failed"), what="the failure")
    (said,) = heard.said("consumer.connection.failed")
    assert follower.drawn == [(15_000, 30_000)]
    assert said["again_s"] == 30.0


# -- the end


async def test_nothing_is_begun_once_it_is_held_and_what_is_open_stays(
    following: Start, steady: Nsqd, started: Start
) -> None:
    other = started(Nsqd)
    async with ScriptedLookupd(naming(steady.tcp_address)) as lookupd:
        follower = await following([lookupd])
        await follower.reaches(steady)
        follower.connections.stop_connecting()
        lookupd.reply = naming(steady.tcp_address, other.tcp_address)
        await follower.several_rounds(lookupd)
        assert follower.connected == {steady.tcp_address}
        await follower.gets(steady, b"still")


async def test_forgotten_while_it_is_being_connected_to_it_is_let_go(following: Start, heard: Heard) -> None:
    async with EmbeddedNsqd() as mute:
        mute.script.answer = lambda _connection, name, _params: b"" if name == "SUB" else None
        async with ScriptedLookupd(naming(mute.tcp_address)) as lookupd:
            follower = await following([lookupd])
            await mute.until(lambda: mute.connections and mute.connections[0].commands[-1][0] == "SUB")
            lookupd.reply = naming()
            await mute.until(lambda: not mute.connections[0].open)
            assert follower.connections.addresses == ()
            assert len(heard.said("consumer.nsqd.forgotten")) == 1
            assert heard.warnings == []


async def test_no_task_outlives_its_owner(lookupd: Nsqlookupd, steady: Nsqd, topic: str, started: Start) -> None:
    gone = started(Nsqd)
    gone.stop()
    before = asyncio.all_tasks()
    async with EmbeddedNsqd() as mute, ScriptedLookupd(naming(mute.tcp_address)) as naming_it:
        mute.freeze()
        async with Follower(topic, [lookupd, naming_it], [steady, gone]) as follower:
            await follower.reaches(steady)
            await mute.until(lambda: mute.connections)
    await until(lambda: asyncio.all_tasks() == before, what="all tasks to have ended")


# -- the daemon as a whole


def behind(lookupds: list[Nsqlookupd], **more: Any) -> dict[str, dict[str, Any]]:
    return {
        "nsq": {
            "nsqd_tcp_addresses": [],
            "lookupd_http_addresses": [str(Address(*lookupd.http_address)) for lookupd in lookupds],
            "lookupd_poll_interval": "100ms",
            "heartbeat_interval": "1s",
            **more,
        }
    }


def test_a_daemon_follows_nsqds_that_come_move_and_restart_under_load(stage: Stage, started: Start) -> None:
    lookupd = started(Nsqlookupd)
    first = stage.nsqd(*registering(lookupd))
    stage.receiver()
    daemon = stage.daemon(behind([lookupd]))
    daemon.start()
    with Background(stage.publisher(first, prefix="first"), 4_000, per_s=2_000):
        second = stage.nsqd(*registering(lookupd))
        stage.publisher(second, prefix="second").publish(500)
        wait_until(lambda: daemon.metric("nsqd_connections", topic=TOPIC) == 2, 5, "both nsqds")
        lookupd.kill()
        second.restart()
        stage.publisher(second, prefix="without").publish(500)
        wait_until(lambda: second.channel_stats(TOPIC, STAGE_CHANNEL)["depth"] == 0, 5, "it to flow without nsqlookupd")
        lookupd.start()
        second.move()
        stage.publisher(second, prefix="moved").publish(500)
    stage.wait_until_all_is_delivered()
    stage.check()
    assert daemon.metric("lookupd_failures_total", reason="unreachable") > 0


def test_readiness_says_which_nsqds_there_are(stage: Stage, started: Start) -> None:
    lookupd, other = started(Nsqlookupd), started(Nsqlookupd)
    other.stop()
    stage.receiver()
    daemon = stage.daemon(behind([lookupd, other]))
    daemon.start()
    detail = daemon.get("/readyz?verbose")[1]
    assert f"[+] topic {TOPIC}: no nsqlookupd knows an nsqd that has it yet; the daemon goes on asking" in detail
    assert "[+] nsqlookupd: 1 of 2 answer" in detail
    nsqds = [stage.nsqd(*registering(lookupd)) for _ in range(2)]
    wait_until(lambda: f"{TOPIC}: 2 of 2 nsqd connected" in daemon.get("/readyz?verbose")[1], 5, "both")
    nsqds[0].pause()
    wait_until(lambda: f"{TOPIC}: 1 of 2 nsqd connected" in daemon.get("/readyz?verbose")[1], 8, "one to be given up")
    assert daemon.metric("nsqd_connections_lost_total", reason="silent") == 1
    lookupd.stop()
    wait_until(lambda: "nsqlookupd: 0 of 2 answer" in daemon.get("/readyz?verbose")[1], 5, "no answers")
    assert daemon.is_ready(), "what is connected flows on"
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: len(daemon.said("daemon.state.nsqd")) == 2, 5, "its state")
    said = {line["nsqd"]: line["connected"] for line in daemon.said("daemon.state.nsqd")}
    assert said == {str(Address(*nsqds[0].tcp_address)): False, str(Address(*nsqds[1].tcp_address)): True}
    assert {line["sources"] for line in daemon.said("daemon.state.nsqd")} == {str(Address(*lookupd.http_address))}
    stage.check_logs()


def test_without_nsqd_and_without_an_answer_it_is_not_ready(stage: Stage, started: Start) -> None:
    lookupd = started(Nsqlookupd)
    lookupd.stop()
    stage.receiver()
    daemon = stage.daemon(behind([lookupd]))
    daemon.launch()
    wait_until(lambda: daemon.said("discovery.lookupd.failed"), 5, "the failure to be said")
    status, text = daemon.get("/readyz")
    assert status == 503
    assert f"[-] topic {TOPIC}: no nsqd is known, and no nsqlookupd answers" in text
    daemon.term()
    assert daemon.wait(8.0) == 0
    stage.check_logs()
