"""Metrics: declared once, bounded labels, and a text that Prometheus reads."""

from __future__ import annotations

import re

import pytest

from nsqdigest.metrics import METRICS, PREFIX, Metrics

SAMPLE = re.compile(r'nsqdigest_[a-z_]+(\{([a-z]+="([^"\\\n]|\\\\|\\"|\\n)*",?)+\})? [0-9.e+-]+')


def samples(metrics: Metrics) -> list[str]:
    return [line for line in metrics.text().splitlines() if not line.startswith("#")]


def test_a_counter_adds_up() -> None:
    metrics = Metrics()
    metrics.add("messages_received_total", 3, topic="events")
    metrics.add("messages_received_total", topic="events")
    assert samples(metrics) == ['nsqdigest_messages_received_total{topic="events"} 4']


def test_a_gauge_is_what_it_was_set_to_last() -> None:
    metrics = Metrics()
    metrics.set("backoff_level", 3, topic="events")
    metrics.set("backoff_level", 0, topic="events")
    assert samples(metrics) == ['nsqdigest_backoff_level{topic="events"} 0']


def test_series_with_other_labels_stand_apart() -> None:
    metrics = Metrics()
    metrics.add("dead_letters_total", 1, topic="a", reason="not-json")
    metrics.add("dead_letters_total", 2, topic="a", reason="too-deep")
    assert samples(metrics) == [
        'nsqdigest_dead_letters_total{topic="a",reason="not-json"} 1',
        'nsqdigest_dead_letters_total{topic="a",reason="too-deep"} 2',
    ]
    assert metrics.total("dead_letters_total") == 3


def test_the_order_of_labels_at_a_call_makes_no_other_series() -> None:
    metrics = Metrics()
    metrics.add("dead_letters_total", topic="a", reason="not-json")
    metrics.add("dead_letters_total", reason="not-json", topic="a")
    assert metrics.total("dead_letters_total") == 2
    assert len(samples(metrics)) == 1


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


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.add("messages_received_total", topic='a"b\\c\nd')
    assert samples(metrics) == ['nsqdigest_messages_received_total{topic="a\\"b\\\\c\\nd"} 1']


def test_numbers_lose_no_digit() -> None:
    metrics = Metrics()
    metrics.set("schedule_lag_seconds", 0.1, route="r")
    metrics.add("messages_received_total", 2**53 - 1, topic="t")
    values = [float(line.split()[-1]) for line in samples(metrics)]
    assert sorted(values) == [0.1, 2**53 - 1]


def test_every_line_has_the_form_that_prometheus_reads() -> None:
    metrics = Metrics()
    for name, metric in METRICS.items():
        metrics.set(name, 1.5e-7, **{label: f'odd "{label}"' for label in metric.labels})
    lines = samples(metrics)
    assert len(lines) == len(METRICS)
    assert [line for line in lines if not SAMPLE.fullmatch(line)] == []
    assert metrics.text().endswith("\n")


@pytest.mark.parametrize("name", METRICS)
def test_no_label_is_a_timeline_or_a_key(name: str) -> None:
    """The number of series is bounded by the configuration."""
    assert set(METRICS[name].labels) <= {"topic", "route", "sink", "state", "reason", "outcome"}


@pytest.mark.parametrize("name", METRICS)
def test_only_counters_are_called_totals(name: str) -> None:
    assert (METRICS[name].kind == "counter") == name.endswith("_total")
