"""Two daemons are restarted in turn under load, as a deployment does it: nothing is lost, next to nothing comes twice.

A record that is in two digests is a duplicate. Killed daemons may make some; daemons that drain may not.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from support.publishing import Background
from support.stage import CHANNEL, PROVE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.servers]

RESTARTS = 20 if PROVE else 4
EVENTS_PER_RESTART = 5_000 if PROVE else 3_000
EVENTS_PER_S = 5_000
DUPLICATES_ALLOWED = 0.001


def test_rolling_restarts_lose_nothing_and_repeat_next_to_nothing(stage: Stage) -> None:
    nsqd = stage.nsqd()
    stage.receiver()
    # nsqd's usual minute of msg_timeout: what a restart left in flight would be missing for longer than we wait.
    # A drain that waits for its time limit fails: nothing waits that long for a daemon to end.
    daemons = [stage.daemon({"nsq": {"drain_timeout": "5m"}}) for _ in range(2)]
    for daemon in daemons:
        daemon.start()
    publisher = stage.publisher(nsqd)
    events = (RESTARTS + 1) * EVENTS_PER_RESTART
    with Background(publisher, events, per_s=EVENTS_PER_S) as load:
        for number in range(RESTARTS):
            wait_until(partial(load.reached, (number + 0.5) / (RESTARTS + 1)), 60, "some of the load")
            daemon = daemons[number % 2]
            daemon.term()
            assert daemon.wait() == 0, daemon.log_tail()
            daemon.start()
    stage.wait_until_all_is_delivered()
    stage.check()
    times = Counter(value["id"] for receiver in stage.receivers for value in receiver.values())
    assert sum(count - 1 for count in times.values()) <= DUPLICATES_ALLOWED * events
    stats = nsqd.channel_stats(TOPIC, CHANNEL)
    assert (stats["in_flight_count"], stats["timeout_count"]) == (0, 0)
    assert sum(len(daemon.said("daemon.stopped")) for daemon in daemons) == RESTARTS
