"""Dead letters on their way, in simulated time: in parts of bounded size, each message finished or given back once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from nsqdigest.base.errors import Applied, NsqdigestError, PublishError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.letter_queue import PART_BYTES, PART_LETTERS, UNSENDABLE_RETRY_S, LetterQueue
from nsqdigest.intake.letters import Letter, Unsent
from nsqdigest.nsq.frames import Message
from support.simulated import simulated

pytestmark = pytest.mark.unit


class Connection:
    def __init__(self, address: str = "nsqd:4150") -> None:
        self.address = address


@dataclass
class Owner:
    finished: list[Message] = field(default_factory=list)
    given_back: list[tuple[Message, float | None]] = field(default_factory=list)
    mistakes: int = 0

    def finish(self, connection: Any, messages: list[Message]) -> None:
        if self.mistakes:
            self.mistakes -= 1
            raise RuntimeError("a mistake of the program")
        self.finished += messages

    def give_back(self, connection: Any, messages: Sequence[Message], about_s: float | None = None) -> None:
        self.given_back += [(message, about_s) for message in messages]


Answer = Callable[[Sequence[Letter]], Unsent | None]


@dataclass
class DeadLetters:
    takes_s: float = 1.0
    parts: list[tuple[str, list[Message]]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    async def publish(self, nsqd: str, topic: str, letters: Sequence[Letter]) -> Unsent | None:
        assert topic == "events"
        self.parts.append((nsqd, [letter.message for letter in letters]))
        await asyncio.sleep(self.takes_s)
        return self.answers.pop(0)(letters) if self.answers else None


class Stage:
    def __init__(self) -> None:
        self.connection, self.owner, self.dead_letters, self.metrics = Connection(), Owner(), DeadLetters(), Metrics()
        self.queue = LetterQueue("events", cast(Any, self.dead_letters), self.metrics, self.owner)

    def put(self, *sizes_bytes: int, connection: Connection | None = None) -> list[Message]:
        sent = [Message(b"%016d" % number, 0, 1, b"x" * size) for number, size in enumerate(sizes_bytes)]
        letters = [Letter(message, DeadLetterReason.NOT_JSON, "it is none") for message in sent]
        self.queue.put(cast(Any, connection or self.connection), letters)
        return sent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.queue.run())
        await asyncio.sleep(0)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until_all_ended(self) -> None:
        while self.queue.under_way:
            await asyncio.wait(self.queue.under_way)

    def is_empty(self) -> bool:
        return self.queue.held_bytes == 0 and not self.queue.under_way


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsqdigest")


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


def unsent(error: NsqdigestError, *numbers: int) -> Answer:
    return lambda letters: Unsent([letters[number].message for number in numbers], error)


@simulated
async def test_a_message_is_finished_when_nsqd_acknowledged_its_letter(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    async with stage.running():
        sent = stage.put(10, 20)
        assert stage.queue.held_bytes == 30
        await asyncio.sleep(0.5)
        assert stage.owner.finished == []
        await stage.until_all_ended()
    assert (stage.owner.finished, stage.owner.given_back) == (sent, [])
    assert stage.metrics.value("dead_letters_total", topic="events", reason="not-json") == 2
    (line,) = logged(caplog, "consumer.message.dead_lettered")  # the second is counted, and logged with the next one
    assert (line["message"], line["reason"], line["detail"]) == (sent[0].id, "not-json", "it is none")
    assert stage.is_empty()


@simulated
async def test_of_one_connection_there_is_one_part_at_a_time_and_another_waits_for_nobody() -> None:
    stage, other = Stage(), Connection("other:4150")
    async with stage.running():
        first = stage.put(1)
        await asyncio.sleep(0.5)
        second = stage.put(2)
        third = stage.put(3, connection=other)
        await asyncio.sleep(0.1)
        assert stage.dead_letters.parts == [("nsqd:4150", first), ("other:4150", third)]
        assert len(stage.queue.under_way) == 2
        await stage.until_all_ended()
    assert stage.dead_letters.parts[2:] == [("nsqd:4150", second)]
    assert stage.is_empty()


@pytest.mark.parametrize(
    ("sizes_bytes", "parts"),
    [
        ([1] * (PART_LETTERS + 1), [PART_LETTERS, 1]),
        ([1] * PART_LETTERS, [PART_LETTERS]),
        ([PART_BYTES // 2] * 3, [2, 1]),
        ([PART_BYTES // 2, PART_BYTES // 2 + 1], [1, 1]),
        ([PART_BYTES + 1, 1, PART_BYTES + 1], [1, 1, 1]),
    ],
)
def test_a_part_has_so_many_letters_and_bytes_and_one_letter_at_least(sizes_bytes: list[int], parts: list[int]) -> None:
    @simulated
    async def run() -> None:
        stage = Stage()
        async with stage.running():
            sent = stage.put(*sizes_bytes)
            await stage.until_all_ended()
        assert [len(part) for _, part in stage.dead_letters.parts] == parts
        assert stage.owner.finished == sent

    run()


@simulated
async def test_after_an_answer_only_what_nsqd_refused_goes_back_and_the_rest_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.dead_letters.answers = [unsent(PublishError("refused", applied=Applied.NO, code="E_BAD_MESSAGE"), 1)]
    async with stage.running():
        sent = stage.put(*[1] * (PART_LETTERS + 1))
        await stage.until_all_ended()
    assert stage.owner.given_back == [(sent[1], UNSENDABLE_RETRY_S)]
    assert stage.owner.finished == [sent[0], *sent[2:]]
    (line,) = logged(caplog, "consumer.message.kept")
    assert (line["messages"], line["again_s"]) == (1, UNSENDABLE_RETRY_S)
    assert stage.metrics.total("dead_letters_total") == PART_LETTERS
    assert stage.is_empty()


@simulated
async def test_without_an_answer_all_of_the_connection_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.dead_letters.answers = [unsent(NsqdigestError("no answer"), 1)]
    async with stage.running():
        sent = stage.put(*[1] * (PART_LETTERS + 1))
        await stage.until_all_ended()
    assert stage.owner.finished == [sent[0], *sent[2:PART_LETTERS]]
    assert stage.owner.given_back == [(sent[1], UNSENDABLE_RETRY_S), (sent[-1], UNSENDABLE_RETRY_S)]
    assert [line["messages"] for line in logged(caplog, "consumer.message.kept")] == [2]
    assert stage.is_empty()


@simulated
async def test_where_nothing_was_sent_nothing_is_finished() -> None:
    stage = Stage()
    stage.dead_letters.answers = [unsent(NsqdigestError("no answer"), 0, 1)]
    stage.owner.mistakes = 1
    async with stage.running():
        sent = stage.put(1, 1)
        await stage.until_all_ended()
    assert [message for message, _ in stage.owner.given_back] == sent
    assert stage.owner.mistakes == 1
    assert stage.is_empty()


@simulated
async def test_what_raises_gives_the_message_back(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.owner.mistakes = 1
    async with stage.running():
        sent = stage.put(10)
        await stage.until_all_ended()
        assert stage.owner.given_back == [(sent[0], None)]
        assert len(logged(caplog, "consumer.dead_letter.bug")) == 1
        assert stage.is_empty()
        again = stage.put(10)
        await stage.until_all_ended()
    assert stage.owner.finished == again


@simulated
async def test_who_abandons_gives_all_back_at_once_and_only_once() -> None:
    stage, other = Stage(), Connection("other:4150")
    async with stage.running():
        sent = [*stage.put(1, 2), *stage.put(3, connection=other)]
        await asyncio.sleep(0.5)
        under_way = stage.queue.abandon()
        assert stage.owner.given_back == [(message, None) for message in sent]
        assert len(under_way) == 2
        await asyncio.gather(*under_way, return_exceptions=True)
        assert stage.queue.abandon() == []
        assert stage.is_empty()
    assert (len(stage.owner.given_back), stage.owner.finished) == (3, [])


@simulated
async def test_who_is_cancelled_gives_back_what_was_being_sent() -> None:
    stage = Stage()
    async with stage.running():
        sent = stage.put(1)
        await asyncio.sleep(0.5)
    assert stage.owner.given_back == [(sent[0], None)]
    assert stage.is_empty()
