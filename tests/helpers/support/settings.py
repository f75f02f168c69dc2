"""Parts of a configuration for tests that build a part of the daemon by hand: `replace(POLICY, capacity=2)`."""

from __future__ import annotations

from nsqdigest.config import Policy, Route
from nsqdigest.delivery.sinks.log import LogSink

POLICY = Policy(
    name="default", immediate=True, minimum_delay_ms=60_000, increment_delay_ms=0, maximum_delay_ms=60_000,
    growth="none", growth_steps=0, intervals_ms=(), capacity=100, on_retry="frozen", dedupe_window_ms=60_000,
)  # fmt: skip
ROUTE = Route(
    name="r", topic="t", match=(), timeline="{x}", key="", timestamp="", group="", policy="default", sink="out",
)  # fmt: skip
SINK = LogSink(
    name="out", type="log", concurrency=8, timeout_ms=5000, max_attempts=0, max_age_ms=0, retry_base_ms=1000,
    retry_cap_ms=1000, retry_after_max_ms=1000, max_body_bytes=65536, path="-",
)  # fmt: skip
