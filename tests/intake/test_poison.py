"""Messages that can never succeed: finished only after they stand in the dead-letter topic with their reason. Their
neighbours do not notice."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from support.cutting import CuttingProxy
from support.daemon import Daemon
from support.nsqclient import NsqClient
from support.receiver import Receiver, parsed
from support.servers import Nsqd
from support.stage import CHANNEL, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

DEAD, READERS = "nsqdigest.dead", "readers"
NSQD_LIMIT_BYTES = 1 << 20
ROUTE = {
    "name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "timestamp": "at", "sink": "hook",
}  # fmt: skip


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def event(**fields: Any) -> bytes:
    return json.dumps({"id": "poison", "timeline": "t1", "at": now_ms(), **fields}).encode()


def raw(fields: bytes) -> bytes:
    return b'{"id":"poison","timeline":"t1","at":%d,%s}' % (now_ms(), fields)


def padded(size: int) -> bytes:
    frame = event(padding="")
    body = event(padding="x" * (size - len(frame)))
    assert len(body) == size
    return body


POISON = {
    "not UTF-8 at all": (b"\xff\xfe\x00", "not-utf8"),
    "not UTF-8 inside a value that nobody reads": (raw(b'"more":{"deep":"caf\xe9"}'), "not-utf8"),
    "a surrogate encoded as if it were a character": (raw(b'"more":"\xed\xa0\x80"'), "not-utf8"),
    "nothing": (b" ", "not-json"),
    "text": (b"hello", "not-json"),
    "cut off": (event()[:-2], "not-json"),
    "two events in one": (event() + event(), "not-json"),
    "NaN": (raw(b'"more":NaN'), "not-json"),
    "Infinity": (raw(b'"more":[-Infinity]'), "not-json"),
    "a control character in a string": (raw(b'"more":"a\x01b"'), "not-json"),
    "half a character in a value": (raw(b'"more":"\\ud83d"'), "not-json"),
    "half a character in a key": (event(id="\ud83d"), "not-json"),
    "a list": (b"[1,2]", "not-an-object"),
    "nested too deep": (raw(b'"more":' + b"[" * 70 + b"]" * 70), "too-deep"),
    "nested deeper than any stack": (raw(b'"more":' + b"[" * 30_000 + b"]" * 30_000), "too-deep"),
    "without the timeline's field": (json.dumps({"id": "poison", "at": now_ms()}).encode(), "missing-field"),
    "null for the timeline": (event(timeline=None), "missing-field"),
    "an object for the timeline": (event(timeline={"a": 1}), "bad-field"),
    "an empty timeline": (event(timeline=""), "bad-field"),
    "NUL in the timeline": (event(timeline="t\0"), "bad-field"),
    "NUL in the key": (event(id="a\0b"), "bad-field"),
    "a line break in the key": (event(id="a\nb"), "bad-field"),
    "a timeline beyond limits.key": (event(timeline="é" * 129), "bad-field"),
    "no timestamp": (json.dumps({"id": "poison", "timeline": "t1"}).encode(), "bad-timestamp"),
    "a timestamp without a zone": (event(at="2026-01-31T09:00:00"), "bad-timestamp"),
    "a timestamp far ahead": (event(at=now_ms() + 3_600_000), "bad-timestamp"),
    "a timestamp beyond all numbers": (event(at=1e308), "bad-timestamp"),
    "a timestamp before all time": (event(at=-1), "bad-timestamp"),
    "a timestamp that is true": (event(at=True), "bad-timestamp"),
    "a number with more digits than parsers take": (raw(b'"more":' + b"9" * 5_000), "bad-field"),
    "a number beyond a double": (raw(b'"more":[1e999]'), "bad-field"),
    "above limits.event": (padded((64 << 10) + 1), "too-large"),
    "as large as nsqd takes": (padded(NSQD_LIMIT_BYTES), "too-large"),
}  # fmt: skip


@pytest.fixture
def cutting() -> Iterator[CuttingProxy]:
    with CuttingProxy() as proxy:
        yield proxy


def ready(stage: Stage, nsqd: Nsqd, **settings: Any) -> Daemon:
    nsqd.create_channel(DEAD, READERS)
    stage.receiver()
    daemon = stage.daemon(settings, [ROUTE])
    daemon.start()
    return daemon


def good(count: int) -> list[tuple[str, bytes]]:
    return [(f"good-{n}", event(id=f"good-{n}", timeline=f"t{n % 5}")) for n in range(count)]


def delivered(stage: Stage) -> set[str]:
    return {value["id"] for value in stage.receivers[0].values()}


def until_finished(stage: Stage, daemon: Daemon, count: int, timeout_s: float = 15.0) -> None:
    """So many since the daemon started, and nsqd knows of it."""
    wait_until(lambda: daemon.metric("messages_finished_total") == count, timeout_s, f"{count} to be finished")
    wait_until(lambda: stage.unfinished() == 0, 5, "nsqd to have nothing left")


def letters_acknowledged(nsqd: Nsqd) -> int:
    """Since nsqd started; how many of them are in the channel by now is another matter."""
    return int(nsqd.topic_stats(DEAD)["message_count"])


def letters_in_the_channel(nsqd: Nsqd) -> int:
    return int(nsqd.channel_stats(DEAD, READERS)["depth"])


async def read_letters(nsqd: Nsqd, count: int) -> list[dict[str, Any]]:
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await client.sub(DEAD, READERS)
        client.rdy(count)
        return [json.loads(message.body) for message in await client.take(count)]


async def test_each_kind_becomes_one_letter_and_its_neighbours_are_delivered(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = ready(stage, nsqd)
    neighbours = good(4 * len(POISON))
    for number, (body, _) in enumerate(POISON.values()):
        around = [published for _, published in neighbours[4 * number : 4 * number + 4]]
        nsqd.publish_many(TOPIC, [*around[:2], body, *around[2:]])
    until_finished(stage, daemon, len(neighbours) + len(POISON))
    # Finished last, kept first: whatever is not in a timeline now must stand in the topic already.
    assert letters_acknowledged(nsqd) == len(POISON)
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    stage.check_logs()
    assert stage.ledger()["added"] == len(neighbours)
    assert daemon.metric("dead_letters_total", topic=TOPIC) == len(POISON)

    letters = await read_letters(nsqd, len(POISON))
    by_hash = {letter["sha256"]: letter for letter in letters}
    assert len(by_hash) == len(POISON)
    for what, (body, reason) in POISON.items():
        letter = by_hash[hashlib.sha256(body).hexdigest()]
        assert letter["reason"] == reason, f"{what}: {letter['reason']}: {letter['detail']}"
        assert base64.b64decode(letter["body"], validate=True) == body[: 700 << 10], what
        assert letter["length"] == len(body), what
        assert (letter["topic"], letter["channel"], letter["attempts"]) == (TOPIC, CHANNEL, 1), what
        assert letter["nsqd"] == "{}:{}".format(*nsqd.tcp_address)
        assert len(letter["id"]) == 16
        assert abs(letter["timestamp"] / 1e9 - time.time()) < 60
        assert letter["detail"]
        assert set(letter) == {
            "reason", "detail", "topic", "channel", "id", "timestamp", "attempts", "nsqd", "body", "length", "sha256",
        }  # fmt: skip


def test_without_a_dead_letter_topic_poison_is_kept_and_its_neighbours_are_delivered(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = ready(stage, nsqd, nsq={"dead_letter_topic": ""})
    neighbours = good(20)
    nsqd.publish_many(TOPIC, [neighbours[0][1], b"poison", *(body for _, body in neighbours[1:])])
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["deferred_count"] == 1, 5, "the poison to be put off")
    assert nsqd.channel_stats(TOPIC, CHANNEL)["requeue_count"] == 1
    assert daemon.said("consumer.message.kept")
    assert daemon.metric("backoff_level", topic=TOPIC) == 0
    finished = partial(daemon.metric, "messages_finished_total", topic=TOPIC)
    wait_until(lambda: finished() == len(neighbours), what="the neighbours to be finished")


def test_poison_is_not_finished_before_its_letter_is_acknowledged(stage: Stage, cutting: CuttingProxy) -> None:
    nsqd = stage.nsqd()
    cutting.start(nsqd.tcp_address, b"PUB " + DEAD.encode())
    daemon = ready(stage, nsqd, nsq={"nsqd_tcp_addresses": [cutting.address]})
    neighbours = good(20)
    nsqd.publish_many(TOPIC, [b"poison", *(body for _, body in neighbours)])
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["deferred_count"] == 1, 5, "the poison to be put off")
    assert cutting.cut == 1
    assert letters_acknowledged(nsqd) == 0
    assert daemon.metric("dead_letters_total") == 0

    cutting.relent()
    nsqd.restart()  # which makes it forget how long it was to put the message off
    wait_until(lambda: letters_in_the_channel(nsqd) == 1, 15, "the letter")
    wait_until(lambda: stage.unfinished() == 0, 5, "the poison to be finished")
    stage.check_logs()


async def test_a_letter_too_large_for_this_nsqd_goes_with_less_of_the_body(stage: Stage) -> None:
    """In base64 the body is larger than this nsqd takes."""
    nsqd = stage.nsqd("--max-msg-size=2000")
    ready(stage, nsqd)
    neighbours = good(20)
    nsqd.publish_many(TOPIC, [b"poison", b"x" * 1900, *(body for _, body in neighbours)])
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    wait_until(lambda: letters_in_the_channel(nsqd) == 2, 15, "both letters")
    letters = {letter["length"]: letter for letter in await read_letters(nsqd, 2)}
    assert base64.b64decode(letters[6]["body"]) == b"poison"
    assert base64.b64decode(letters[1900]["body"]) == b"x" * 1024
    wait_until(lambda: stage.unfinished() == 0, 5, "both to be finished")
    stage.check_logs()


def test_a_letter_that_nsqd_refuses_whatever_its_length_leaves_the_message_where_it_was(stage: Stage) -> None:
    nsqd = stage.nsqd("--max-msg-size=300")
    daemon = ready(stage, nsqd)
    neighbours = good(20)
    nsqd.publish_many(TOPIC, [b"x" * 290, *(body for _, body in neighbours)])
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["deferred_count"] == 1, 5, "the poison to be put off")
    (kept,) = daemon.said("consumer.message.kept")
    assert "E_BAD_MESSAGE" in kept["error"]
    stage.check_logs()


def test_numbers_beyond_every_parser_stop_nobody(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = ready(stage, nsqd)
    odd = [
        b'{"id":"odd","timeline":1.5,"at":%d,"more":%s}' % (now_ms(), number)
        for number in (b"9" * 5_000, b"9" * 308, b"1e999", b"-1e-999")
    ]
    neighbours = good(20)
    nsqd.publish_many(TOPIC, odd)
    until_finished(stage, daemon, len(odd))
    nsqd.publish_many(TOPIC, [body for _, body in neighbours])
    wanted = {identity for identity, _ in neighbours}
    # The odd ones have a timeline of their own; whether a receiver can read such a digest is not the matter here.
    wait_until(lambda: wanted <= ids_beside_odd_ones(stage.receivers[0]), 15, "all neighbours")
    assert daemon.is_ready()
    stage.check_logs()


def ids_beside_odd_ones(receiver: Receiver) -> set[str]:
    bodies = [post.body for post in receiver.accepted() if b'"odd"' not in post.body]
    return {record["value"]["id"] for body in bodies for record in parsed(body)["data"]["records"]}


async def test_what_the_store_can_not_work_with_becomes_a_letter_and_its_neighbours_are_delivered(stage: Stage) -> None:
    """Something else wrote to a key of one timeline."""
    nsqd = stage.nsqd()
    stage.store.cli("RPUSH", "{nsqdigest:0}:set:events:planted", "by another")
    daemon = ready(stage, nsqd)
    neighbours = good(50)
    culprits = [event(id=f"bad-{n}", timeline="planted") for n in range(2)]
    bodies = [body for _, body in neighbours]
    nsqd.publish_many(TOPIC, [*bodies[:20], culprits[0], *bodies[20:], culprits[1]])
    until_finished(stage, daemon, len(neighbours) + len(culprits))
    wait_until(lambda: delivered(stage) == {identity for identity, _ in neighbours}, 15, "all neighbours")
    letters = await read_letters(nsqd, 2)
    assert {letter["reason"] for letter in letters} == {"refused-by-store"}
    assert letters[0]["detail"] == "{nsqdigest:0}:set:events:planted is a list, not a zset"
    assert {base64.b64decode(letter["body"]) for letter in letters} == set(culprits)
    assert daemon.metric("dead_letters_total", reason="refused-by-store") == 2
    assert daemon.said("consumer.timeline.refused_by_store")
    assert not daemon.said("consumer.topic")
    stage.check_logs()


def test_thousands_of_letters_are_a_few_lines_of_the_log_that_count_them_all(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = ready(stage, nsqd)
    begun_s = time.monotonic()
    nsqd.publish_many(TOPIC, [b"poison"] * 3000)
    wait_until(lambda: daemon.metric("dead_letters_total") == 3000, 30, "all letters")
    took_s = time.monotonic() - begun_s
    daemon.term()
    assert daemon.wait() == 0
    lines = daemon.said("consumer.message.dead_lettered")
    assert sum(line.get("times", 1) for line in lines) == 3000
    assert len(lines) <= took_s + 3
    assert "times" not in lines[0]
