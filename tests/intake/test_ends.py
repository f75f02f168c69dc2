"""Whatever raises behind the store's answer, and whenever an end is cut off: every message is finished or given back,
once, and what went wrong is in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from nsqdigest.consumer import Consumer
from nsqdigest.daemon import life as daemon_module
from nsqdigest.daemon import registry as registry_module
from nsqdigest.daemon.life import Daemon
from nsqdigest.intake.batch import Batch
from nsqdigest.intake.letters import DeadLetters
from nsqdigest.intake.routing import Router
from nsqdigest.store.daemons import Daemons
from support.intake import config_of, consumer_of, in_flight_here, left_at_nsqd, running
from support.stage import Stage
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

MESSAGES = 10
POISON = b"no json"
MOST_SUSPENSIONS = 60
LONG_S = 600.0
AT_ONCE = {"nsq": {"requeue_delay": "0s"}}
"""Of a new channel nsqd looks for delayed messages only after five seconds."""


@pytest.fixture
def ready(stage: Stage) -> Stage:
    stage.nsqd()
    stage.receiver()
    return stage


async def published(stage: Stage, daemon: Daemon, count: int = MESSAGES) -> None:
    await until(lambda: consumer_of(daemon).connected == 1, PATIENCE_S, "a connection")
    await asyncio.to_thread(stage.publisher(stage.nsqds[0]).publish, count)


def raising_once(what: Callable[..., Any], is_async: bool = False) -> tuple[Callable[..., Any], list[int]]:
    """The same, but for its first call."""
    calls: list[int] = []

    def once(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a mistake of the program")
        return what(*arguments, **named)

    async def once_async(*arguments: Any, **named: Any) -> Any:
        return await once(*arguments, **named)

    return (once_async if is_async else once), calls


# -- a mistake of the program


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Consumer, "_judge"), (Consumer, "finish"), (Batch, "conclude")],
    ids=["the verdict", "finishing", "concluding"],
)
async def test_what_raises_behind_the_stores_answer_leaves_no_message_in_flight(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, name: str
) -> None:
    raising, calls = raising_once(getattr(owner, name))
    monkeypatch.setattr(owner, name, raising)
    async with running(config_of(ready, AT_ONCE)) as daemon:
        await published(ready, daemon)
        await until(lambda: calls, PATIENCE_S, "the mistake")
        await until(lambda: left_at_nsqd(ready) == (0, 0), PATIENCE_S, "every message to come again and be finished")
        assert in_flight_here(consumer_of(daemon)) == 0
    bugs = [record for record in caplog.records if record.msg.endswith(".bug")]
    assert bugs
    assert all(record.exc_info for record in bugs)


async def test_what_raises_on_the_way_of_a_letter_leaves_no_message_in_flight(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raising, calls = raising_once(DeadLetters.publish, is_async=True)
    monkeypatch.setattr(DeadLetters, "publish", raising)
    async with running(config_of(ready, AT_ONCE)) as daemon:
        await until(lambda: consumer_of(daemon).connected == 1, PATIENCE_S, "a connection")
        ready.nsqds[0].publish("events", POISON)
        await until(lambda: len(calls) > 1, PATIENCE_S, "the letter to be tried again")
        await until(lambda: left_at_nsqd(ready) == (0, 0), PATIENCE_S, "the message to be finished")
        assert in_flight_here(consumer_of(daemon)) == 0
    assert "consumer.dead_letter.bug" in [record.msg for record in caplog.records]


async def test_a_body_that_the_program_fails_at_is_a_letter_and_its_neighbours_are_stored(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("a mistake of the program")

    monkeypatch.setattr(Router, "_event_otherwise", fails)  # of the poison alone
    async with running(config_of(ready, AT_ONCE)) as daemon:
        await until(lambda: consumer_of(daemon).connected == 1, PATIENCE_S, "a connection")
        ready.nsqds[0].publish("events", POISON)
        await published(ready, daemon)
        await until(lambda: left_at_nsqd(ready) == (0, 0), PATIENCE_S, "all to be finished")
        assert daemon.parts.metrics.total("dead_letters_total") == 1
        assert ready.ledger()["added"] == MESSAGES
    assert "consumer.decode.bug" in [record.msg for record in caplog.records]


# -- an end that is cut off


class CutOff:
    """Awaits a coroutine and is cancelled where it waits for the n-th time."""

    def __init__(self, work: Any, at: int) -> None:
        self._work = work
        self._at = at
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = steps.throw(thrown) if thrown else steps.send(None)
            except StopIteration:
                return
            self.suspensions += 1
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:
                thrown = error


async def cut_off(work: Any, at: int) -> bool:
    """Returns whether it had come to its end before."""
    cutting = CutOff(work, at)

    async def run() -> None:
        await cutting

    task = asyncio.ensure_future(run())
    await asyncio.gather(task, return_exceptions=True)
    return not task.cancelled() and cutting.suspensions < at


def all_in_flight(consumer: Consumer) -> bool:
    return in_flight_here(consumer) == MESSAGES


def ends_of(daemon: Daemon) -> dict[str, Callable[[], Awaitable[None]]]:
    consumer = consumer_of(daemon)
    soon_s = asyncio.get_running_loop().time() + 0.05
    return {
        "drain of the consumer": lambda: consumer.drain(soon_s),
        "stop of the consumer": consumer.stop,
        "drain of the daemon": daemon.drain,
    }


@pytest.mark.parametrize("end", ["drain of the consumer", "stop of the consumer", "drain of the daemon"])
async def test_an_end_that_is_cut_off_at_any_await_and_begun_again_gives_everything_back_once(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    monkeypatch.setattr(daemon_module, "STORE_ENDS_WITHIN_S", 0.01)
    monkeypatch.setattr(daemon_module, "SINKS_DRAIN_S", 0.05)
    config = config_of(ready, {"redis": {"timeout": "5m"}})
    config = replace(config, nsq=replace(config.nsq, drain_timeout_ms=100))
    for at in range(1, MOST_SUSPENSIONS):
        ready.nsqds[0].request("POST", "/channel/empty", topic="events", channel="nsqdigest")
        async with running(config) as daemon:
            ready.hold_writes()
            consumer = consumer_of(daemon)
            await published(ready, daemon)
            await until(partial(all_in_flight, consumer), PATIENCE_S, "all in flight")
            came_to_its_end = await cut_off(ends_of(daemon)[end](), at)
            await daemon.stop()
            await until(lambda: left_at_nsqd(ready) == (0, MESSAGES), PATIENCE_S, f"all given back, cut off at {at}")
            assert daemon.parts.metrics.total("messages_requeued_total") == MESSAGES, at
            assert [each.in_flight for each in consumer._connections if each.in_flight] == [], at
            ready.let_writes_go()
        if came_to_its_end:
            break
    else:
        raise AssertionError("the end has more awaits than were tried")
    assert at > 1
    assert [record.msg for record in caplog.records if "REQ" in record.getMessage()] == []


# -- beside a Redis that answers nothing


@pytest.mark.parametrize("end", ["drain", "stop"])
async def test_goodbye_and_the_end_of_the_store_share_the_time_of_the_end(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Each may last for ten minutes if it has time of its own."""
    monkeypatch.setattr(daemon_module, "STORE_ENDS_WITHIN_S", LONG_S)
    monkeypatch.setattr(registry_module, "GOODBYE_WITHIN_S", LONG_S)
    config = config_of(ready, {"redis": {"timeout": "5m"}})
    drain_s = 2.5 if end == "drain" else LONG_S
    config = replace(config, nsq=replace(config.nsq, drain_timeout_ms=int(1000 * drain_s)))
    async with running(config) as daemon:
        await until(lambda: daemon.registry.is_known, PATIENCE_S, "it to be known in Redis")
        ready.store.pause()
        try:
            await published(ready, daemon)
            await until(partial(all_in_flight, consumer_of(daemon)), PATIENCE_S, "all in flight")
            async with asyncio.timeout(PATIENCE_S):
                await (daemon.drain() if end == "drain" else daemon.stop())
        finally:
            ready.store.resume()
        await until(lambda: left_at_nsqd(ready) == (0, MESSAGES), PATIENCE_S, "all given back")


async def test_a_store_that_is_known_not_to_answer_gets_no_goodbye(
    ready: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    say_goodbye = Daemons.say_goodbye

    async def noted(self: Daemons, daemon_id: str) -> None:
        asked.append(daemon_id)
        await say_goodbye(self, daemon_id)

    monkeypatch.setattr(Daemons, "say_goodbye", noted)
    async with running(config_of(ready)) as daemon:
        await until(lambda: daemon.registry.is_known, PATIENCE_S, "it to be known in Redis")
    assert len(asked) == 1
    async with running(config_of(ready, {"redis": {"timeout": "1s"}})) as daemon:
        await until(lambda: daemon.registry.is_known, PATIENCE_S, "it to be known in Redis")
        ready.store.pause()
        try:
            await until(lambda: daemon.status.why_store_fails() != "", PATIENCE_S, "Redis to be known as silent")
            await daemon.drain()
        finally:
            ready.store.resume()
    assert len(asked) == 1
