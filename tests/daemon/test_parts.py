"""The parts that a configuration asks for, built and not started; and what an operator may pause of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from nsqdigest.admin.operator import Kind
from nsqdigest.config import Config, parse_text, tls_files
from nsqdigest.daemon.changes import compare
from nsqdigest.daemon.operator import Operator
from nsqdigest.daemon.parts import Parts, StoreIsBack, build, rebuild
from nsqdigest.delivery.sinks.table import KINDS
from support.certificates import Certificates

pytestmark = pytest.mark.unit


def config(more: str = "", nsq: str = "") -> Config:
    """Three routes of two topics into two sinks; nothing listens at its addresses."""
    routes = (("events", "a", "out"), ("events", "b", "other"), ("alerts", "c", "out"))
    text = f"""
        [nsq]
        nsqd_tcp_addresses = ["127.0.0.1:1"]
        {nsq}
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
    return parse_text(text + more, "test.toml", {}, KINDS)


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


# -- another configuration


WITH_ALL_SINKS = """
[sinks.fixed]
type = "webhook"
url = "https://hooks.example.com/a"
[sinks.many]
type = "webhook"
url = "https://{tenant}.example.com/a"
[sinks.queue]
type = "nsq"
nsqd_tcp_addresses = ["127.0.0.1:1"]
topic = "digests"
""" + "".join(
    f'[[routes]]\nname = "to-{sink}"\ntopic = "events"\ntimeline = "{{x}}"\nsink = "{sink}"\n'
    for sink in ("fixed", "many", "queue")
)


def rebuilt(before: Parts, after: Config) -> Parts:
    return rebuild(before, after, compare(before.config, after, KINDS))


def new_outlets(before: Parts, after: Parts) -> set[str]:
    return {name for name, outlet in after.outlets.items() if before.outlets.get(name) is not outlet}


async def test_what_another_configuration_leaves_as_it_was_is_the_same_object(parts: Parts) -> None:
    after = rebuilt(parts, config('[[routes]]\nname = "new"\ntopic = "new"\ntimeline = "{x}"\nsink = "out"\n'))
    assert new_outlets(parts, after) == set()
    assert [consumer.topic for consumer in after.consumers] == ["events", "alerts", "new"]
    assert after.consumers[:2] == parts.consumers
    assert after.lines["events"] is parts.lines["events"]
    assert after.publisher is parts.publisher
    assert after.store is parts.store
    assert (after.discovery is parts.discovery, after.depths is parts.depths) == (False, False)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_another_policy_makes_new_lines_and_no_new_consumer(parts: Parts) -> None:
    after = rebuilt(parts, config('[policies.default]\nminimum_delay = "1m"\n'))
    assert after.consumers == parts.consumers
    assert after.lines["events"] is not parts.lines["events"]
    assert after.discovery is parts.discovery


async def test_sinks_that_use_more_than_their_own_options_are_rebuilt_with_that() -> None:
    before = build(config(WITH_ALL_SINKS))
    curve = rebuilt(before, config(WITH_ALL_SINKS + '[backoff]\nbase = "2s"\n'))
    assert new_outlets(before, curve) == {"many"}
    options = rebuilt(before, config(WITH_ALL_SINKS, 'compression = "deflate"'))
    assert new_outlets(before, options) == {"queue"}
    assert not set(options.consumers) & set(before.consumers)
    assert options.publisher is not before.publisher


async def test_tls_files_that_were_renewed_after_they_were_compared_are_still_new(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(made.ca_file.read_bytes())
    before = build(config(f'[nsq.tls]\nca_file = "{trusted}"\n'))
    changes = compare(before.config, before.config, KINDS)
    trusted.write_bytes(made.other_ca_file.read_bytes())
    after = rebuild(before, before.config, changes)
    assert after.options is before.options
    assert after.tls_files != tls_files.fingerprint(after.config.nsq.tls)


async def test_a_sink_that_loses_its_last_route_begins_anew() -> None:
    before = build(config(WITH_ALL_SINKS))
    after = rebuilt(before, config(WITH_ALL_SINKS.replace('sink = "queue"', 'sink = "fixed"')))
    assert new_outlets(before, after) == {"queue"}


async def test_a_pause_of_what_is_gone_is_over_and_others_stay() -> None:
    before = build(config(WITH_ALL_SINKS))
    operator = Operator(before)
    for kind, name in (("route", "to-fixed"), ("route", "a"), ("sink", "queue")):
        operator.pause(cast(Kind, kind), name)
    operator.take(rebuilt(before, config()))
    assert set(operator.paused_since_s) == {("route", "a")}
    assert operator.names_of("sink") == ["out", "other"]
