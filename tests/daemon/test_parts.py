"""The parts that a configuration asks for, built and not started; and what an operator may pause of them."""

from __future__ import annotations

import asyncio

import pytest

from nsqdigest.config import Config, parse_text
from nsqdigest.daemon.operator import Operator
from nsqdigest.daemon.parts import Parts, StoreIsBack, build
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit


def config() -> Config:
    """Three routes of two topics into two sinks; nothing listens at its addresses."""
    routes = (("events", "a", "out"), ("events", "b", "other"), ("alerts", "c", "out"))
    text = """
        [nsq]
        nsqd_tcp_addresses = ["127.0.0.1:1"]
        [redis]
        url = "redis://127.0.0.1:1/0"
        [sinks.out]
        type = "log"
        concurrency = 3
        [sinks.other]
        type = "log"
        concurrency = 4
        """
    for topic, name, sink in routes:
        text += f'[[routes]]\nname = "{name}"\ntopic = "{topic}"\ntimeline = "{{x}}"\nsink = "{sink}"\n'
    return parse_text(text, "test.toml", {}, KINDS)


@pytest.fixture
async def parts() -> Parts:
    return build(config())


async def test_they_are_built_without_a_task_or_a_connection(parts: Parts) -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_topic_has_one_consumer_and_each_sink_one_post(parts: Parts) -> None:
    assert [consumer.topic for consumer in parts.consumers] == ["events", "alerts"]
    assert list(parts.outlets) == ["out", "other"]


async def test_an_answer_of_redis_to_one_part_wakes_all_that_are_named() -> None:
    woken: list[str] = []
    store_is_back = StoreIsBack()
    store_is_back()
    store_is_back.wakes = (lambda: woken.append("consumer"), lambda: woken.append("scheduler"))
    store_is_back()
    assert woken == ["consumer", "scheduler"]


async def test_an_operator_pauses_topics_routes_and_sinks_by_name(parts: Parts) -> None:
    operator = Operator(parts)
    assert operator.names_of("topic") == ["events", "alerts"]
    assert operator.names_of("route") == ["a", "b", "c"]
    assert operator.names_of("sink") == ["out", "other"]


async def test_a_second_pause_changes_nothing_and_keeps_its_time(parts: Parts) -> None:
    operator = Operator(parts)
    assert operator.pause("route", "a")
    since_s = operator.paused_since_s["route", "a"]
    assert not operator.pause("route", "a")
    assert operator.paused_since_s == {("route", "a"): since_s}
    assert operator.resume("route", "a")
    assert not operator.resume("route", "a")
    assert operator.paused_since_s == {}
