"""What the measurement of delivery makes of its figures, and the backlog that it publishes."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from bench.delivery import backlog, meter, receiver, report
    from bench.throughput.report import LaneRounds, Round
else:
    backlog = load("bench.delivery.backlog")
    meter = load("bench.delivery.meter")
    receiver = load("bench.delivery.receiver")
    report = load("bench.delivery.report")
    Round = load("bench.throughput.report").Round
    LaneRounds = load("bench.throughput.report").LaneRounds


def lane(key: str, *rates: float, redis_us: float = 30.0, consumer_us: float = 30.0, arrived: int = 100) -> LaneRounds:
    rounds = tuple(
        Round(
            events=100,
            events_per_s=rate,
            consumer_us=consumer_us,
            redis_us=redis_us,
            nsqd_us=0.0,
            peak_rss_bytes=50 << 20,
            most_in_flight=0,
            counts={"posts": arrived, "ids": 100},
            receiver_us=12.0,
            commands=7.25,
        )
        for rate in rates
    )
    return LaneRounds(key, f"the lane {key}", 0, rounds)


@pytest.fixture
def lanes() -> dict[str, LaneRounds]:
    return {
        "log": lane("log", 12_000, 13_000, 14_000),
        "webhook": lane("webhook", 8_000, 8_000, 8_000),
        "bull": lane("bull", 10_000, 10_000, 10_000),
        "bullpost": lane("bullpost", 10_000, 9_000, 8_000),
        "aiohttp": lane("aiohttp", 8_500, 8_500, 8_500),
        "floor": lane("floor", 90_000, 90_000, 90_000),
    }


def test_a_verdict_tells_goal_bar_and_missed_apart(lanes: dict[str, LaneRounds]) -> None:
    log, aiohttp, posting, redis, daemon = report.verdicts(lanes)
    assert log.startswith("**bar reached**: log is 1.30 (1.20–1.40) × bull")  # noqa: RUF001
    assert aiohttp.startswith("**goal reached**")
    assert posting.startswith("**missed**")
    assert redis.startswith("**goal reached**: CPU of Redis")
    assert daemon.startswith("**bar reached**: CPU of the daemon")


def test_lanes_that_were_not_run_have_no_verdict() -> None:
    assert report.verdicts({"bull": lane("bull", 1.0)}) == []


def test_each_row_of_the_table_has_a_cell_for_each_head(lanes: dict[str, LaneRounds]) -> None:
    rows = report.table(lanes)
    assert len(rows) == 2 + len(lanes)
    assert {row.count("|") for row in rows} == {8}
    assert "| 12 | 7.2 |" in rows[2]


def test_the_page_names_a_digest_that_came_twice(lanes: dict[str, LaneRounds]) -> None:
    whole = report.markdown(report.Results(lanes=lanes), machine={}, notes=[], picture="p.svg")
    assert "exactly once" in whole
    lanes["webhook"] = lane("webhook", 8_000, 8_000, 8_000, arrived=101)
    page = report.markdown(report.Results(lanes=lanes), machine={}, notes=[], picture="p.svg")
    assert "**NOT WHOLE**: lane webhook, round 1" in page
    assert "exactly once" not in page


def test_the_page_has_a_section_for_each_part_that_was_measured() -> None:
    instants = tuple(report.Instant(second, 10 * second, 50 << 20, 900 << 20) for second in range(21))
    results = report.Results(
        shares=[report.Shares(delivery_alone=1000, intake_alone=100_000, delivery=400, intake=90_000)],
        pairs=[report.Pair(alone=1000, together=1500, repeated=2)],
        waits=[report.Waits(5, 3, (1000, 2000, 9000))],
        catch_up=report.CatchUp(600, instants),
    )
    page = report.markdown(results, machine={"Python": "3.11"}, notes=["a note"], picture="p.svg")
    assert "| digests posted | 1,000 (1,000–1,000) | 400 (400–400) | 40% (40%–40%) |" in page  # noqa: RUF001
    assert "more than once: 2" in page
    assert "| 5 | 3 | 2.0 | 9.0 | 9.0 | ≤ 5: **missed** | 0 |" in page
    assert "200 of 600 timelines in 20 s: 10 digests/s, 1.0 minutes for all of them" in page
    assert "- a note\n" in page
    assert page.endswith("- Python: 3.11\n")


def test_no_digest_that_arrived_is_an_endless_wait_and_not_an_error() -> None:
    assert report.Waits(5, 3, ()).ms(0.5) == float("inf")


def test_the_picture_is_well_formed_and_leaves_the_floors_out(lanes: dict[str, LaneRounds]) -> None:
    drawn = report.picture_svg(lanes)
    texts = [node.text or "" for node in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "Digests per second" in texts
    assert any("the lane bull" in words for words in texts)
    assert not any("the lane floor" in words for words in texts)


def test_commands_are_counted_but_those_of_the_looks() -> None:
    stats = {"cmdstat_evalsha": {"calls": 3}, "cmdstat_zadd": {"calls": 4}, "cmdstat_info": {"calls": 50}}
    assert meter.commands_of(stats) == 7


def test_figures_are_of_the_span_between_a_tenth_and_nine_tenths() -> None:
    looks = [
        meter.Look(0.0, 0, 5.0, 1.0, 0.0, 0),  # start-up
        meter.Look(1.0, 10, 5.0, 1.0, 0.0, 100),
        meter.Look(3.0, 90, 5.8, 1.4, 0.08, 900),
        meter.Look(9.0, 100, 9.0, 9.0, 9.0, 9000),
    ]
    found = meter.evaluate(looks, 100, rss_bytes=1, counts={})
    assert found.events_per_s == pytest.approx(40)
    assert [found.consumer_us, found.redis_us] == pytest.approx([10_000, 5_000])
    assert [found.receiver_us, found.commands] == pytest.approx([1_000, 10])


def test_a_backlog_gives_each_timeline_the_same_number_of_events_of_one_size() -> None:
    sizes, users = set(), list[str]()
    for block in backlog.blocks(20_000, 4_000):
        (count,) = struct.unpack_from(">I", block)
        place = 4
        for _ in range(count):
            (size,) = struct.unpack_from(">I", block, place)
            users.append(json.loads(block[place + 4 : place + 4 + size])["user"]["id"])
            sizes.add(size)
            place += 4 + size
        assert place == len(block)
    assert sizes == {backlog.EVENT_BYTES}
    assert len(users) == 20_000
    assert {users.count(user) for user in set(users[:10])} == {5}


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)


def test_the_receiver_counts_posts_and_ids_however_the_bytes_come() -> None:
    counts, transport = receiver.Counts(), Written()
    connection = receiver.Connection(counts)
    connection.connection_made(transport)
    post = b'POST /hook HTTP/1.1\r\nWebhook-Id: one\r\nContent-Length: 11\r\n\r\n{"at_ns":1}'
    for place in range(len(post)):
        connection.data_received(post[place : place + 1])
    connection.data_received(post + post.replace(b"one", b"two"))
    assert (counts.posts, counts.ids, len(counts.waits_us)) == (3, {b"one", b"two"}, 3)
    assert transport.data == receiver.ACCEPTED * 3
    connection.data_received(b"GET /stats HTTP/1.1\r\n\r\n")
    assert transport.data.endswith(b'{"posts": 3, "ids": 2}')
