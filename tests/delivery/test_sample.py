"""sample.py: a sample digest through real sinks, and one outcome whatever they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Config, parse_text
from nsqdigest.delivery.preview import of_sample
from nsqdigest.delivery.sample import TIMELINE, Sent, send_sample
from nsqdigest.delivery.sinks.table import KINDS
from support.daemon import toml
from support.nsqclient import NsqClient
from support.receiver import DROP, GARBAGE, HANG, Answer, Receiver
from support.servers import Nsqd

pytestmark = pytest.mark.integration

NOW_MS = 1_800_000_000_123


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def config_of(sink: dict[str, Any], **route: Any) -> Config:
    routes = [{"topic": "other", "timeline": "{x}", "sink": "spare"}, {"topic": "t", "timeline": "{x}", "sink": "out"}]
    routes[1] |= route
    tables: dict[str, dict[str, Any]] = {
        "nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]},
        "sinks.spare": {"type": "log"},
        "sinks.out": sink,
    }
    return parse_text(toml(tables, routes), "test.toml", {}, KINDS)


async def sent(sink: dict[str, Any], **route: Any) -> Sent:
    return await send_sample(config_of(sink, **route), KINDS, "out", NOW_MS)


def webhook(receiver: Receiver) -> dict[str, Any]:
    return {"type": "webhook", "url": receiver.url, "timeout": "500ms"}


async def test_it_is_a_digest_like_any_other(receiver: Receiver) -> None:
    done = await sent(webhook(receiver), name="mine", group="event.kind")
    assert done.outcome.verdict is Verdict.DELIVERED
    (post,) = receiver.posts
    assert (post.id, post.attempt, post.body) == (done.digest.id, 1, done.digest.body)
    digest = json.loads(post.body)
    assert (digest["type"], digest["timestamp"]) == ("digest", "2027-01-15T08:00:00.123Z")
    data = digest["data"]
    assert (data["route"], data["timeline"], data["sink"]) == ("mine", TIMELINE, "out")
    newest = data["groups"][0]["records"][0]["value"]
    assert newest["event"] == {"kind": data["groups"][0]["group"]}
    assert "sample digest" in newest["message"]
    assert newest["test"] is True


@pytest.mark.parametrize(
    "template",
    [
        "{{ data.records[0].value.order.total }}",
        "{{ data.total }} {{ data.iteration }} {{ data.groups | length }}",
        "{{ data.records[0].value.user }} {{ data.groups[0].group }}",
    ],
)
async def test_what_a_preview_shows_is_what_is_sent(receiver: Receiver, tmp_path: Path, template: str) -> None:
    path = tmp_path / "message.j2"
    sink = webhook(receiver) | {"body": f"file:{path}", "content_type": "text/plain"}
    path.write_text(template)
    config = config_of(sink, group="kind", timeline="{user}")
    shown = of_sample(config, KINDS, config.routes[1])
    assert shown.failure is None
    assert (await send_sample(config, KINDS, "out", NOW_MS)).outcome.verdict is Verdict.DELIVERED
    (post,) = receiver.posts
    assert post.body == shown.body


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(422), Verdict.REFUSED),
        (Answer(410), Verdict.GONE),
        (Answer(503), Verdict.UNAVAILABLE),
        (Answer(500), Verdict.AGAIN),
        (HANG, Verdict.UNAVAILABLE),
        (DROP, Verdict.UNAVAILABLE),
        (GARBAGE, Verdict.AGAIN),
    ],
)
async def test_what_the_receiver_answers_is_the_outcome(receiver: Receiver, answer: Answer, verdict: Verdict) -> None:
    receiver.answer(answer)
    done = await sent(webhook(receiver))
    assert done.outcome.verdict is verdict
    assert len(receiver.posts) == 1


async def test_it_is_sent_once_whatever_the_outcome(receiver: Receiver) -> None:
    receiver.answer(Answer(500))
    await sent(webhook(receiver))
    assert len(receiver.posts) == 1


async def test_an_nsq_topic(nsqd: Nsqd) -> None:
    host, port = nsqd.tcp_address
    done = await sent({"type": "nsq", "nsqd_tcp_addresses": [f"{host}:{port}"], "topic": "digests"})
    assert done.outcome.verdict is Verdict.DELIVERED
    async with await NsqClient.connect(nsqd.tcp_address) as client:
        await client.identify()
        await client.sub("digests", "ch")
        client.rdy(1)
        (message,) = await client.take()
    assert message.body == done.digest.body


async def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    done = await sent({"type": "log", "path": str(path)})
    assert path.read_bytes() == done.digest.body + b"\n"
    unwritable = await sent({"type": "log", "path": str(tmp_path / "no" / "folder")})
    assert unwritable.outcome.verdict is Verdict.UNAVAILABLE


async def test_a_sink_without_a_route_can_be_tried_too(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    tables: dict[str, dict[str, Any]] = {
        "nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]}, "sinks.spare": {"type": "log"},
        "sinks.out": {"type": "log", "path": str(path)},
    }  # fmt: skip
    config = parse_text(toml(tables, [{"topic": "t", "timeline": "{x}", "sink": "spare"}]), "test.toml", {}, KINDS)
    await send_sample(config, KINDS, "out", NOW_MS)
    assert json.loads(path.read_bytes())["data"]["route"] == TIMELINE
