"""What the intake holds is bounded in bytes: messages above limits.event, and their letters."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from nsqdigest.consumer import most_held_bytes
from nsqdigest.intake import oversize
from nsqdigest.intake.letter_queue import PART_BYTES
from nsqdigest.intake.letters import BODY_BYTES, DeadLetters, Letter, Whole
from support.intake import config_of, consumer_of, in_flight_here, left_at_nsqd, running
from support.stage import TOPIC, Stage
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

MIB = 1 << 20
OVERSIZE = 24


async def test_messages_above_the_limit_are_held_within_bounds_and_become_letters_in_small_parts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oversize, "OVERSIZE_BYTES", 4 * MIB)
    (nsqd, _) = stage.nsqd(), stage.receiver()
    may_publish = asyncio.Event()
    parts: list[list[int]] = []
    publish = DeadLetters.publish

    async def publish_when_allowed(self: DeadLetters, nsqd: Any, topic: str, letters: Sequence[Letter]) -> Any:
        await may_publish.wait()
        parts.append([len(letter.message.body) for letter in letters])
        return await publish(self, nsqd, topic, letters)

    monkeypatch.setattr(DeadLetters, "publish", publish_when_allowed)
    async with running(config_of(stage, {"nsq": {"requeue_delay": "0s"}})) as daemon:
        consumer = consumer_of(daemon)
        await until(lambda: consumer.connected == 1, PATIENCE_S, "a connection")
        for _ in range(OVERSIZE):
            nsqd.publish(TOPIC, b"x" * MIB)
        await until(lambda: [each.rdy for each in consumer.connections] == [0], PATIENCE_S, "RDY 0")
        held_bytes = consumer._letters.held_bytes
        assert 2 * MIB < held_bytes <= 4 * MIB
        assert in_flight_here(consumer) == held_bytes // (700 * 1024)
        may_publish.set()
        await until(lambda: left_at_nsqd(stage) == (0, 0), PATIENCE_S, "every message to be a letter")
        assert daemon.parts.metrics.total("dead_letters_total") == OVERSIZE
        assert consumer._letters.held_bytes == 0
    assert max(map(len, parts)) == 1


async def test_letters_are_encoded_in_parts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (nsqd, _) = stage.nsqd(), stage.receiver()
    parts: list[int] = []
    publish = DeadLetters.publish

    async def noted(self: DeadLetters, nsqd: Any, topic: str, letters: Sequence[Letter]) -> Any:
        parts.append(sum(len(letter.message.body) for letter in letters))
        return await publish(self, nsqd, topic, letters)

    monkeypatch.setattr(DeadLetters, "publish", noted)
    async with running(config_of(stage)) as daemon:
        await until(lambda: consumer_of(daemon).connected == 1, PATIENCE_S, "a connection")
        nsqd.publish_many(TOPIC, [b"x" * 50_000] * 40)
        await until(lambda: daemon.parts.metrics.total("dead_letters_total") == 40, PATIENCE_S, "the letters")
    assert sum(parts) == 40 * 50_000
    assert max(parts) <= PART_BYTES


async def test_a_message_beyond_all_limits_is_cut_and_its_letter_has_the_facts_of_the_whole(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nsqd, _) = stage.nsqd("--max-msg-size=8388608"), stage.receiver()
    sent: list[Letter] = []
    publish = DeadLetters.publish

    async def noted(self: DeadLetters, nsqd: Any, topic: str, letters: Sequence[Letter]) -> Any:
        sent.extend(letters)
        return await publish(self, nsqd, topic, letters)

    monkeypatch.setattr(DeadLetters, "publish", noted)
    body = b"x" * (3 * MIB)
    async with running(config_of(stage)) as daemon:
        await until(lambda: consumer_of(daemon).connected == 1, PATIENCE_S, "a connection")
        nsqd.publish(TOPIC, body)
        await until(lambda: daemon.parts.metrics.total("dead_letters_total") == 1, PATIENCE_S, "the letter")
        await until(lambda: left_at_nsqd(stage) == (0, 0), PATIENCE_S, "it to be finished")
        assert daemon.parts.metrics.total("nsqd_connections_lost_total") == 0
    (letter,) = sent
    assert letter.whole == Whole(3 * MIB, hashlib.sha256(body).hexdigest())
    assert letter.detail == "the body has 3145728 bytes; limits.event allows 65536"
    assert len(letter.message.body) == BODY_BYTES


async def test_what_the_intake_holds_at_most_is_logged_at_the_start(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.nsqd()
    stage.receiver()
    config = config_of(stage)
    caplog.set_level("INFO", "nsqdigest")
    async with running(config):
        (started,) = [record for record in caplog.records if record.msg == "daemon.started"]
    # One topic, 2,500 events of 64 KiB, 16 MiB each of letters, names and the publisher, 32 MiB of frames.
    assert most_held_bytes(config.nsq, config.limits.event_bytes) == 2_500 * 65_536 + 32 * MIB
    assert vars(started)["fields"]["intake_at_most_mib"] == 236
