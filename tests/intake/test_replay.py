"""replay.py on a real nsqd: each letter ends as its event in its topic, or stays; none is lost, whatever happens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.config import Address
from nsqdigest.config import Limits as EventLimits
from nsqdigest.intake import replay as replay_module
from nsqdigest.intake.letter_reading import Choice, Judge, Stays
from nsqdigest.intake.letters import DeadLetters, Letter
from nsqdigest.intake.replay import Ended, Handled, Limits, Replay, Run
from nsqdigest.intake.routing import IntakeRoute, Router
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.frames import Message
from nsqdigest.nsq.publisher import Publisher
from nsqdigest.store.schedule import Plan
from support.nsqclient import NsqClient
from support.ports import HOST
from support.proxy import Mode, Proxy
from support.servers import Nsqd
from support.settings import POLICY, ROUTE
from support.waiting import until

pytestmark = pytest.mark.integration

TOPIC, DEAD, CHANNEL = "t", "dead", "ch"
OPTIONS = ConnectionOptions(heartbeat_interval_ms=2_000)
EVENT_LIMITS = EventLimits(
    event_bytes=1 << 20, key_bytes=256, depth=64, timelines=1000, dead_digests=1000, future_ms=1000, past_ms=0
)
ANY = Choice()
ALL = Limits(letters=1000, per_s=10_000, dry_run=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "IDLE_S", 0.4)


def letter(body: bytes, topic: str = TOPIC) -> bytes:
    message = Message(b"0123456789abcdef", time.time_ns(), 1, body)
    written = Letter(message, DeadLetterReason.MISSING_FIELD, "why")
    return DeadLetters(Publisher(OPTIONS), DEAD, CHANNEL).encoded(Address("127.0.0.1", 4150), topic, written)


def event(number: int) -> bytes:
    return b'{"x": "ada", "n": %d}' % number


def dead(nsqd: Nsqd, *bodies: bytes) -> None:
    nsqd.create_channel(TOPIC, CHANNEL)
    nsqd.publish_many(DEAD, bodies)


async def replayed(
    *nsqds: Nsqd | tuple[str, int],
    choice: Choice = ANY,
    limits: Limits = ALL,
    on_handled: Callable[[Handled], None] = lambda _: None,
    options: ConnectionOptions = OPTIONS,
) -> Run:
    judge = Judge({TOPIC: Router([IntakeRoute(0, ROUTE, Plan(POLICY))], EVENT_LIMITS)}, choice)
    addresses = [Address(*(each.tcp_address if isinstance(each, Nsqd) else each)) for each in nsqds]
    return await Replay(options, judge, limits, on_handled).run(addresses, DEAD, CHANNEL)


def left(nsqd: Nsqd) -> dict[str, Any]:
    stats = nsqd.channel_stats(DEAD, CHANNEL)
    return {name: stats[name] for name in ("depth", "in_flight_count", "deferred_count")}


def staying(number: int) -> dict[str, Any]:
    """At once, and to be handed over at once."""
    return {"depth": number, "in_flight_count": 0, "deferred_count": 0}


async def in_topic(nsqd: Nsqd, count: int) -> list[bytes]:
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await client.sub(TOPIC, CHANNEL)
        client.rdy(count + 1)
        taken = await client.take(count)
        for message in taken:
            client.fin(message)
        return sorted(message.body for message in taken)


async def test_every_event_goes_to_its_topic_byte_for_byte(nsqd: Nsqd) -> None:
    bodies = [event(number) for number in range(300)]
    dead(nsqd, *map(letter, bodies))
    run = await replayed(nsqd)
    assert (run.ended, run.replayed, run.stayed, run.problems) == (Ended.EMPTY, {TOPIC: 300}, {}, [])
    assert left(nsqd) == staying(0)
    assert await in_topic(nsqd, 300) == sorted(bodies)


async def test_what_cannot_be_replayed_stays_and_is_there_at_once(nsqd: Nsqd) -> None:
    dead(nsqd, letter(b"{}"), b"no letter", letter(event(1)), letter(b"x", topic="elsewhere"), letter(b'{"x":"\xff"}'))
    handled: list[Handled] = []
    run = await replayed(nsqd, on_handled=handled.append)
    assert run.replayed == {TOPIC: 1}
    assert run.stayed == {Stays.STILL_BAD: 2, Stays.NO_LETTER: 1, Stays.OTHER_TOPIC: 1}
    assert left(nsqd) == staying(4)
    assert sorted(each.stays or "" for each in handled) == ["", "no-letter", "other-topic", "still-bad", "still-bad"]
    again = await replayed(nsqd)
    assert (again.replayed.total(), again.stayed.total()) == (0, 4)
    assert left(nsqd) == staying(4)


async def test_what_is_not_selected_stays(nsqd: Nsqd) -> None:
    dead(nsqd, *(letter(event(number)) for number in range(10)))
    run = await replayed(nsqd, choice=Choice(contains=b'"n": 7'))
    assert (run.replayed, run.stayed) == ({TOPIC: 1}, {Stays.NOT_SELECTED: 9})
    assert left(nsqd) == staying(9)


async def test_a_dry_run_publishes_nothing(nsqd: Nsqd) -> None:
    dead(nsqd, letter(event(1)), letter(b"{}"))
    run = await replayed(nsqd, limits=ALL._replace(dry_run=True))
    assert (run.replayed, run.stayed) == ({TOPIC: 1}, {Stays.STILL_BAD: 1})
    assert left(nsqd) == staying(2)
    assert nsqd.topic_stats(TOPIC)["message_count"] == 0


async def test_no_more_than_the_limit(nsqd: Nsqd) -> None:
    dead(nsqd, *(letter(event(number)) for number in range(50)))
    run = await replayed(nsqd, limits=ALL._replace(letters=7))
    assert (run.ended, run.replayed) == (Ended.LIMIT, {TOPIC: 7})
    assert left(nsqd) == staying(43)
    assert nsqd.topic_stats(TOPIC)["message_count"] == 7


async def test_no_faster_than_the_rate(nsqd: Nsqd) -> None:
    dead(nsqd, *(letter(event(number)) for number in range(11)))
    began_s = time.monotonic()
    run = await replayed(nsqd, limits=ALL._replace(per_s=20))
    assert run.replayed == {TOPIC: 11}
    assert time.monotonic() - began_s >= 10 / 20


@pytest.mark.parametrize("dry_run", [False, True])
async def test_more_letters_that_stay_than_nsqd_hands_over_hide_none_that_can_be_replayed(
    nsqd_factory: Callable[..., Nsqd], dry_run: bool
) -> None:
    nsqd = nsqd_factory("--max-rdy-count=25")
    dead(nsqd, *(letter(b"{}") for _ in range(60)), *(letter(event(number)) for number in range(10)))
    run = await replayed(nsqd, limits=ALL._replace(dry_run=dry_run))
    assert (run.ended, run.replayed, run.stayed) == (Ended.EMPTY, {TOPIC: 10}, {Stays.STILL_BAD: 60})
    assert run.reasons.total() == 70
    there = left(nsqd)
    assert there["in_flight_count"] == 0
    assert there["deferred_count"] == run.put_off > 0
    assert there["depth"] + run.put_off == (70 if dry_run else 60)


async def test_an_nsqd_that_hands_over_one_at_a_time_shows_all_of_them(nsqd_factory: Callable[..., Nsqd]) -> None:
    nsqd = nsqd_factory("--max-rdy-count=1")
    dead(nsqd, *(letter(b"{}") for _ in range(5)), letter(event(1)))
    run = await replayed(nsqd)
    assert (run.ended, run.replayed, run.stayed) == (Ended.EMPTY, {TOPIC: 1}, {Stays.STILL_BAD: 5})


async def test_the_end_comes_before_the_messages_time_out(nsqd_factory: Callable[..., Nsqd]) -> None:
    """An nsqd that allows no longer one than the file has."""
    nsqd = nsqd_factory("--max-msg-timeout=2s", "--msg-timeout=1s")
    dead(nsqd, *(letter(event(number)) for number in range(50)))
    run = await replayed(nsqd, limits=ALL._replace(per_s=10))
    assert run.ended is Ended.TIME
    assert 0 < run.replayed[TOPIC] < 12
    assert left(nsqd) == staying(50 - run.replayed[TOPIC])


async def test_letters_of_several_nsqds_go_back_to_their_own(nsqd_factory: Callable[..., Nsqd]) -> None:
    nsqds = [nsqd_factory() for _ in range(3)]
    for number, nsqd in enumerate(nsqds):
        dead(nsqd, *(letter(event(100 * number + each)) for each in range(20)))
    run = await replayed(*nsqds)
    assert run.replayed == {TOPIC: 60}
    for number, nsqd in enumerate(nsqds):
        assert await in_topic(nsqd, 20) == sorted(event(100 * number + each) for each in range(20))


async def test_an_nsqd_that_is_down_stops_no_other(nsqd_factory: Callable[..., Nsqd]) -> None:
    up, down = nsqd_factory(), nsqd_factory()
    dead(up, letter(event(1)))
    down.stop()
    run = await replayed(up, down)
    assert run.replayed == {TOPIC: 1}
    (problem,) = run.problems
    assert str(Address(*down.tcp_address)) in problem
    assert (await replayed(down)).ended is Ended.FAILED


async def test_what_comes_back_in_the_same_run_is_not_replayed_for_ever(nsqd: Nsqd) -> None:
    """A daemon that still has the old file makes a letter of it again."""
    dead(nsqd, letter(event(1)))
    times = 0

    def back_again(handled: Handled) -> None:
        nonlocal times
        times += 1
        if handled.stays is None:
            nsqd.publish(DEAD, letter(event(1)))

    run = await replayed(nsqd, on_handled=back_again)
    assert (run.replayed, run.stayed, times) == ({TOPIC: 1}, {Stays.CAME_BACK: 1}, 2)
    assert left(nsqd) == staying(1)


async def test_equal_events_that_were_there_before_are_all_replayed(nsqd: Nsqd) -> None:
    dead(nsqd, *(letter(event(1)) for _ in range(5)))
    run = await replayed(nsqd)
    assert (run.replayed, run.stayed) == ({TOPIC: 5}, {})


async def test_an_event_that_nsqd_refuses_stays_and_stops_no_other(nsqd: Nsqd) -> None:
    dead(nsqd, letter(b"x", topic="no topic!"), letter(b"y", topic="fine"))
    refused = await replayed(nsqd, choice=Choice(topic="no topic!"))
    assert refused.stayed == {Stays.NOT_PUBLISHED: 1, Stays.NOT_SELECTED: 1}
    assert (refused.ended, refused.problems) == (Ended.EMPTY, [])
    assert left(nsqd) == staying(2)


async def test_an_interrupted_run_gives_everything_back_at_once(nsqd: Nsqd) -> None:
    dead(nsqd, *(letter(event(number)) for number in range(40)))
    handled: list[Handled] = []
    task = asyncio.create_task(replayed(nsqd, limits=ALL._replace(per_s=20), on_handled=handled.append))
    await until(lambda: len(handled) >= 3, what="a few letters")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    published = nsqd.topic_stats(TOPIC)["message_count"]
    assert left(nsqd)["in_flight_count"] == 0
    assert 40 - published <= left(nsqd)["depth"] <= 40 - len(handled)


async def test_where_the_connections_break_no_event_is_lost(nsqd_factory: Callable[..., Nsqd]) -> None:
    """nsqd may have the event whose acknowledgement was lost: it goes twice rather than not at all."""
    nsqd = nsqd_factory("--max-msg-timeout=2s", "--msg-timeout=1s")
    bodies = [event(number) for number in range(30)]
    dead(nsqd, *map(letter, bodies))
    async with Proxy(nsqd.tcp_address[1]) as proxy:
        handled: list[Handled] = []

        def cut(each: Handled) -> None:
            handled.append(each)
            if len(handled) == 10:
                proxy.mode = Mode.RESET_REPLIES

        run = await replayed((HOST, proxy.port), on_handled=cut)
    assert run.ended is Ended.FAILED
    assert run.problems
    # What it had in flight comes back when it has timed out; nsqd looks for that every few seconds.
    await until(lambda: left(nsqd)["in_flight_count"] == 0, 15, "the letters to be handed out again")
    assert left(nsqd)["depth"] >= 20
    assert (await replayed(nsqd)).ended is Ended.EMPTY
    assert left(nsqd) == staying(0)
    assert set(await in_topic(nsqd, nsqd.topic_stats(TOPIC)["message_count"])) == set(bodies)


def test_a_letter_is_what_a_daemon_writes() -> None:
    """So that the letters above are."""
    assert json.loads(letter(b"{}"))["length"] == 2
