"""Two nsqds on one host give the same ids to different messages: a message is known by its id and its timestamp."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from support.publishing import Publisher
from support.stage import QUIET, TOPIC, Stage
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

EVENTS_EACH = 1_000
TOGETHER = 50
ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "sink": "hook"}


def publish_side_by_side(publishers: list[Publisher]) -> None:
    """In step, so that both nsqds mint ids in the same milliseconds."""
    step = threading.Barrier(len(publishers), timeout=PATIENCE_S)

    def publish(publisher: Publisher) -> None:
        for _ in range(EVENTS_EACH // TOGETHER):
            step.wait()
            publisher.publish(TOGETHER)

    threads = [threading.Thread(target=publish, args=(publisher,)) for publisher in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_all_events_of_two_nsqds_with_equal_ids_are_delivered(stage: Stage) -> None:
    nsqds = [stage.nsqd("--node-id=7") for _ in range(2)]
    receiver = stage.receiver()
    stage.daemon(QUIET, [ROUTE]).start()
    publishers = [stage.publisher(nsqd, timelines=10, prefix=f"nsqd{number}") for number, nsqd in enumerate(nsqds)]
    publish_side_by_side(publishers)
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    assert len(stage.owed()) == 2 * EVENTS_EACH
    # The key of such a record is the message's id and its timestamp.
    keys = [record["key"] for data in receiver.digests() for record in data["records"]]
    assert len(set(keys)) == 2 * EVENTS_EACH
    ids = Counter(key.rpartition("-")[0] for key in keys)
    assert max(ids.values()) == 2, "the two nsqds gave no equal ids: this test shows nothing"
