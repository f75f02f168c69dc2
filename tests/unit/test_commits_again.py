"""What commits do with a message that is handed over again, in the store's and the dead letters' slow moments.

The store and the dead letters are played by hand here: what counts is the moment at which they answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsqdigest.commits import Arrival, Commits, Verdict
from nsqdigest.config import Address
from nsqdigest.errors import NsqdigestError, NsqdRefused, StoreError
from nsqdigest.events import EventLimits, EventRoute, Router
from nsqdigest.filing import FiledRoute
from nsqdigest.metrics import Metrics
from nsqdigest.store_types import Added
from nsqdigest.transport.connection import ConnectionOptions, NsqConnection
from nsqdigest.transport.frames import Message
from support.waiting import until

NOW_MS = 1_800_000_000_000
GOOD, POISON = b'{"user":"u1"}', b"no json"


class Connection(NsqConnection):
    """Notes what it is told to send."""

    def __init__(self, port: int, receiver: Host) -> None:
        super().__init__(Address("127.0.0.1", port), ConnectionOptions(heartbeat_interval_ms=1_000), receiver)
        self.finished: list[Message] = []
        self.let_go_of = 0

    def fin(self, messages: list[Message]) -> None:
        self.finished += messages

    def let_go(self, count: int) -> None:
        self.let_go_of += count


class Host:
    def __init__(self) -> None:
        self.given_back: list[tuple[NsqConnection, Message]] = []
        self.verdicts: list[Verdict] = []

    def give_back(self, connection: NsqConnection, messages: Sequence[Message], longest_s: float | None = None) -> None:
        self.given_back += [(connection, message) for message in messages]

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None:
        connection.fin(messages)

    def finished_late(self, connection: NsqConnection, messages: Iterable[Message], epoch: int) -> None: ...

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None:
        self.verdicts.append(verdict)

    def timeline_is_due(self) -> None: ...

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None: ...

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None: ...

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None: ...


class Slow:
    """A store, and dead letters, that answer when they are let go."""

    partitions = 1
    clock = SimpleNamespace(now_ms=lambda: NOW_MS)

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.failure: StoreError | None = None
        self.records = 0
        self.letters = 0

    async def add(self, route: str, partition: int, records: list[Any], first: Any) -> Added:
        self.records += len(records)
        await self.let_go.wait()
        if self.failure is not None:
            raise self.failure
        return Added(*[0] * len(Added._fields))

    async def publish(self, nsqd: Address, topic: str, letters: Sequence[Any]) -> None:
        self.letters += len(letters)
        await self.let_go.wait()


class Scene:
    def __init__(self) -> None:
        self.host, self.slow, self.metrics = Host(), Slow(), Metrics()
        self.here, self.there = Connection(1, self.host), Connection(2, self.host)
        plan = SimpleNamespace(beginning=lambda _now_ms: None)
        self.commits = Commits(
            "events",
            batch_size=500,
            router=Router([EventRoute(0, "events", (), "{user}", "", "")], EventLimits(65_536, 256, 64, 300_000, 0)),
            routes={0: FiledRoute("events", cast(Any, plan))},
            store=cast(Any, self.slow),
            dead_letters=cast(Any, self.slow),
            metrics=self.metrics,
            host=self.host,
        )

    def hand_over(self, connection: Connection, *messages: Message) -> None:
        self.commits.put(Arrival(connection, list(messages), 0, time.monotonic()))

    async def handed_over_again(self, times: int) -> None:
        name = "messages_handed_over_again_total"
        await until(lambda: self.metrics.total(name) == times, what=f"{times} messages to be recognised")

    async def taken(self, records: int = 0, letters: int = 0) -> None:
        await until(lambda: (self.slow.records, self.slow.letters) == (records, letters), what="it to be worked on")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    running = asyncio.create_task(scene.commits.run())
    yield scene
    scene.slow.let_go.set()
    await scene.commits.settle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def message(number: int, attempts: int = 1, body: bytes = GOOD) -> Message:
    return Message(b"%016d" % number, NOW_MS * 1_000_000, attempts, body)


async def test_both_hand_overs_are_finished_where_they_came_from(scene: Scene) -> None:
    first, again = message(1), message(1, 2)
    scene.hand_over(scene.here, first)
    await scene.taken(records=1)
    scene.hand_over(scene.there, again)
    await scene.handed_over_again(1)
    assert scene.there.finished == []
    scene.slow.let_go.set()
    await until(lambda: (scene.here.finished, scene.there.finished) == ([first], [again]))
    assert scene.slow.records == 1


async def test_when_the_store_fails_both_are_given_back(scene: Scene) -> None:
    first, again = message(1), message(1, 2)
    scene.slow.failure = StoreError("timeout", "")
    scene.hand_over(scene.here, first)
    await scene.taken(records=1)
    scene.hand_over(scene.there, again)
    await scene.handed_over_again(1)
    scene.slow.let_go.set()
    await until(lambda: scene.host.given_back == [(scene.here, first), (scene.there, again)])
    assert (scene.here.finished, scene.there.finished) == ([], [])


async def test_two_hand_overs_in_one_batch_are_worked_on_once(scene: Scene) -> None:
    scene.hand_over(scene.here, message(1, 2), message(2))
    scene.hand_over(scene.there, message(1, 3))
    scene.slow.let_go.set()
    await until(lambda: len(scene.here.finished) == 2 and len(scene.there.finished) == 1)
    assert scene.slow.records == 2


async def test_on_the_same_connection_one_fin_ends_both(scene: Scene) -> None:
    scene.hand_over(scene.here, message(1))
    await scene.taken(records=1)
    scene.hand_over(scene.here, message(1, 2))
    await scene.handed_over_again(1)
    scene.slow.let_go.set()
    await until(lambda: len(scene.here.finished) == 1)
    assert scene.here.let_go_of == 1


async def test_a_second_attempt_whose_first_is_not_in_work_is_worked_on(scene: Scene) -> None:
    scene.slow.let_go.set()
    scene.hand_over(scene.here, message(1))
    await until(lambda: scene.here.finished)
    scene.hand_over(scene.here, message(1, 2))
    await until(lambda: len(scene.here.finished) == 2)
    assert scene.slow.records == 2
    assert scene.metrics.total("messages_handed_over_again_total") == 0


async def test_a_letter_under_way_is_not_sent_twice(scene: Scene) -> None:
    scene.hand_over(scene.here, message(1, body=POISON))
    await scene.taken(letters=1)
    scene.hand_over(scene.there, message(1, 2, body=POISON))
    await scene.handed_over_again(1)
    scene.slow.let_go.set()
    await until(lambda: len(scene.here.finished) == len(scene.there.finished) == 1)
    assert scene.slow.letters == 1


@pytest.mark.parametrize("body", [GOOD, POISON], ids=["stored", "dead-lettered"])
async def test_at_once_means_that_both_go_back_once(scene: Scene, body: bytes) -> None:
    first, again = message(1, body=body), message(1, 2, body=body)
    scene.hand_over(scene.here, first)
    await scene.taken(records=int(body is GOOD), letters=int(body is POISON))
    scene.hand_over(scene.there, again)
    await scene.handed_over_again(1)
    await scene.commits.abandon()
    assert scene.host.given_back == [(scene.here, first), (scene.there, again)]
    scene.slow.let_go.set()
    await scene.commits.settle()
    assert scene.host.given_back == [(scene.here, first), (scene.there, again)]
    assert (scene.here.finished, scene.there.finished) == ([], [])


async def test_a_probe_that_was_handed_over_again_comes_to_a_verdict(scene: Scene) -> None:
    """Nothing was asked of the store for its sake: another probe must follow."""
    scene.hand_over(scene.here, message(1))
    await scene.taken(records=1)
    scene.hand_over(scene.there, message(1, 2))
    await until(lambda: scene.host.verdicts == [Verdict.NOT_ASKED])
