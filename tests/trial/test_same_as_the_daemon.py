"""`try` never differs from the daemon: the same events through both become the same records and dead letters."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqdigest.base.metrics import Metrics
from nsqdigest.config import parse_text
from nsqdigest.daemon.labels import known_labels
from nsqdigest.daemon.routes import intake_routes, plans_of
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.intake.batch import Arrival
from nsqdigest.intake.decoding import Decoder
from nsqdigest.intake.oversize import Oversize
from nsqdigest.intake.routing import Router
from nsqdigest.nsq.frames import Message
from nsqdigest.trial.events import Event
from nsqdigest.trial.trial import Result, Trial
from support.daemon import run_command, toml
from support.events import NOW_MS, bodies, likely
from support.nsqclient import NsqClient
from support.receiver import Receiver
from support.servers import Nsqd
from support.stage import QUIET, TOPIC, Stage
from support.waiting import wait_until

DEAD, READERS = "nsqdigest.dead", "readers"
GROUPED = {"name": "grouped", "topic": TOPIC, "timeline": "u:{user}", "group": "a", "sink": "hook"}
ROUTES: list[dict[str, Any]] = [
    {**GROUPED, "match": {"kind": ["error", 1, True, 1.5]}},
    {**GROUPED, "name": "kept", "match": {"kind": "info"}, "timeline": "{user.a}", "key": "{a}", "group": "user.é"},
    {"name": "timed", "topic": TOPIC, "match": {"kind": "error"}, "timeline": "all", "timestamp": "at", "sink": "hook"},
]
LIMITS = {"event": "4KiB", "key": "64B", "depth": 5}


# -- the same decoding


TABLES: dict[str, dict[str, Any]] = {
    "nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]},
    "sinks.hook": {"type": "log"},
    "limits": LIMITS,
}
CONFIG = parse_text(toml(TABLES, ROUTES), "f.toml", {}, KINDS)
TRIAL = Trial(CONFIG, TOPIC)


DECODER = Decoder(
    TOPIC,
    Router(intake_routes(CONFIG, TOPIC, plans_of(CONFIG), {}), CONFIG.limits),
    Metrics(known_labels(CONFIG)),
)


@pytest.mark.property
@given(likely | bodies)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_records_and_letters_are_those_of_the_intake(body: bytes) -> None:
    message = Message(b"0123456789abcdef", NOW_MS * 1_000_000, 1, body)
    batch, _ = DECODER.decode([Arrival(cast(Any, "nsqd"), [message], 1, float("inf"), float("inf"))], NOW_MS)
    tried = TRIAL.try_event(Event(1, body), NOW_MS)

    names = [route.name for route in CONFIG.routes]
    records = [(names[each.route], each.timeline.decode(), each.timestamp_us // 1000) for each in batch.records]
    places = [(each.route, each.timeline, each.timestamp_ms or NOW_MS) for each in tried.places]
    assert places == records
    keys = [each.key.decode() for each in batch.records]
    assert [place.key or f"0123456789abcdef-{NOW_MS}000000" for place in tried.places] == keys

    letter = batch.letters.get(message)
    assert (tried.reason, tried.detail) == ((letter.reason, letter.detail) if letter else (None, ""))
    assert (tried.result is Result.UNMATCHED) == (not records and letter is None)
    assert bool(tried.unmet) == (tried.result is Result.UNMATCHED)


@pytest.mark.unit
def test_what_is_too_large_is_the_letter_that_the_consumer_makes_of_it() -> None:
    class Letters:
        held_bytes = 0

    message = Message(b"0" * 16, 0, 1, b"[" * 5_000)
    arrival = Arrival(cast(Any, "nsqd"), [message], 1, 0.0, 0.0)
    _, result = Oversize(CONFIG.limits.event_bytes, cast(Any, Letters())).take_out(arrival)
    ((_, (letter,)),) = result.letters
    tried = TRIAL.try_event(Event(1, b"[" * 5_000), NOW_MS)
    assert (tried.reason, tried.detail) == (letter.reason, letter.detail)


# -- the real daemon


def drawn(count: int) -> list[bytes]:
    """Bodies that nsqd takes and that stand on a line; every one once."""
    found: dict[bytes, None] = {}

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(likely, likely, likely, bodies))
    def draw(body: bytes) -> None:
        if body.strip() and b"\n" not in body and b"\r" not in body:
            found[body] = None

    draw()
    return list(found)


def without_seconds(detail: str) -> str:
    return re.sub(r"lies [0-9]+ s", "lies N s", detail)


async def read_letters(nsqd: Nsqd, count: int) -> dict[str, tuple[str, str]]:
    """By the hash of the body."""
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await client.sub(DEAD, READERS)
        client.rdy(count)
        letters = [json.loads(message.body) for message in await client.take(count)]
    return {each["sha256"]: (each["reason"], without_seconds(each["detail"])) for each in letters}


Facts = tuple[Any, ...]
"""Of a record: route, timeline and key; and where the message's own key keeps it apart from all others, timestamp,
group and value, too. Of one key the newest alone is delivered, so its other facts depend on what else was published."""


def delivered(receiver: Receiver) -> Counter[Facts]:
    found: Counter[Facts] = Counter()
    for data in receiver.digests():
        route = next(route for route in ROUTES if route["name"] == data["route"])
        for group in data.get("groups", [{"group": None, "records": data.get("records")}]):
            for record in group["records"]:
                has_key, has_time = "key" in route, "timestamp" in route
                place = {**data, "group": group["group"], "key": record["key"] if has_key else None,
                         "timestamp": record["timestamp"] if has_time else None}  # fmt: skip
                found[facts_of(place, record["value"])] += 1
    return found


def facts_of(place: Mapping[str, Any], value: Any) -> Facts:
    name = (place["route"], place["timeline"], place["key"])
    if place["key"] is not None:
        return name
    return (*name, place["timestamp"], json.dumps(place["group"]), json.dumps(value, sort_keys=True))


@pytest.mark.integration
async def test_events_become_in_the_daemon_what_try_says(stage: Stage, tmp_path: Any) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    nsqd.create_channel(DEAD, READERS)
    daemon = stage.daemon({"limits": LIMITS, **QUIET}, ROUTES)
    daemon.start()
    events = drawn(1500)
    for number in range(0, len(events), 50):
        nsqd.publish_many(TOPIC, events[number : number + 50])

    lines = tmp_path / "events.jsonl"
    lines.write_bytes(b"".join(body + b"\n" for body in events))
    done = run_command("try", str(lines), "--lines", "--json", "-c", str(daemon.config_path))
    assert done.stderr == ""
    tried = json.loads(done.stdout)["events"]
    assert [each["line"] for each in tried] == list(range(1, len(events) + 1))

    expected_letters = {
        hashlib.sha256(body).hexdigest(): (dead["reason"], without_seconds(dead["detail"]))
        for body, each in zip(events, tried, strict=True)
        if (dead := each["dead_letter"])
    }
    wait_until(lambda: daemon.metric("messages_finished_total") == len(events), 20, "all to be finished")
    assert await read_letters(nsqd, len(expected_letters)) == expected_letters
    unmatched = sum(each["result"] == "unmatched" for each in tried)
    assert daemon.metric("events_unmatched_total") == unmatched

    expected = Counter(
        facts_of(place, json.loads(body)) for body, each in zip(events, tried, strict=True) for place in each["routes"]
    )
    assert len(expected) > 50, "too few of the events that were drawn are taken"
    wait_until(lambda: set(delivered(receiver)) >= set(expected), 20, "all records to be delivered")
    found = delivered(receiver)
    assert set(found) == set(expected)
    assert {each: count for each, count in found.items() if each[2] is None} == {
        each: count for each, count in expected.items() if each[2] is None
    }
    stage.check_logs()
