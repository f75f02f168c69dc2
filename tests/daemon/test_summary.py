"""The line a minute about what went on, and the one line for `systemctl status`."""

from __future__ import annotations

import asyncio

import pytest

from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import BuryReason, DeadLetterReason
from nsqdigest.daemon import summary as summary_module
from nsqdigest.daemon.summary import EVERY_S, Summary, waiting
from nsqdigest.store.figures import Figures, RouteFigures
from support.simulated import Time, simulated

pytestmark = pytest.mark.unit

FIGURES = Figures(
    100_000,
    {"r": RouteFigures(waiting=3, overdue=1, oldest_due_ms=58_000), "s": RouteFigures(waiting=4, overdue=2)},
    {"out": 2, "mail": 5},
)


def some_work(metrics: Metrics) -> None:
    metrics.add("messages_received_total", 7, topic="a")
    metrics.add("messages_received_total", 5, topic="b")
    metrics.observe("message_age_seconds", 0.1, 0.2, topic="a")
    metrics.add("digests_delivered_total", 2, sink="out", route="r")
    metrics.add("digest_records_delivered_total", 9, sink="out", route="r")
    metrics.add("dead_letters_total", 1, topic="a", reason=DeadLetterReason.NOT_JSON)
    metrics.add("digests_buried_total", 3, sink="out", reason=BuryReason.REFUSED)


def test_it_counts_what_happened_since_the_last_line() -> None:
    metrics = Metrics()
    some_work(metrics)
    summary = Summary(metrics, Figures)
    some_work(metrics)
    counted = {
        "events_in": 12, "events_stored": 2, "digests_out": 2, "records_out": 9, "dead_letters": 1, "digests_buried": 3,
    }  # fmt: skip
    assert summary.take().items() >= counted.items()
    assert summary.take().items() >= dict.fromkeys(counted, 0).items()


def test_what_waits_is_that_of_all_routes_and_the_oldest_of_them() -> None:
    assert waiting(FIGURES) == {
        "timelines_waiting": 7, "timelines_overdue": 3, "oldest_due_s": 42, "digests_dead": 7,
    }  # fmt: skip
    assert set(waiting(Figures()).values()) == {0}


@simulated
async def test_there_is_a_line_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "time", Time())
    caplog.set_level("INFO", "nsqdigest")
    metrics = Metrics()
    summary = Summary(metrics, lambda: FIGURES)
    summary.start()
    await asyncio.sleep(EVERY_S + 1)
    some_work(metrics)
    await asyncio.sleep(EVERY_S)
    await summary.stop()
    lines = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "daemon.summary"]
    assert [(line["seconds"], line["events_in"], line["timelines_overdue"]) for line in lines] == [
        (60, 0, 3), (60, 12, 3),
    ]  # fmt: skip
