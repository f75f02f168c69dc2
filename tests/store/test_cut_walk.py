"""Every script may stop before any of its writes: a random walk (support/cut_walk.py) on each kind of Redis.

With NSQDIGEST_PROVE it plays thousands of stories. Each story has a seed, and a failure names it.
"""

from __future__ import annotations

import pytest
import redis

from support.cut_walk import Walk
from support.stage import PROVE

pytestmark = [pytest.mark.property, pytest.mark.every_redis]

STORIES = 20_000 if PROVE else 150
CUT_OFF = (
    "add", "claim", "open", "finish", "maintenance", "mend", "census", "adopt", "revive", "delete", "snooze",
    "rescore", "turn",
)  # fmt: skip


def test_whatever_is_cut_off_nothing_is_lost_or_left_behind(redis_client: redis.Redis) -> None:
    walk = Walk(redis_client)
    for seed in range(STORIES):
        walk.play(seed)
    assert walk.seen["cuts"] > STORIES
    missing = [name for name in CUT_OFF if not walk.seen[f"cut off: {name}"]]
    assert not missing or not PROVE, missing
