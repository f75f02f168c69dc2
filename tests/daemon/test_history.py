"""history.py: rates and gauges of the last quarter of an hour, with instants of the test's choice."""

from __future__ import annotations

import pytest

from nsqdigest.daemon.history import INTERVAL_S, History, Sample

pytestmark = pytest.mark.unit


def sample(at_s: float, count: float, gauge: float = 0.0, **more: float) -> Sample:
    return Sample(at_s, {"in": count, **more}, {"waiting": gauge})


def filled(samples: int) -> History:
    """Ten a second."""
    history = History(sample(0, 0))
    for number in range(1, samples + 1):
        history.note(sample(number * INTERVAL_S, number * 50, number))
    return history


def test_a_daemon_that_has_just_started_has_no_interval_yet() -> None:
    history = History(sample(100, 0))
    assert (history.rates("in"), history.gauges("waiting")) == ([], [])
    assert history.rate(sample(100, 0))("in") == 0


def test_each_interval_has_its_rate_and_the_gauge_at_its_end() -> None:
    history = filled(3)
    assert history.rates("in") == [10.0, 10.0, 10.0]
    assert history.gauges("waiting") == [1, 2, 3]


def test_a_late_sample_makes_no_higher_rate() -> None:
    history = History(sample(0, 0))
    history.note(sample(20, 200))
    assert history.rates("in") == [10.0]


def test_it_remembers_a_quarter_of_an_hour_and_no_more() -> None:
    history = filled(1000)
    assert len(history.rates("in")) == len(history.gauges("waiting")) == 180


def test_a_rate_is_that_of_the_last_minute() -> None:
    history = filled(100)
    assert history.rate(sample(500, 5000))("in") == 10.0
    assert history.rate(sample(500, 5000 + 650))("in") == pytest.approx(20.0, rel=0.2)
    assert history.rate(sample(500, 5000))("nobody counts it") == 0


def test_a_counter_that_began_anew_has_no_negative_rate() -> None:
    history = filled(2)
    history.note(sample(15, 0))
    assert history.rates("in")[-1] == 0
    assert history.rate(sample(16, 0))("in") == 0


def test_after_a_standstill_the_rate_is_that_of_the_time_since() -> None:
    history = filled(2)
    assert history.rate(sample(1000, 100 + 9900))("in") == 10.0


def test_a_mean_is_that_of_what_was_observed_in_the_last_minute() -> None:
    history = History(sample(0, 0, sums=0))
    history.note(sample(5, 10, sums=20.0))
    assert history.mean(sample(6, 10, sums=20.0), "sums", "in") == 2.0
    assert history.mean(sample(6, 0, sums=0), "sums", "in") is None
