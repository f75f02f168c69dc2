"""Of which modules mutants are generated, and which tests should catch them.

A module's tests are those that know it best and are done in seconds: its unit tests, and those that put it before a
real Redis or nsqd in this process. What needs a daemon of its own, a minute or luck does not belong here.
"""

from __future__ import annotations

TESTS: dict[str, tuple[str, ...]] = {
    "delivery": ("tests/unit/test_delivery.py",),
    "digest": ("tests/unit/test_digest.py",),
    "events": ("tests/unit/test_events.py", "tests/property/test_events_properties.py"),
    "redis_client": ("tests/integration/test_redis_client.py",),
    "redis_servers": ("tests/integration/test_redis_servers.py",),
    "filing": ("tests/integration/test_filing.py",),
    "commits": ("tests/unit/test_commits.py",),
    "scheduler": (
        "tests/unit/test_scheduler.py",
        "tests/integration/test_claiming.py",
        "tests/integration/test_sink_breaker.py",
        "tests/integration/test_damaged_keys.py",
    ),
    "courier": (
        "tests/unit/test_courier.py",
        "tests/integration/test_carrying.py",
        "tests/integration/test_courier.py",
    ),
}
