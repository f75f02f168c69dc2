"""Of which modules mutants are generated, and which tests should catch them.

A module's tests are those that know it best and are done in seconds: its unit tests, and those that put it before a
real Redis or nsqd in this process. What needs a daemon of its own, a minute or luck does not belong here.
"""

from __future__ import annotations

TESTS: dict[str, tuple[str, ...]] = {
    "delivery.verdicts": ("tests/delivery/test_verdicts.py",),
    "delivery.digest": ("tests/delivery/test_digest.py",),
    "intake.routing": ("tests/intake/test_routing.py", "tests/intake/test_routing_properties.py"),
    "store.servers.client": ("tests/store/test_client.py",),
    "store.servers.discovery": ("tests/store/test_discovery.py",),
    "intake.writer": ("tests/intake/test_writer.py",),
    "intake.batches": ("tests/intake/test_batches.py",),
    "delivery.timer": ("tests/delivery/test_timer.py",),
    "delivery.claims": ("tests/delivery/test_timer.py", "tests/delivery/test_claims.py"),
    "delivery.opener": ("tests/delivery/test_opener.py", "tests/delivery/test_conclusions.py"),
    "delivery.outlet": ("tests/delivery/test_outlet.py", "tests/delivery/test_conclusions.py"),
    "delivery.conclusions": ("tests/delivery/test_conclusions.py", "tests/delivery/test_outlet.py"),
    "delivery.finisher": ("tests/delivery/test_finisher.py",),
    "store.digests": ("tests/delivery/test_digests_in_redis.py", "tests/delivery/test_delivery.py"),
}
