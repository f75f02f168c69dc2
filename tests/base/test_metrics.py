"""Metrics: declared once, bounded labels, there from the start, and a text that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as read_text

import nsqdigest
from nsqdigest.base.metric_table import METRICS, PREFIX, Values
from nsqdigest.base.metrics import Metrics

pytestmark = pytest.mark.unit

KNOWN: Values = {
    ("topic",): [("events",)],
    ("route",): [("r",)],
    ("sink",): [("mail",), ("chat",)],
    ("sink", "route"): [("mail", "r")],
    ("script",): [("add",)],
    ("kind", "name"): [("topic", "events")],
}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def openmetrics_of(body: bytes) -> list[Metric]:
    return list(openmetrics_parser.text_string_to_metric_families(body.decode()))  # type: ignore[no-untyped-call]


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Of ours, those that are not 0."""
    return {
        (sample.name.removeprefix(PREFIX), tuple(sample.labels.items())): sample.value
        for family in read_text(metrics.text())
        for sample in family.samples
        if sample.name.startswith(PREFIX) and sample.value
    }


def test_a_counter_adds_up() -> None:
    metrics = Metrics()
    metrics.add("messages_received_total", 3, topic="events")
    metrics.add("messages_received_total", topic="events")
    assert samples(metrics) == {("messages_received_total", (("topic", "events"),)): 4}


def test_a_gauge_is_what_it_was_set_to_last() -> None:
    metrics = Metrics()
    metrics.set("backoff_level", 3, topic="events")
    metrics.set("backoff_level", 1, topic="events")
    assert samples(metrics) == {("backoff_level", (("topic", "events"),)): 1}


def test_series_with_other_labels_stand_apart() -> None:
    metrics = Metrics()
    metrics.add("dead_letters_total", 1, topic="a", reason="not-json")
    metrics.add("dead_letters_total", 2, topic="a", reason="too-deep")
    assert list(samples(metrics).values()) == [1, 2]
    assert metrics.total("dead_letters_total") == 3


def test_the_order_of_labels_at_a_call_makes_no_other_series() -> None:
    metrics = Metrics()
    metrics.add("dead_letters_total", topic="a", reason="not-json")
    metrics.add("dead_letters_total", reason="not-json", topic="a")
    assert list(samples(metrics).values()) == [2]


def test_a_series_that_is_changed_directly_is_the_one_that_is_named() -> None:
    metrics = Metrics()
    received = metrics.number("messages_received_total", topic="events")
    assert metrics.value("messages_received_total", topic="events") == 0
    received.value += 3
    metrics.add("messages_received_total", topic="events")
    assert metrics.value("messages_received_total", topic="events") == metrics.total("messages_received_total") == 4
    metrics.histogram("batch_messages", topic="events").observe(7)
    metrics.observe("batch_messages", 8, topic="events")
    assert samples(metrics)["batch_messages_sum", (("topic", "events"),)] == 15


def test_an_observation_counts_in_its_bucket_and_in_all_above() -> None:
    metrics = Metrics()
    metrics.observe("batch_messages", 5, topic="t")
    found = samples(metrics)
    buckets = {of["le"]: value for (name, labels), value in found.items() if "le" in (of := dict(labels))}
    assert buckets == dict.fromkeys(("5", "10", "25", "50", "100", "250", "500", "1000", "+Inf"), 1)
    assert found["batch_messages_sum", (("topic", "t"),)] == 5
    assert found["batch_messages_count", (("topic", "t"),)] == 1


@pytest.mark.parametrize("values", [(0.01,), (0.01, 0.01, 0.02), (7200.0, 0.0, 0.3), (0.2, 0.3, 0.25, 1e9)])
def test_many_observations_at_once_are_the_same_as_one_by_one(values: tuple[float, ...]) -> None:
    together, singly = Metrics(), Metrics()
    together.observe("message_age_seconds", *values, topic="t")
    for value in values:
        singly.observe("message_age_seconds", value, topic="t")
    assert samples(together) == samples(singly)
    assert together.total("message_age_seconds") == len(values)


def test_no_observations_are_none() -> None:
    metrics = Metrics()
    metrics.observe("message_age_seconds", topic="t")
    assert samples(metrics) == {}


# -- from the start


def test_every_series_of_known_labels_is_there_from_the_start_at_0() -> None:
    """An alert on the first burial, dead letter or loss fires: the increase is from 0, not from nothing."""
    lines = Metrics(KNOWN).text().splitlines()
    for line in (
        'nsqdigest_digests_buried_total{reason="refused",sink="chat"} 0.0',
        'nsqdigest_dead_letters_total{reason="not-json",topic="events"} 0.0',
        'nsqdigest_digests_delivered_total{route="r",sink="mail"} 0.0',
        'nsqdigest_store_errors_total{reason="redis-timeout"} 0.0',
        'nsqdigest_backoff_decisions_total{reason="failed",state="backoff",topic="events"} 0.0',
        'nsqdigest_store_request_seconds_count{script="add"} 0.0',
        'nsqdigest_delivery_seconds_bucket{le="+Inf",outcome="gone",sink="mail"} 0.0',
        'nsqdigest_paused{kind="topic",name="events"} 0.0',
        "nsqdigest_store_partitions_lost_total 0.0",
    ):
        name, _, rest = line.partition("{")
        wanted = set(re.findall(r'\w+="[^"]*"', rest))
        assert any(
            each.startswith(name) and set(re.findall(r'\w+="[^"]*"', each)) == wanted and each.endswith(" 0.0")
            for each in lines
        ), line


def test_labels_that_only_go_together_are_not_mixed() -> None:
    assert 'sink="chat",route="r"' not in Metrics(KNOWN).text()


def test_labels_of_another_configuration_begin_and_gauges_of_those_that_are_gone_end() -> None:
    metrics = Metrics({("topic",): [("a",), ("b",)]})
    metrics.add("messages_received_total", 5, topic="a")
    metrics.set("messages_in_flight", 3, topic="b")
    metrics.set("messages_in_flight", 4, topic="a")
    metrics.know({("topic",): [("b",), ("c",)]})
    found = {labels: value for (name, labels), value in samples(metrics).items() if "_in_flight" in name}
    assert found == {(("topic", "b"),): 3}
    assert metrics.value("messages_in_flight", topic="c") == 0
    assert metrics.value("messages_received_total", topic="a") == 5
    assert metrics.value("messages_received_total", topic="c") == 0


def test_what_was_not_measured_yet_is_not_0() -> None:
    metrics = Metrics(KNOWN)
    assert "nsqdigest_channel_depth{" not in metrics.text()
    metrics.set("channel_depth", 7, topic="events")
    assert metrics.value("channel_depth", topic="events") == 7
    metrics.clear("channel_depth", topic="events")
    assert "nsqdigest_channel_depth{" not in metrics.text()


def test_every_reason_of_a_failed_redis_call_is_known_beforehand() -> None:
    """The words are spread over the package; the table has to have them all."""
    package = Path(nsqdigest.__file__).parent
    text = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py") if path.name != "metric_table.py")
    raised = set(re.findall(r'StoreError\(\s*"([a-z-]+)"', text))
    translation = package / "store" / "servers" / "translation.py"
    raised |= set(re.findall(r'"(redis-[a-z]+)",$', translation.read_text("utf-8"), re.MULTILINE))
    assert raised <= {reason for (reason,) in METRICS["store_errors_total"].values["reason",]}


# -- the text


def test_a_metric_without_a_sample_still_says_what_it_is() -> None:
    text = Metrics().text()
    for name, metric in METRICS.items():
        assert f"# HELP {PREFIX}{name} {metric.help}\n# TYPE {PREFIX}{name} {metric.kind}\n" in text


def test_a_name_that_is_not_declared_is_an_error() -> None:
    with pytest.raises(KeyError):
        Metrics().add("no_such_total")


@pytest.mark.parametrize("labels", [{}, {"route": "r"}, {"topic": "t", "timeline": "user:42"}])
def test_labels_that_are_not_the_declared_ones_are_an_error(labels: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        Metrics().add("messages_received_total", 1, **labels)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_odd_label_values_and_big_numbers_come_through_whole(accept: str) -> None:
    metrics = Metrics()
    metrics.add("messages_received_total", 2**53 - 1, topic='a"b\\c\nd')
    body, _ = metrics.exposition(accept)
    (sample,) = [
        sample
        for family in (openmetrics_of(body) if accept else read_text(body.decode()))
        for sample in family.samples
        if sample.name == "nsqdigest_messages_received_total"
    ]
    assert (sample.labels, sample.value) == ({"topic": 'a"b\\c\nd'}, 2**53 - 1)


def test_openmetrics_is_given_to_whom_asks_for_it() -> None:
    plain, openmetrics = Metrics(KNOWN).exposition("text/plain"), Metrics(KNOWN).exposition(OPENMETRICS)
    assert plain[1].startswith("text/plain; version=0.0.4")
    assert openmetrics[1].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics[0].endswith(b"# EOF\n")
    assert {family.name for family in openmetrics_of(openmetrics[0])} >= {"nsqdigest_digests_buried"}


def test_two_in_one_process_do_not_mix() -> None:
    one, other = Metrics(KNOWN), Metrics(KNOWN)
    one.add("messages_received_total", topic="events")
    assert other.total("messages_received_total") == 0


def test_the_process_is_measured_too() -> None:
    text = Metrics().text()
    assert "process_resident_memory_bytes " in text
    assert "process_open_fds " in text


def test_what_is_kept_elsewhere_is_set_when_it_is_asked_for() -> None:
    metrics = Metrics(KNOWN)
    metrics.refresh_by(lambda: metrics.set("store_up", 1))
    assert "nsqdigest_store_up 1.0" in metrics.text()


@pytest.mark.parametrize("name", METRICS)
def test_no_label_is_a_timeline_or_a_key(name: str) -> None:
    """The number of series is bounded by the configuration."""
    of_file = {"topic", "route", "sink", "kind", "name", "script"}
    assert set(METRICS[name].labels) <= of_file | {
        "state",
        "reason",
        "outcome",
        "direction",
        "version",
        "python",
        "hash",
    }


@pytest.mark.parametrize("name", METRICS)
def test_names_follow_the_rules_of_prometheus(name: str) -> None:
    kind = METRICS[name].kind
    assert (kind == "counter") == name.endswith("_total")
    assert (kind == "histogram") == bool(METRICS[name].buckets)
    assert not re.search(r"_(ms|milliseconds|percent|minutes)(_|$)", name)
