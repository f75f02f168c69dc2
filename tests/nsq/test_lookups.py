"""Which nsqds are found, and that a nsqlookupd in trouble hurts nothing: real nsqds and nsqlookupds."""

from __future__ import annotations

import pytest

from nsqdigest.config import Address
from nsqdigest.nsq import lookups as discovery_module
from support.follower import CHANNEL, POLL_S, SLACK_S, LogLines, Start, registering
from support.lookupd import Reply, ScriptedLookupd, http, naming
from support.servers import Nsqd, Nsqlookupd
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.servers]


# -- finding


async def test_what_a_nsqlookupd_names_is_connected_to_and_flows(
    lookupd: Nsqlookupd, steady: Nsqd, following: Start, topic: str, logged: LogLines
) -> None:
    steady.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(steady, b"one")
    assert logged.warnings == []
    (found,) = logged.of("consumer.nsqd.found")
    assert found["lookupd"] == str(Address(*lookupd.http_address))


async def test_a_topic_that_does_not_exist_yet_is_waited_for(
    lookupd: Nsqlookupd, steady: Nsqd, following: Start, topic: str, logged: LogLines
) -> None:
    follower = await following([lookupd])
    await until(lambda: follower.discovery.has_answers, what="an answer")
    assert follower.directory.addresses == ()
    await follower.gets(steady, b"the first of its topic", within_s=POLL_S * 1.3 + SLACK_S)
    assert logged.warnings == []
    assert follower.failures() == 0


async def test_a_topic_that_no_nsqlookupd_knows_yet_is_asked_for_at_its_own_pace_and_said(
    *, started: Start, following: Start, topic: str, logged: LogLines, monkeypatch: pytest.MonkeyPatch
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
        (said,) = logged.of("discovery.topic.unknown")
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
    logged: LogLines,
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
        assert logged.warnings == ["discovery.lookupd.failed"]
        assert logged.of("discovery.lookupd.failed")[0]["reason"] == reason
        assert f'reason="{reason}"' in follower.metrics.text()
        unwell.reply = naming(flowing.tcp_address)
        await until(lambda: logged.of("discovery.lookupd.back"), what="its return to be said")
        assert logged.warnings == ["discovery.lookupd.failed"]


@pytest.mark.parametrize("reply", [naming(), Reply(http("404 Not Found", b'{"message":"TOPIC_NOT_FOUND"}'))])
async def test_a_nsqlookupd_that_forgets_a_live_nsqd_does_not_end_it(
    reply: Reply, steady: Nsqd, following: Start, logged: LogLines
) -> None:
    async with ScriptedLookupd(naming(steady.tcp_address)) as forgetful:
        follower = await following([forgetful])
        await follower.gets(steady, b"before")
        forgetful.reply = reply
        await follower.several_rounds(forgetful)
        await follower.gets(steady, b"after")
        assert len(follower.opened) == 1
        assert logged.warnings == []


@pytest.mark.parametrize(("end", "begin"), [("stop", "start"), ("kill", "start"), ("pause", "resume")])
async def test_a_nsqlookupd_that_goes_and_comes_back(
    *,
    end: str,
    begin: str,
    started: Start,
    following: Start,
    topic: str,
    logged: LogLines,
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
    await until(lambda: logged.of("discovery.lookupd.back"), what="it to be back")
    await follower.gets(nsqd, b"after")
    assert len(follower.opened) == 1
    assert logged.warnings == ["discovery.lookupd.failed"]
    # nsqd speaks to its nsqlookupd again as soon as it has something to say.
    nsqd.create_topic(f"{topic}-other")
    newcomer = started(Nsqd, *registering(own))
    newcomer.create_topic(topic)
    await follower.reaches(nsqd, newcomer, within_s=POLL_S * 1.3 + SLACK_S)


async def test_without_any_nsqlookupd_an_nsqd_that_restarts_flows_again(
    started: Start, following: Start, topic: str, logged: LogLines
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
    assert logged.of("consumer.connection.open")[-1]["after_s"] < follower.longest_wait_s + SLACK_S


# -- broadcast addresses that cannot be one


async def test_what_is_no_address_at_all_is_named_once_and_the_others_serve(
    following: Start, steady: Nsqd, logged: LogLines
) -> None:
    async with ScriptedLookupd(naming(("two words", 4150), steady.tcp_address)) as lookupd:
        follower = await following([lookupd])
        await follower.gets(steady, b"one")
        await follower.several_rounds(lookupd)
        (said,) = logged.of("discovery.address.unusable")
        assert said["addresses"] == "two words:4150"
        assert "-broadcast-address" in said["hint"]
        assert logged.warnings == ["discovery.address.unusable"]


async def test_a_name_that_no_resolver_takes_is_named_once_and_the_others_serve(
    following: Start, steady: Nsqd, logged: LogLines
) -> None:
    """Linux allows a host name of 64 characters, and nsqd broadcasts its host name."""
    async with ScriptedLookupd(naming(("x" * 64, 4150), ("a..b", 4150), steady.tcp_address)) as lookupd:
        follower = await following([lookupd])
        await follower.gets(steady, b"one")
        await follower.several_rounds(lookupd)
        (said,) = logged.of("discovery.address.unusable")
        assert said["count"] == 2
        assert logged.warnings == ["discovery.address.unusable"]
