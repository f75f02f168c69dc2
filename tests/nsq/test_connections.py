"""Connections are kept up: nsqds that restart, move, stand still or refuse, and the end. Real and embedded nsqds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from nsqdigest.config import Address
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Refusal
from nsqdigest.nsq import connections as connections_module
from nsqdigest.nsq.connection import NsqConnection
from nsqdigest.nsq.frames import FrameType, frame
from support.follower import CHANNEL, POLL_S, SLACK_S, Follower, LogLines, Start, registering
from support.lookupd import ScriptedLookupd, naming
from support.ports import HOST, free_port
from support.servers import Nsqd, Nsqlookupd
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.servers]


# -- nsqds in trouble


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_nsqd_that_ends_and_starts_again_flows_again(
    *, end: str, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, logged: LogLines
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    nsqd.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(nsqd, b"before")
    getattr(nsqd, end)()
    await until(lambda: logged.of("consumer.connection.lost"), what="the loss to be said")
    nsqd.start()
    await follower.gets(nsqd, b"after", within_s=follower.longest_wait_s + SLACK_S)
    assert len(logged.of("consumer.connection.lost")) == 1
    assert follower.lost("closed") == 1


async def test_an_nsqd_that_moves_is_followed_and_its_old_address_forgotten(
    started: Start, following: Start, topic: str, lookupd: Nsqlookupd, logged: LogLines
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    nsqd.create_topic(topic)
    follower = await following([lookupd])
    await follower.gets(nsqd, b"before")
    before = Address(*nsqd.tcp_address)
    nsqd.move()
    await follower.gets(nsqd, b"after", within_s=POLL_S * 1.3 + SLACK_S)
    await until(lambda: logged.of("consumer.nsqd.forgotten"), what="the old address to be forgotten")
    assert logged.of("consumer.nsqd.forgotten")[0]["nsqd"] == str(before)
    assert follower.connections.addresses == (Address(*nsqd.tcp_address),)
    assert follower.metrics.total("nsqd_addresses") == 1


async def test_an_nsqd_that_stands_still_slows_no_other_and_is_given_up_and_counted(
    *, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, steady: Nsqd, logged: LogLines
) -> None:
    nsqd = started(Nsqd, *registering(lookupd))
    for each in (nsqd, steady):
        each.create_topic(topic)
    follower = await following([lookupd])
    await follower.reaches(nsqd, steady)
    nsqd.pause()
    number = 0
    while not logged.of("consumer.connection.lost"):
        number += 1
        await follower.gets(steady, b"%d" % number)
    assert number >= 3, "it was waited for"  # in two seconds: whoever waits for it gets one
    assert follower.lost("silent") == 1
    nsqd.resume()
    await follower.reaches(nsqd, steady, within_s=connections_module.RECONNECT_FIRST_MS / 1000 + 5 + SLACK_S)
    # Before it has read the end of the old connection it may send the message there.
    await until(lambda: len(nsqd.channel_stats(topic, CHANNEL)["clients"]) == 1, what="the old connection to be gone")
    await follower.gets(nsqd, b"after")


async def test_an_nsqd_that_is_named_again_is_tried_at_once(
    started: Start, following: Start, monkeypatch: pytest.MonkeyPatch, logged: LogLines
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
        await until(lambda: logged.of("consumer.connection.lost"), what="the loss")
        await follower.several_rounds(lookupd)
        nsqd.start()
        lookupd.reply = naming(nsqd.tcp_address)
        await follower.reaches(nsqd, within_s=POLL_S * 1.3 + SLACK_S)


# -- what cannot be reached


async def test_a_broadcast_address_that_can_not_be_reached_is_named_once_with_the_remedy(
    *, started: Start, following: Start, topic: str, lookupd: Nsqlookupd, steady: Nsqd, logged: LogLines
) -> None:
    nowhere = free_port()
    nsqd = started(Nsqd, *registering(lookupd), f"--broadcast-tcp-port={nowhere}")
    for each in (nsqd, steady):
        each.create_topic(topic)
    follower = await following([lookupd])
    follower.longest_wait_s = 0.3
    await until(lambda: len(logged.of("consumer.connection.failed", logging.DEBUG)) >= 4, what="some tries")
    await follower.gets(steady, b"one")
    (said,) = logged.of("consumer.connection.failed")
    assert said["nsqd"] == f"{HOST}:{nowhere}"
    assert "-broadcast-address" in said["hint"]
    assert logged.warnings == ["consumer.connection.failed"]


@pytest.mark.parametrize("where", ["name", "host"])
async def test_an_exception_of_one_connection_ends_no_other(
    *, where: str, following: Start, started: Start, logged: LogLines, monkeypatch: pytest.MonkeyPatch
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
    await until(lambda: len(logged.of("consumer.connection.failed", logging.DEBUG)) >= 3, what="some tries")
    assert not follower.task.done()
    await follower.gets(well, b"flows")
    bugs = {name for _, name, _ in logged.lines if name.endswith(".bug")}
    assert bugs == (set() if where == "name" else {"consumer.connection.bug"})


async def test_the_address_of_the_file_that_can_not_be_reached_has_no_such_hint(
    following: Start, started: Start, logged: LogLines
) -> None:
    nsqd = started(Nsqd)
    nsqd.stop()
    await following([], [nsqd])
    await until(lambda: logged.of("consumer.connection.failed"), what="the failure")
    assert "hint" not in logged.of("consumer.connection.failed")[0]


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


async def test_the_wait_is_drawn_from_a_growing_window_up_to_5_s(following: Start, logged: LogLines) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = refusing("E_BAD_CHANNEL")
        follower = await failing_follower(following, embedded, 7)
        windows = [window for window in follower.drawn if window[0] == connections_module.RECONNECT_FIRST_MS]
        assert windows[:6] == [(250, high) for high in (750, 2_250, 5_000, 5_000, 5_000, 5_000)]
        assert len(logged.of("consumer.connection.failed")) == 1, "the same failure was said again"


async def test_another_failure_is_said(following: Start, logged: LogLines) -> None:
    async with EmbeddedNsqd() as embedded:
        embedded.script.answer = refusing("E_BAD_CHANNEL")
        follower = await failing_follower(following, embedded, 3)
        embedded.script.answer = refusing("E_BAD_TOPIC")
        await until(lambda: len(logged.of("consumer.connection.failed")) == 2, what="the other failure")
        embedded.script.answer = None
        await until(lambda: follower.open, what="a connection")
        assert "after_s" in logged.of("consumer.connection.open")[0]


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
    started: Start, following: Start, logged: LogLines
) -> None:
    nsqd = started(Nsqd, "--auth-http-address=127.0.0.1:1")
    follower = await following([], [nsqd])
    follower.longest_wait_s = 60.0
    await until(lambda: logged.of("consumer.connection.failed"), what="the failure")
    (said,) = logged.of("consumer.connection.failed")
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


async def test_forgotten_while_it_is_being_connected_to_it_is_let_go(following: Start, logged: LogLines) -> None:
    async with EmbeddedNsqd() as mute:
        mute.script.answer = lambda _connection, name, _params: b"" if name == "SUB" else None
        async with ScriptedLookupd(naming(mute.tcp_address)) as lookupd:
            follower = await following([lookupd])
            await mute.until(lambda: mute.connections and mute.connections[0].commands[-1][0] == "SUB")
            lookupd.reply = naming()
            await mute.until(lambda: not mute.connections[0].open)
            assert follower.connections.addresses == ()
            assert len(logged.of("consumer.nsqd.forgotten")) == 1
            assert logged.warnings == []


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
